"""`rldbg tunnel` on a real Slurm of four nodes, each with a network and an sshd of its own, from Debian packages."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import closing, nullcontext

import pytest
from free_networks import free_port
from slurm_cluster import NEEDS_SLURM, RLDBG, Cluster, run, running_cluster, wait_for

DASHBOARD = """\
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"version": "4", "ray_version": "2.60.0", "node": sys.argv[3]}).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
"""

pytestmark = NEEDS_SLURM


@pytest.fixture(scope="module")
def cluster():
    with running_cluster() as made:
        yield made


def job_script(cluster: Cluster, node: int, address: str, port: int = 8265, log: bool = True) -> str:
    """A job over all nodes whose dashboard is on one of them, in the manner of NeMo RL's ray.sub."""
    (cluster.folder / "dashboard.py").write_text(DASHBOARD)
    said = f"ray start --head --dashboard-host={address} --node-ip-address={cluster.net}.{node} --dashboard-port={port}"
    folder = f"{cluster.folder}/$SLURM_JOB_ID-logs"
    return (
        f"#!/bin/bash\nmkdir -p {folder}\n"
        + (f'echo "{said}" > {folder}/ray-head.log\n' if log else "")
        + f"srun --overlap -N1 -n1 -w node-{node} {sys.executable} dashboard.py {address} {port} node-{node}\n"
    )


@pytest.fixture(scope="module")
def job(cluster):
    """A real Ray head on the node that sorts first by name, its dashboard bound to the node's own address."""
    address = f"{cluster.net}.10"
    start = (
        f"ray start --head --node-ip-address={address} --dashboard-host={address} --num-cpus=1 --disable-usage-stats "
        f"--temp-dir={cluster.folder}/ray --block"
    )
    script = (
        "#!/bin/bash\nexport RAY_AUTH_MODE=disabled\nmkdir -p $SLURM_JOB_ID-logs\n"
        f'srun --overlap -N1 -n1 -w node-10 -o $SLURM_JOB_ID-logs/ray-head.log bash -xc "{start}"\n'
    )
    number = cluster.submit(script, "-N4", "--job-name=ray-cluster-longname")
    wait_for(lambda: reachable(address, 8265), "the dashboard is up", timeout_s=120)
    yield number
    cluster.command("scancel", number)


def reachable(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((host, port)) == 0


def is_ray(url: str) -> bool:
    """Whether a real dashboard's version came through."""
    return wait_for(lambda: version_at(url).get("ray_version"), "the dashboard answers") == ray_version()


def ray_version() -> str:
    import importlib.metadata

    return importlib.metadata.version("ray")


def version_at(url: str) -> dict:
    with closing(http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)) as connection:
        try:
            connection.request("GET", "/api/version")
            return json.loads(connection.getresponse().read())
        except OSError:
            return {}


def test_jobs_that_have_no_nodes(cluster):
    wait_for(lambda: not cluster.command("squeue", "-h", "-o", "%i").split(), "the jobs of other tests end")
    array = cluster.submit("#!/bin/bash\nsleep 30\n", "--array=1-3%1", "-N1", "-w", "node-12", "--hold")
    listed = cluster.tunnel()
    assert listed.returncode == 5
    assert f"{array}_[1-3" in listed.stderr
    waiting = cluster.tunnel(f"{array}_[1-3%1]")
    assert waiting.returncode == 5
    assert "PENDING" in waiting.stderr and "no nodes yet" in waiting.stderr
    cluster.command("scancel", array)
    failed = cluster.submit("#!/bin/bash\nexit 3\n", "-N1")
    wait_for(lambda: "JobState=FAILED" in cluster.command("scontrol", "show", "job", "-o", failed), "the job fails")
    ended = cluster.tunnel(failed)
    assert ended.returncode == 5
    assert "FAILED" in ended.stderr
    assert "no such job: '99999'" in cluster.tunnel("99999").stderr


def test_several_jobs_are_offered(cluster):
    jobs = [cluster.submit("#!/bin/bash\nsleep 60\n", "-N1", f"--job-name={name}") for name in ("one", "two")]
    try:
        wait_for(lambda: len(cluster.command("squeue", "-h", "-t", "R", "-o", "%i").split()) == 2, "both run")
        offered = cluster.tunnel()
        assert offered.returncode == 2
        assert all(number in offered.stderr for number in jobs)
    finally:
        for number in jobs:
            cluster.command("scancel", number)


def test_head_that_is_not_the_first_node_and_not_on_localhost(cluster, job):
    with cluster.open_tunnel() as (told, _):
        assert is_ray(told["url"])
        assert told["goal"] == f"job {job} (ray-cluster-longname)"
        assert told["target"] == f"{cluster.net}.10:8265"


def test_from_a_laptop_through_the_login_node_with_the_port_taken(cluster, job):
    laptop = {
        name: value for name, value in cluster.environment.items() if name not in ("SLURM_CONF", "LD_LIBRARY_PATH")
    }
    laptop["PATH"] = os.environ["PATH"]
    try:
        listener = socket.create_server(("127.0.0.1", 8265))
    except OSError:  # the dashboard of another test's cluster listens there, and may end at any time
        listener = None
    with listener or nullcontext(), cluster.open_tunnel("--login", "login", job, environment=laptop) as (told, _):
        assert listener is None or not told["url"].endswith(":8265")
        assert is_ray(told["url"])
        assert told["command"][told["command"].index("-J") + 1] == "login"


