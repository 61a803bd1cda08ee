"""Several nodes: network namespaces with addresses and host names of their own, one file system, as on a cluster."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from free_networks import free_network, free_port
from live_job import LiveJob, output, until
from ray_stage import Stage

from rldbg.agent import BrokerAddress, WireError, dial

STEPS = """
import os, socket
def step(rank):
    where = socket.gethostname()
    breakpoint()
    return where
print("RESULT", step(int(os.environ["RANK"])), flush=True)
"""


class Node:
    """A second node: what runs in it has its own network and host name, and reaches us at `head`; without a route
    elsewhere (`routed=False`) nowhere else."""

    def __init__(self, name="second-node", *, routed=True):
        self.name = name
        network = free_network()
        number = network.rpartition(".")[2]
        self._space, self._near, far = f"rldbg{number}", f"rldn{number}", f"rldf{number}"
        self.head, self.address = f"{network}.1", f"{network}.2"
        inside = f"ip netns exec {self._space} ip"
        for line in (
            f"ip netns add {self._space}",
            f"ip link add {self._near} type veth peer name {far}",
            f"ip link set {far} netns {self._space}",
            f"ip addr add {self.head}/24 dev {self._near}",
            f"ip link set {self._near} up",
            f"{inside} addr add {self.address}/24 dev {far}",
            f"{inside} link set {far} up",
            f"{inside} link set lo up",
            *[f"{inside} route add default via {self.head}"] * routed,
        ):
            subprocess.run(line.split(), check=True, capture_output=True)

    def command(self, *words):
        """The same command on that node."""
        named = f'hostname {self.name} && exec "$@"'
        return ["ip", "netns", "exec", self._space, "unshare", "--uts", "sh", "-c", named, "sh", *map(str, words)]

    def remove(self):
        for line in (f"ip link del {self._near}", f"ip netns del {self._space}"):
            subprocess.run(line.split(), check=False, capture_output=True)


@pytest.fixture(scope="module")
def node():
    if os.geteuid() or shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("only root can make a second node here")
    try:
        made = Node()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr}")
    yield made
    made.remove()


@pytest.fixture
def networks(node):
    """Two nodes on networks of their own, of which neither leads to the other or anywhere else."""
    made = [Node(f"node-{number}", routed=False) for number in (1, 2)]
    yield made
    for each in made:
        each.remove()


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"], ids=["all interfaces", "as needed"])
def test_hosts_on_networks_of_their_own_reach_one_broker(networks, tmp_path, host):
    with LiveJob(tmp_path, host=host) as job:
        script = job.write("train.py", STEPS)
        for rank, node in enumerate(networks):
            far_python, *arguments = node.command(sys.executable, script)
            job.start(*arguments, python=far_python, RANK=rank)
        assert [p["host"] for p in job.wait_stopped(2)] == ["node-1", "node-2"]
        # AND each of these addresses is one that `rldbg run` announces
        place = BrokerAddress.read(job.run.path).place
        assert all(f"{node.head}:" in place for node in networks)
        # AND a command on either reaches it
        ps = [sys.executable, "-m", "rldbg", "ps", "--run", job.run.path]
        done = subprocess.run(networks[1].command(*ps), capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0 and "train/1" in done.stdout, done.stderr
        job.client.request("continue", who="all")
        assert all("RESULT node" in output(process) for process in job.processes)


def test_a_process_on_another_node_dials_out(node, tmp_path):
    with LiveJob(tmp_path, host=node.head) as job:
        script = job.write("train.py", STEPS)
        near = job.start(script, RANK=0)
        far_python, *arguments = node.command(sys.executable, script)
        far = job.start(*arguments, python=far_python, RANK=1)
        stopped = job.wait_stopped(2)
        assert [p["host"] for p in stopped] == [os.uname().nodename, "second-node"]
        answers = json.loads(job.rldbg("cast", "all", "p where", "--json").stdout)["answers"]
        assert [answer["value"] for answer in answers] == [os.uname().nodename, "second-node"]
        # Nothing over there listens: the connection was made from there.
        listening = subprocess.run(node.command("cat", "/proc/net/tcp"), capture_output=True, text=True, check=True)
        assert " 0A " not in listening.stdout
        assert "-> return where" in job.rldbg("attach", "1", "-c", "u").stdout
        groups = json.loads(job.rldbg("stacks", "--json").stdout)["groups"]
        assert [group["who"] for group in groups] == [["train/0", "train/1"]]
        job.client.request("continue", who="all")
        assert "RESULT second-node" in output(far) and "RESULT" in output(near)


TELLS = """
import sys, time
sys._rldbg_agent.tell_far_nodes(sys.argv[1])
time.sleep(600)
"""


def test_a_broker_on_loopback_widens_when_ray_has_another_node(node, tmp_path):
    with LiveJob(tmp_path) as job:
        address = BrokerAddress.read(job.run.path)
        # WHEN the driver's agent says that its cluster has another node, as it does once Ray knows it
        job.start(job.write("driver.py", TELLS), node.head)
        until(lambda: BrokerAddress.read(job.run.path) != address, "another address")
        # THEN the broker listens there too, and its token is still needed
        widened = BrokerAddress.read(job.run.path)
        assert (widened.host, widened.port, widened.token) == (node.head, address.port, address.token)
        with pytest.raises(WireError):
            dial((widened.host, widened.port), kind="client", token="wrong", about={})


def test_a_broker_on_loopback_widens_when_another_host_looks_for_it(node, tmp_path):
    with LiveJob(tmp_path) as job:
        # WHEN a launcher that nobody recognised starts a process on another host THEN that stops at its breakpoint
        far_python, *arguments = node.command(sys.executable, job.write("train.py", STEPS))
        far = job.start(*arguments, python=far_python, RANK=1)
        (stopped,) = job.wait_stopped()
        assert stopped["host"] == "second-node"
        assert BrokerAddress.read(job.run.path).host == node.head
        # AND so it is for the next broker of the run
        job.replace_broker()
        until(lambda: BrokerAddress.read(job.run.path).host == node.head, "the same address")
        assert [p["host"] for p in job.wait_stopped()] == ["second-node"]
        job.client.request("continue", who="all")
        assert "RESULT second-node" in output(far)


def test_a_command_on_another_host_reaches_a_broker_on_loopback(node, tmp_path):
    with LiveJob(tmp_path) as job:
        command = node.command(sys.executable, "-m", "rldbg", "ps", "--run", job.run.path)
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0 and "no processes" in done.stdout, done.stderr


@pytest.mark.soak
def test_workers_of_two_raylets_are_one_run(node, tmp_path):
    folder, port = Path(f"/tmp/rldbg-nodes-{os.getpid()}"), free_port()
    quiet = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token"}
    ray = str(Path(sys.executable).with_name("ray"))
    common = ["--num-cpus=2", "--object-store-memory=80000000", "--block", "--disable-usage-stats"]
    head = [ray, "start", "--head", f"--port={port}", f"--node-ip-address={node.head}", f"--temp-dir={folder}"]
    second = [ray, "start", f"--address={node.head}:{port}", f"--node-ip-address={node.address}"]
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": os.environ | quiet}
    # The broker begins on loopback: the driver's agent says that there is another node.
    with LiveJob(tmp_path) as job:
        raylets = [subprocess.Popen([*head, "--include-dashboard=false", *common], start_new_session=True, **options)]
        try:
            until(lambda: _answers(node.head, port), "the head node", 90)
            raylets.append(subprocess.Popen(node.command(*second, *common), start_new_session=True, **options))
            stage = Stage(job.environment | quiet, address=f"{node.head}:{port}", _node_ip_address=node.head)
            until(lambda: _nodes(f"{node.head}:{port}", quiet) == 2, "both nodes", 120)
            stage.play("spread_actors")
            until(lambda: len(job.stopped()) == 4, "four stopped workers", 180)
            assert {p["host"] for p in job.stopped()} == {os.uname().nodename, "second-node"}
            cast = json.loads(job.rldbg("cast", "all", "p secret", "--json").stdout)
            assert sorted(answer["value"] for answer in cast["answers"]) == [1, 8, 15, 22]
            job.rldbg("continue", "all")
            assert stage.result("spread_actors") == [1, 8, 15, 22]
            stage.end()
        finally:
            for raylet in raylets[::-1]:
                _end(raylet)
            shutil.rmtree(folder, ignore_errors=True)


def _answers(host, port):
    with socket.socket() as sock:
        return sock.connect_ex((host, port)) == 0


def _nodes(address, environment):
    code = f"import ray; ray.init('{address}', log_to_driver=False); print(sum(n['Alive'] for n in ray.nodes()))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    return int(done.stdout.split()[-1]) if done.stdout.split() else 0


def _end(process):
    """`ray start --block` and all that it started."""
    below = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for child in below:
        if child.is_running():
            child.kill()
