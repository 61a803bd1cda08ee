"""The tour of the README: every stop runs and shows what it promises."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(900)
def test_the_tour_finds_what_it_promises(tmp_path):
    command = [sys.executable, "-m", "rldbg", "demo", "--run", str(tmp_path / "tour")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    promised = [line for block in re.findall(r"```text\n(.*?)```", readme, re.DOTALL) for line in block.splitlines()]
    assert len(promised) >= 8
    for line in promised:
        assert line in said, line
    assert said.count("$ rldbg train") == 2 and said.count("$ rldbg run") == 3


def test_a_stop_by_itself_and_a_bug_that_does_not_exist(tmp_path):
    command = [sys.executable, "-m", "rldbg", "demo", "--run", str(tmp_path / "tour")]
    crash = subprocess.run([*command, "--only", "crash", "--json"], capture_output=True, text=True, timeout=170)
    assert crash.returncode == 0, crash.stderr
    (played,) = json.loads(crash.stdout)["commands"]
    assert played["stop"] == "crash" and played["exit_code"] == 1 and "torchrun" in played["command"]
    unknown = subprocess.run([*command, "--bug", "clip-hihg"], capture_output=True, text=True, timeout=60)
    assert unknown.returncode == 2 and "clip-high" in unknown.stderr
