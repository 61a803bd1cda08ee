"""Which processes of a host are looked at when nobody names them."""

import os
import subprocess
import sys

import pytest

from rldbg.agent.waits.reading.chosen import _own_pythons, chosen_processes, describe
from rldbg.agent.waits.reading.kernel import all_processes
from rldbg.core import IncompleteDataError
from rldbg.live.unarmed.job import UnarmedJob, look_at_job


def test_a_program_in_a_folder_of_our_name_is_the_users(tmp_path):
    (tmp_path / "rldbg").mkdir()
    script = tmp_path / "rldbg" / "train.py"
    script.write_text("print('up', flush=True)\ninput()\n")
    # The commands of ours that are left out: `rldbg ps`, and a broker.
    (tmp_path / "rldbg" / "rldbg").write_text(script.read_text())
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    theirs, ours = (
        subprocess.Popen([sys.executable, file, "ps"], **pipes) for file in (script, tmp_path / "rldbg" / "rldbg")
    )
    with theirs, ours:
        assert theirs.stdout.readline() == ours.stdout.readline() == b"up\n"
        found = _own_pythons(all_processes())
        assert theirs.pid in found and ours.pid not in found


def test_the_launcher_and_the_broker_of_a_run_are_not_its_programs(tmp_path):
    # GIVEN the processes of a SLURM job that `rldbg run` started in it
    (tmp_path / "rldbg").write_text("print('up', flush=True)\ninput()\n")
    commands = [("run", "--", "python", "train.py"), ("train", "recipe.yaml")]
    job = f"test-{os.getpid()}"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": os.environ | {"SLURM_JOB_ID": job}}
    launcher, trainer = (subprocess.Popen([sys.executable, tmp_path / "rldbg", *words], **pipes) for words in commands)
    with launcher, trainer:
        assert launcher.stdout.readline() == trainer.stdout.readline() == b"up\n"
        found = chosen_processes([], torchrun=False, slurm_job=job, everything=False, children=True)
        assert found == [trainer.pid]
        # BUT one that is named is looked at
        chosen = chosen_processes([launcher.pid], torchrun=False, slurm_job="", everything=False, children=True)
        assert chosen == [launcher.pid]


def test_a_host_where_the_user_runs_nothing_is_said_so():
    # `true` stands for an ssh whose far side finds no process.
    with pytest.raises(IncompleteDataError, match="no Python process of this user was found on node7"):
        look_at_job(UnarmedJob(host="node7", ssh="true"))
    with pytest.raises(IncompleteDataError, match="no process of torchrun was found on node7"):
        look_at_job(UnarmedJob(host="node7", ssh="true", torchrun=True))


LAUNCHER = """
import os, subprocess, sys
local = {"LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4"}
ranks = [
    subprocess.Popen([sys.executable, "-c", code], env=os.environ | local | {"RANK": str(2 + n), "LOCAL_RANK": str(n)})
    for n, code in enumerate(["input()", "pass"])
]
ranks[1].wait()
print(ranks[0].pid, flush=True)
ranks[0].wait()
"""


@pytest.mark.parametrize(("name", "ended"), [("torchrun", [3]), ("train.py", [])])
def test_ranks_that_torchrun_has_seen_end_are_known_beside_the_others(tmp_path, name, ended):
    (tmp_path / name).write_text(LAUNCHER)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, tmp_path / name], **pipes) as launcher:
        rank = int(launcher.stdout.readline())
        assert describe(rank)["ended_ranks"] == ended
