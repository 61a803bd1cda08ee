"""The tour of the README, shortened: every stop runs and ends as it should, and all of them share one Ray session."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(600)
def test_the_tour_visits_every_stop(tmp_path):
    command = [sys.executable, "-m", "rldbg", "demo", "--steps", "6", "--run", str(tmp_path / "tour"), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    body = json.loads(done.stdout)
    verbs = [stop["command"].split()[1] for stop in body["stops"]]
    assert verbs == ["train", "show", "show", "verify", "check", "train", "compare", "rerun", "rerun"]
    assert all(stop["exit_code"] == 0 for stop in body["stops"])
    assert (tmp_path / "tour" / "first" / "metrics.jsonl").read_text() != ""
