"""`rldbg compare --on-ray` on a real Ray cluster gives the same result as in one process, with and without a token."""

import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from layout_recordings import step_values, write

TOKEN = "5f0c" * 16
# Starts a cluster of two workers, says where it is, and keeps it until its standard input ends.
CLUSTER = """
import ray, sys
context = ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False)
print(context.address_info["address"], flush=True)
sys.stdin.read()
"""


class Cluster(NamedTuple):
    """Where it is, and the environment of somebody who may use it."""

    address: str
    admitted: Mapping[str, str]
    stranger: Mapping[str, str]


@pytest.fixture(scope="module", params=["token", "disabled"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp("home")
    file = home / "of_the_cluster"
    file.write_text(TOKEN + "\n")
    stranger = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_AUTH_", "RAY_ADDRESS"))}
    stranger |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "HOME": str(home)}
    admitted = stranger | {"RAY_AUTH_TOKEN_PATH": str(file)} if request.param == "token" else stranger
    child = subprocess.Popen(
        [sys.executable, "-c", CLUSTER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=admitted | {"RAY_AUTH_MODE": request.param},
    )
    assert child.stdin is not None and child.stdout is not None
    try:
        yield Cluster(child.stdout.readline().strip(), admitted, stranger)
    finally:
        child.stdin.close()
        child.wait(timeout=90)


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("sides")
    values = step_values()
    changed = copy.deepcopy(values)
    changed["log_probs"][9] = changed["log_probs"][9] - np.float32(0.25)
    write(folder / "a", values, ranks=3, micro=2)
    write(folder / "b", changed, ranks=2, micro=3)
    return folder / "a", folder / "b"


def compare(*arguments: object, env: Mapping[str, str]) -> tuple[int, dict]:
    command = [sys.executable, "-m", "rldbg", "compare", *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=env)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.timeout(500)
def test_the_cluster_gives_the_same_result(cluster: Cluster, sides: tuple[Path, Path]) -> None:
    alone = compare(*sides, "--jobs", "1", env=cluster.stranger)
    assert alone[0] == 1 and alone[1]["first_difference"]["sample"] == "g2/1"
    assert compare(*sides, "--on-ray", "--ray-address", cluster.address, env=cluster.admitted) == alone
    # A token that nobody asked for, and the address where Ray looks for it.
    named = cluster.admitted | {"RAY_AUTH_TOKEN": TOKEN, "RAY_ADDRESS": cluster.address}
    assert compare(*sides, "--on-ray", env=named) == alone


@pytest.mark.timeout(500)
@pytest.mark.parametrize("cluster", ["token"], indirect=True)
def test_a_refusal_is_told_at_once(cluster: Cluster, sides: tuple[Path, Path]) -> None:
    def refusal(**variables: str) -> str:
        environment = cluster.stranger | variables
        code, said = compare(*sides, "--on-ray", "--ray-address", cluster.address, env=environment)
        assert code == 3 and said["error"]["kind"] == "prerequisite"
        return f"{said['error']['message']} / {said['error']['hint']}"

    assert "none was found / set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH" in refusal()
    assert "refuses the token that was found / set RAY_AUTH_TOKEN" in refusal(RAY_AUTH_TOKEN="0" * 64)
    assert "RAY_AUTH_MODE=disabled" in refusal(RAY_AUTH_TOKEN=TOKEN, RAY_AUTH_MODE="disabled")
    assert "no token was found / unset RAY_AUTH_MODE" in refusal(RAY_AUTH_MODE="token")
