"""`rldbg run` on a real Slurm: trainings behind srun and in a batch job are armed on the nodes they run on."""

import json
import sys

import command_line
import pytest
from slurm_cluster import NEEDS_SLURM, running_cluster, wait_for

pytestmark = NEEDS_SLURM
TRAIN = """\
import json, os, sys
seen = {"orig": sys.orig_argv, "argv": sys.argv[1:], "node": os.environ.get("SLURMD_NODENAME")}
seen["post_mortem"] = os.environ.get("RAY_DEBUG_POST_MORTEM")
with open(f"seen-{seen['node']}", "w") as file:
    json.dump(seen, file)
if "crash=1" in sys.argv:
    raise LookupError(f"on {seen['node']}")
"""


@pytest.fixture(scope="module")
def cluster():
    with running_cluster() as made:
        (made.folder / "main_ppo.py").write_text(TRAIN)
        yield made


def rldbg(cluster, *words):
    return command_line.rldbg(cluster.folder, *words, env=cluster.environment)


def test_srun_is_armed_on_every_node_and_its_code_comes_back(cluster):
    words = f"srun -N2 -w node-10,node-11 {sys.executable} main_ppo.py actor_rollout_ref.x=1 crash=1"

    dry = json.loads(rldbg(cluster, "run", "--dry-run", "--json", "--", *words.split()).stdout)
    real = rldbg(cluster, "run", "--run", "through_srun", "--wait", "0", "--", *words.split())

    (shown,) = [command for command in dry["commands"] if command["kind"] == "training"]
    assert real.returncode == 1, real.stderr
    for node in ("node-10", "node-11"):
        seen = json.loads((cluster.folder / f"seen-{node}").read_text())
        assert seen["argv"] == shown["armed_arguments"]
        assert seen["post_mortem"] == "1"
    crashes = [json.loads(file.read_text()) for file in (cluster.folder / "through_srun" / "crashes").glob("*.json")]
    assert sorted(crash["exceptions"][0]["message"] for crash in crashes) == ["on node-10", "on node-11"]
    assert "LookupError: on node-1" in real.stderr


def test_a_batch_job_is_armed_after_sbatch_has_returned(cluster):
    (cluster.folder / "job.sh").write_text(
        f"#!/bin/bash\n#SBATCH -N1 -w node-12\nsrun {sys.executable} main_ppo.py actor_rollout_ref.x=1\n"
    )

    result = rldbg(cluster, "run", "--run", "batched", "--", "sbatch", "job.sh")

    assert result.returncode == 0, result.stderr
    assert "launch.detached" in result.stderr and "launch.not-armed" not in result.stderr
    seen = wait_for(lambda: (cluster.folder / "seen-node-12").exists(), "the job trains") and json.loads(
        wait_for(lambda: (cluster.folder / "seen-node-12").read_text(), "it has written")
    )
    assert "++trainer.total_epochs=1" in seen["argv"]
    assert seen["post_mortem"] == "1"