def test_jump_host_and_print(cluster, job):
    port = free_port()
    printed = cluster.tunnel("--print", "--jump", "node-12", "--port", str(port), job)

    assert printed.returncode == 0, printed.stderr
    assert f"-J node-12 -L 127.0.0.1:{port}:{cluster.net}.10:8265 node-10" in printed.stdout
    with cluster.open_tunnel("--jump", "node-12", "--port", str(port), job) as (told, _):
        assert is_ray(f"http://127.0.0.1:{port}")
        assert told["url"] == f"http://127.0.0.1:{port}"
    with socket.create_server(("127.0.0.1", port)):
        refused = cluster.tunnel("--port", str(port), job)
    assert refused.returncode == 2
    assert "already in use" in refused.stderr


def test_tunnel_survives_a_lost_connection_and_ends_with_its_job(cluster):
    number = cluster.submit(job_script(cluster, 12, f"{cluster.net}.12", 8270), "-N1", "-w", "node-12")
    wait_for(lambda: reachable(f"{cluster.net}.12", 8270), "the dashboard is up")
    with cluster.open_tunnel(number) as (told, process):
        kill_children(process)
        wait_for(lambda: version_at(told["url"]).get("node") == "node-12", "the connection is back")
        cluster.command("scancel", number)
        wait_for(lambda: not reachable(f"{cluster.net}.12", 8270), "the dashboard is gone")
        kill_children(process)
        assert process.wait(timeout=120) == 0
        assert process.stderr is not None
        said = process.stderr.read()
    assert "connecting again" in said
    assert "the job has ended" in said
    assert "Permanently added" not in said and "bind [::1]" not in said


def kill_children(process: subprocess.Popen) -> None:
    for child in run("pgrep", "-P", process.pid).stdout.split():
        os.kill(int(child), signal.SIGKILL)


def test_dashboard_on_localhost_found_by_asking_the_nodes(cluster):
    number = cluster.submit(job_script(cluster, 11, "127.0.0.1", 8266, log=False), "-N4")
    try:
        wait_for(lambda: b"node-11" in ask_inside(cluster, 11, 8266), "the dashboard is up")
        with cluster.open_tunnel("--dashboard-port", "8266", number) as (told, _):
            assert version_at(told["url"])["node"] == "node-11"
            assert told["target"] == "localhost:8266"
        silent = cluster.tunnel("--dashboard-port", "8299", number)
        assert silent.returncode == 5
        assert "listens on port 8299" in silent.stderr
    finally:
        cluster.command("scancel", number)


def ask_inside(cluster: Cluster, node: int, port: int) -> bytes:
    code = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{port}/api/version', timeout=2).read())"
    words = ["nsenter", f"--net=/var/run/netns/{cluster.tag}{node}", sys.executable, "-c", code]
    return subprocess.run(words, capture_output=True, check=False).stdout


def test_node_that_lets_nobody_in(cluster):
    number = cluster.submit(job_script(cluster, 9, f"{cluster.net}.9"), "-N1", "-w", "node-9")
    try:
        wait_for(lambda: reachable(f"{cluster.net}.9", 8265), "the dashboard is up")
        from_login = cluster.tunnel(number)
        assert from_login.returncode == 5
        assert "is refused" in from_login.stderr
        with cluster.open_tunnel("--login", "login", number) as (told, _):
            assert version_at(told["url"])["node"] == "node-9"
    finally:
        cluster.command("scancel", number)


def test_broker_of_a_run_inside_the_job_is_forwarded_too(cluster, job):
    """One tunnel is enough: `rldbg ps` works here against a broker there."""
    run_folder = cluster.folder / ".rldbg" / "runs" / "inside"
    run_folder.mkdir(parents=True)
    code = (
        "import json, sys, os\nfrom rldbg.live.service import ServiceOptions, serve\nfrom pathlib import Path\n"
        f"serve(ServiceOptions(run=Path({str(run_folder)!r}), host={cluster.net + '.10'!r}, owner_pid={os.getpid()}))\n"
    )
    broker = subprocess.Popen(["nsenter", f"--net=/var/run/netns/{cluster.tag}10", sys.executable, "-c", code])
    try:
        wait_for(lambda: (run_folder / "broker.json").exists(), "the broker is up")
        with cluster.open_tunnel(job) as (told, _):
            assert told["broker_run"]
            listed = subprocess.run(
                [*RLDBG, "ps", "--json", "--run", told["broker_run"]],
                cwd=cluster.folder,
                env=cluster.environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            assert listed.returncode == 0, listed.stderr
            assert json.loads(listed.stdout)["processes"] == []
            assert (cluster.folder / told["broker_run"] / "broker.json").stat().st_mode & 0o077 == 0
    finally:
        broker.terminate()
        broker.wait()
