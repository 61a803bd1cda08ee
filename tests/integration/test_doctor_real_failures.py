"""Failures provoked on a real Ray: each is diagnosed right from the logs that it really produces."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from live_job import until

from rldbg.doctor import Library, SearchIndex, diagnose
from rldbg.doctor.machine.fixes import steps_of
from rldbg.doctor.machine.probes import Machine

JOBS = Path(__file__).with_name("doctor_jobs.py")
FAST_LOSS = {"RAY_gcs_rpc_server_reconnect_timeout_s": "5", "RAY_gcs_server_request_timeout_seconds": "5"}


@pytest.fixture(scope="module")
def index():
    return SearchIndex(Library.load())


class Cluster:
    """One head on this machine, in a folder of its own; only its own processes are ever ended."""

    def __init__(self, folder, **variables):
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.environment = os.environ | variables | {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
        command = ["start", "--head", "--node-ip-address=127.0.0.1", f"--port={self.address.split(':')[1]}"]
        command += ["--num-cpus=4", "--include-dashboard=false", f"--temp-dir={folder}", "--disable-usage-stats"]
        command += ["--object-store-memory=80000000"]
        ray = Path(sys.executable).with_name("ray")
        subprocess.run([ray, *command], env=self.environment, check=True, timeout=150, capture_output=True)

    def start(self, name, folder="-"):
        command = [sys.executable, "-u", str(JOBS), name, self.address, str(folder)]
        return subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=self.folder
        )

    def processes(self, word=""):
        found = []
        for process in psutil.process_iter(("cmdline",)):
            line = " ".join(process.info["cmdline"] or [])
            if str(self.folder) in line and word in line:
                found.append(process)
        return found

    def stop(self):
        family = [p for owner in self.processes() for p in (owner, *owner.children(recursive=True))]
        for process in family:
            if process.pid != os.getpid() and process.is_running():
                process.kill()
        psutil.wait_procs(family, timeout=10)


@pytest.fixture(scope="module")
def cluster():
    folder = Path(f"/tmp/rldbg-doc-{os.getpid()}")
    found = Cluster(folder)
    yield found
    found.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def waiting(cluster):
    """Jobs that wait out a timeout before they fail: begun together, looked at when their tests come."""
    jobs = {name: cluster.start(name) for name in ("gloo_after_unknown", "gloo_after_missing_module", "port_taken")}
    yield jobs
    for job in jobs.values():
        job.kill()
        job.communicate()


def finding_of(job, log, index):
    """What the doctor says of a job's output, when it has ended."""
    try:
        output, _ = job.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        job.kill()
        raise
    log.write_bytes(output)
    return diagnose([log], index=index)


@pytest.fixture
def diagnosed(cluster, waiting, index, tmp_path):
    def run(name, folder="-"):
        return finding_of(waiting.pop(name, None) or cluster.start(name, folder), tmp_path / f"{name}.log", index)

    return run


def causes(found):
    return [cause.id for cause in found.root_causes]


def fallout(found):
    return {cause.id for cause in found.fallout}


def test_a_healthy_job_gives_no_finding_in_its_log_nor_in_the_session(cluster, index, tmp_path):
    found = finding_of(cluster.start("healthy"), tmp_path / "healthy.log", index)
    assert (found.verdict, found.fallout) == ("healthy", ())
    session = diagnose([cluster.folder], index=index)
    assert (session.verdict, causes(session), session.fallout) == ("healthy", [], ()), session.first_error


def test_a_worker_killed_from_outside_is_unknown_with_places_to_look(diagnosed):
    found = diagnosed("dead_worker")
    assert (found.verdict, causes(found)) == ("unknown", [])
    assert "ray-actor-died" in fallout(found)
    assert any("dmesg" in step for step in found.next)


def test_a_crash_in_native_code_is_unknown_and_its_stack_is_pointed_at(diagnosed):
    found = diagnosed("segfault")
    assert (found.verdict, causes(found)) == ("unknown", [])
    assert {"process-segfault", "ray-actor-died"} <= fallout(found)


def test_the_limit_of_threads_is_named(diagnosed):
    assert causes(diagnosed("thread_limit")) == ["os-thread-limit"]


def test_a_module_missing_in_the_runtime_env_is_named(diagnosed, tmp_path):
    found = diagnosed("missing_in_runtime_env", tmp_path)
    assert causes(found) == ["python-module-missing"]
    assert "my_project_rewards" in found.root_causes[0].evidence[0].text


