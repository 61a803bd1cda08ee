"""Profiles of workers on a node that does not see the run folder are gathered through Ray."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from live_job import until
from profile_jobs import POLICY, profile, short_folder

FAR = "far-node"
JOB = (
    POLICY
    + """
@ray.remote(num_cpus=0)
class PolicyWorker(Policy):
    def train(self):
        super().train()
        return os.uname().nodename

ray.init(address=os.environ["CLUSTER"], logging_level="error")
workers = [PolicyWorker.options(resources={place: 1}).remote() for place in ("near", "far")]
for step in range(3):
    where = ray.get([worker.train.remote() for worker in workers])
print("trained on", where, flush=True)
"""
)


@pytest.fixture
def cluster(tmp_path):
    """Two raylets; the second has another host name and an empty folder in the place of ours."""
    alone = ["unshare", "--mount", "--uts", "sh", "-c"]
    if shutil.which("unshare") is None or subprocess.run([*alone, "hostname x"], capture_output=True).returncode:
        pytest.skip("another node needs namespaces of its own, which this machine does not give")
    ray = str(Path(sys.executable).with_name("ray"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    common = ["--node-ip-address=127.0.0.1", "--object-store-memory=80000000", "--num-cpus=1", "--block"]
    port = f"--port={address.rpartition(':')[2]}"
    head = [ray, "start", "--head", port, "--include-dashboard=false", '--resources={"near":9}', *common]
    second = [ray, "start", f"--address={address}", '--resources={"far":9}', *common]
    hidden = f'hostname {FAR} && mount -t tmpfs none {tmp_path} && exec "$@"'
    names = ("RLDBG", "RAY_", "NRL_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    environment |= {"RAY_TMPDIR": str(short_folder(tmp_path)), "RAY_AUTH_MODE": "disabled"}
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
    raylets = [subprocess.Popen([*head, f"--temp-dir={short_folder(tmp_path)}"], start_new_session=True, **options)]
    try:
        until(lambda: answers(address), "the head node", 120)
        raylets.append(subprocess.Popen([*alone, hidden, "sh", *second], start_new_session=True, **options))
        yield address
    finally:
        for raylet in reversed(raylets):
            raylet.terminate()
            raylet.wait(60)


def answers(address):
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.mark.timeout(400)
def test_profiles_of_a_node_without_the_run_folder_are_brought(cluster, tmp_path):
    (tmp_path / "job.py").write_text(JOB)
    window = ("--workers", "*policy*", "--steps", "2:3", "--tool", "torch", "--run", "run")
    done = profile(tmp_path, *window, "--", "python", "job.py", CLUSTER=cluster, RAY_AUTH_MODE="disabled")
    assert done.returncode == 0 and FAR in done.stdout, done.stderr
    found = json.loads((tmp_path / "run" / "profiles" / "manifest.json").read_text())
    assert found["missing"] == [], done.stderr
    by_node = {entry["node"]: entry for entry in found["profiles"]}
    assert set(by_node) == {FAR, os.uname().nodename}
    assert all(Path(file["path"]).stat().st_size > 0 for entry in by_node.values() for file in entry["files"])
    assert f"from node {FAR}" in done.stderr and by_node[FAR]["places"], "its place over there is told too"
    merged = profile(tmp_path, "timeline", "run", "--json")
    clocks = {clock["host"]: clock for clock in json.loads(merged.stdout)["clocks"]}
    far = clocks[FAR]
    assert abs(far["offset_ms"]) <= far["known_to_ms"] + 5, "it is the same machine, after all"
