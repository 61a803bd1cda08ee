"""Which jobs `rldbg stacks --slurm` looks at: squeue's answers decide, srun only takes numbers."""

import json
import os

import pytest

from rldbg.core import UnreachableError
from rldbg.live.unarmed.hosts import look_by_srun
from rldbg.live.unarmed.travelling import MARK


def _pretend(folder, monkeypatch, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/bash\n{script}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_every_running_job_of_an_array_is_looked_at_by_its_number(tmp_path, monkeypatch):
    # GIVEN an array of which two jobs run and one waits
    rows = "17 1 RUNNING None\\n18 2 RUNNING None\\n5 1 PENDING Resources\\n"
    _pretend(tmp_path, monkeypatch, "squeue", f"printf '{rows}'")
    _pretend(
        tmp_path, monkeypatch, "srun", f"""echo "$@" >> {tmp_path}/asked; echo "0: {MARK}"'[{{"of": "'"$1"'"}}]'"""
    )

    # WHEN one asks for the array
    found = look_by_srun("5", {}, python="python3")

    # THEN each running one was asked, by the number that srun takes
    assert [row["of"] for row in found] == ["--jobid=17", "--jobid=18"]
    asked = (tmp_path / "asked").read_text().splitlines()
    assert [json.loads(line.partition(" - ")[2])["slurm_job"] for line in asked] == ["17", "18"]
    assert "--nodes=1 " in asked[0] and "--nodes=2 " in asked[1]


def test_a_job_that_waits_is_said_to_wait(tmp_path, monkeypatch):
    _pretend(tmp_path, monkeypatch, "squeue", "echo 4 1 PENDING BeginTime")
    _pretend(tmp_path, monkeypatch, "srun", "exit 1")

    with pytest.raises(UnreachableError, match=r"job 4 is not running: squeue shows it as PENDING \(BeginTime\)"):
        look_by_srun("4", {}, python="python3")


def test_what_squeue_refuses_is_passed_on_with_a_next_step(tmp_path, monkeypatch):
    _pretend(tmp_path, monkeypatch, "squeue", "echo 'squeue: error: Invalid job id: abc' >&2; exit 1")
    _pretend(tmp_path, monkeypatch, "srun", "exit 1")

    with pytest.raises(UnreachableError, match="Invalid job id: abc") as caught:
        look_by_srun("abc", {}, python="python3")

    assert caught.value.hint == "see what `squeue` says"
