"""`rldbg compare --on-ray` on a real Ray cluster gives the same result as in one process."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from layout_recordings import step_values, write

# Starts a cluster of two workers, says where it is, and keeps it until its standard input ends.
CLUSTER = """
import ray, sys
context = ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False)
print(context.address_info["address"], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def cluster():
    environment = os.environ | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    environment.pop("RAY_ADDRESS", None)
    child = subprocess.Popen(
        [sys.executable, "-c", CLUSTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert child.stdin is not None and child.stdout is not None
    try:
        yield child.stdout.readline().strip()
    finally:
        child.stdin.close()
        child.wait(timeout=90)


def compare(*arguments: object) -> tuple[int, dict]:
    command = [sys.executable, "-m", "rldbg", "compare", *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.timeout(500)
def test_the_cluster_gives_the_same_result(cluster: str, tmp_path: Path) -> None:
    values = step_values()
    changed = copy.deepcopy(values)
    changed["log_probs"][9] = changed["log_probs"][9] - np.float32(0.25)
    write(tmp_path / "a", values, ranks=3, micro=2)
    write(tmp_path / "b", changed, ranks=2, micro=3)
    alone = compare(tmp_path / "a", tmp_path / "b", "--jobs", "1")
    assert alone[0] == 1 and alone[1]["first_difference"]["sample"] == "g2/1"
    assert compare(tmp_path / "a", tmp_path / "b", "--on-ray", "--ray-address", cluster) == alone