def test_another_version_of_ray_is_named(diagnosed):
    assert causes(diagnosed("other_version")) == ["ray-version-mismatch"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs needs root")
def test_a_full_disk_behind_a_checkpoint_is_named(diagnosed, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", small], check=True)
    try:
        assert causes(diagnosed("full_disk", small)) == ["ckpt-write-failed"]
    finally:
        subprocess.run(["umount", small], check=True)


def test_a_taken_port_is_named(diagnosed):
    assert causes(diagnosed("port_taken")) == ["port-in-use"]


def test_a_gloo_timeout_behind_an_unknown_exception_shows_that_exception(diagnosed):
    found = diagnosed("gloo_after_unknown")
    assert (found.verdict, causes(found)) == ("unknown", [])
    assert found.first_error.headline == "KeyError: 'reward of sample 17'"
    assert fallout(found) & {"gloo-recv-timeout", "gloo-peer-closed"}


def test_a_gloo_timeout_behind_a_known_failure_names_that_failure(diagnosed):
    found = diagnosed("gloo_after_missing_module")
    assert causes(found) == ["python-module-missing"]
    assert fallout(found) & {"gloo-recv-timeout", "gloo-peer-closed"}


def test_every_node_is_probed_through_ray(cluster):
    rldbg = Path(sys.executable).with_name("rldbg")
    environment = cluster.environment | {"RAY_ADDRESS": cluster.address}
    done = subprocess.run([rldbg, "doctor", "--json"], env=environment, capture_output=True, text=True, timeout=120)
    probes = json.loads(done.stdout)["probes"]
    nodes = {probe["node"] for probe in probes if "node" in probe}
    assert len(nodes) == 1, done.stderr
    assert {probe["id"] for probe in probes if "node" in probe} >= {"shm-size", "memory", "debugger-variables"}
    assert [probe["status"] for probe in probes if probe["id"] == "versions-equal"] == ["pass"]


def test_a_cluster_that_does_not_answer_is_exit_5(cluster):
    rldbg = Path(sys.executable).with_name("rldbg")
    environment = cluster.environment | {"RAY_ADDRESS": "127.0.0.1:1"}
    done = subprocess.run([rldbg, "doctor", "--json"], env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, json.loads(done.stdout)["error"]["kind"]) == (5, "unreachable")


def test_a_session_that_nobody_uses_is_stopped_when_asked(cluster, tmp_path):
    def steps_for_it():
        found = steps_of("stop-stale-ray", machine=Machine(), home=tmp_path)
        return [step for step in found if str(cluster.folder) in step.text]

    # The workers of jobs that failed a moment ago use it for as long as Ray takes to end them.
    steps = until(steps_for_it, "no worker and no driver uses the session", timeout_s=90)
    assert len(steps) == 1
    daemons = [process for process in cluster.processes() if process.name() in ("gcs_server", "raylet")]
    assert daemons
    steps[0].act()
    assert not [daemon for daemon in daemons if daemon.is_running() and daemon.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture
def own_cluster(request):
    """A cluster with other settings than the shared one, or one that the test will break."""
    folder = Path(f"/tmp/rldbg-own-{os.getpid()}")
    found = Cluster(folder, **request.param)
    yield found
    found.stop()
    shutil.rmtree(folder, ignore_errors=True)


NO_MEMORY_LEFT = {"RAY_memory_usage_threshold": "0.01", "RAY_memory_monitor_refresh_ms": "250"}


@pytest.mark.parametrize("own_cluster", [NO_MEMORY_LEFT], indirect=True)
def test_a_task_that_ray_killed_for_memory_is_named(own_cluster, index, tmp_path):
    output, _ = own_cluster.start("hog").communicate(timeout=90)
    (tmp_path / "hog.log").write_bytes(output)
    assert causes(diagnose([tmp_path / "hog.log"], index=index)) == ["ray-host-oom-killed"]
    session = diagnose([own_cluster.folder], index=index)
    assert causes(session)[:1] == ["ray-host-oom-killed"]


@pytest.mark.parametrize("own_cluster", [FAST_LOSS], indirect=True)
def test_a_lost_head_is_unknown_and_its_own_log_is_pointed_at(own_cluster, index, tmp_path):
    job = own_cluster.start("lost_head", tmp_path)
    deadline = time.monotonic() + 60
    while not (tmp_path / "ready").exists():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    for process in own_cluster.processes("gcs_server"):
        process.send_signal(signal.SIGKILL)
    output, _ = job.communicate(timeout=120)
    (tmp_path / "head.log").write_bytes(output)
    lost = diagnose([tmp_path / "head.log"], index=index)
    assert (lost.verdict, causes(lost)) == ("unknown", [])
    assert "ray-gcs-lost" in fallout(lost)
    assert any("gcs_server.out" in step for step in lost.next)
