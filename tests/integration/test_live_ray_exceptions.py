"""Exceptions in Ray jobs: what the program may handle does not stall it, and what it does not is one stop."""

import json

import pytest
from live_job import LiveJob, output, until

from rldbg.agent import Arming

BEGIN = """
import os, ray
from ray.util.queue import Empty, Queue
ray.init(address=os.environ["CLUSTER"], log_to_driver=False)
class Done(Exception): pass
@ray.remote(num_cpus=0.1)
class Policy:
    def act(self):
        raise Done("the episode is over")
    def late(self):
        raise TimeoutError("the environment is slow")
    def fail(self, n):
        doubled = n * 2
        raise ValueError(f"bad batch {doubled}")
@ray.remote(num_cpus=0.1)
class Server:
    async def ping(self):
        return "PONG"
    async def fail(self):
        tokens = [1, 2, 3]
        raise ValueError("no such prompt")
def caught(call, kind):
    try:
        call()
    except kind:
        return kind.__name__
policy = Policy.remote()
"""
HANDLES = """
queue = Queue(actor_options={"num_cpus": 0.1})
print("HANDLED", caught(queue.get_nowait, Empty), caught(lambda: ray.get(policy.late.remote()), TimeoutError),
      caught(lambda: ray.get(policy.act.remote()), Done), flush=True)
print("REPEATED", [caught(lambda: ray.get(policy.fail.remote(n)), ValueError) for n in range(3)], flush=True)
"""
ASYNC = """
server = Server.remote()
caught(lambda: ray.get(server.fail.remote()), ValueError)
print(ray.get(server.ping.remote()), flush=True)
ray.get(policy.fail.remote(4))
"""


def _line(process, word):
    """The first line that holds a word; the test's own time limit ends a wait in vain."""
    return next((line for line in process.stdout if word in line), "the program has ended")


@pytest.fixture
def job(tmp_path, ray_cluster):
    arming = Arming(post_mortem_wait_s=60.0, pass_exceptions=("Done",))
    # The cluster is on loopback, as the stage's drivers are.
    loopback = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    variables = loopback | {"CLUSTER": ray_cluster.stage.gcs_address, "RAY_AUTH_MODE": "token"}
    with LiveJob(tmp_path, arming=arming, environment=variables) as job:
        yield job


def test_handled_exceptions_do_not_stall_a_job(job):
    process = job.start(job.write("train.py", BEGIN + HANDLES))
    # WHEN queues are empty, calls time out and the program's own control flow raises THEN nothing is held
    assert _line(process, "HANDLED") == "HANDLED Empty TimeoutError Done\n"
    # AND the first exception of a kind is held, the later ones are recorded
    (stopped,) = job.wait_stopped()
    assert (stopped["function"], stopped["reason"]) == ("Policy.fail", "exception")
    assert "0\n" in job.rldbg("attach", "policy", "-c", "p doubled", "-c", "c").stdout
    text = output(process)
    assert "REPEATED ['ValueError', 'ValueError', 'ValueError']" in text and process.returncode == 0
    # AND nothing else is recorded
    crashes = [json.loads(path.read_text()) for path in (job.run.path / "crashes").glob("*.json")]
    assert [crash["exceptions"][0]["type"] for crash in crashes] == ["ValueError"] * 3


def test_one_failure_is_one_stop_and_async_actors_go_on(job):
    process = job.start(job.write("train.py", BEGIN + ASYNC))
    # WHEN a method of an async actor fails THEN its other methods answer while the exception can be looked at
    assert _line(process, "PONG") == "PONG\n"
    stopped = job.wait_stopped(2)
    assert sorted(each["function"] for each in stopped) == ["Policy.fail", "Server.fail"]
    assert "[1, 2, 3]" in job.rldbg("attach", "server", "-c", "p tokens").stdout
    # AND the driver, which ends of the other failure, is no further stop but waits for whoever is looked at
    job.client.request("continue", who="policy")
    assert "waiting while server is held" in _line(process, "waiting while")
    assert [each["who"] for each in job.stopped()] == ["server"]
    job.client.request("continue", who="server")
    output(process)
    assert process.returncode == 1


THREADS = """
import threading
def first(): raise ValueError("one")
def second(): raise KeyError("two")
def third(): raise RuntimeError("three")
for target in (first, second, third, first):
    thread = threading.Thread(target=target); thread.start(); thread.join()
"""


def test_all_holds_of_a_run_share_one_limit(tmp_path):
    with LiveJob(tmp_path, arming=Arming(post_mortem_wait_s=15.0)) as job:
        process = job.start(job.write("train.py", THREADS))
        job.wait_stopped()
        job.client.request("continue", who="all")
        text = output(process)
    # The second exception is held for what the first has left, the third for nothing, the last is of a known kind.
    assert text.count("waiting up to") == 2 and "15 s of 15 s are left" in text, text
    assert "the 15 s for all exceptions of this run are used up" in text


SLOW = """
import os, pathlib, sys, time
def wait_for(name):
    while not pathlib.Path(os.environ["GATES"], name).exists():
        time.sleep(0.02)
if "default_worker" in sys.argv[0]:
    wait_for("import")
class Policy:
    def __init__(self, rank):
        wait_for("init")
        self.rank = rank
    def step(self):
        breakpoint()
        return self.rank
"""
NAMED = """
import os, ray, slow_policy
variables = {"env_vars": {"GATES": os.environ["GATES"]}}
ray.init(address=os.environ["CLUSTER"], log_to_driver=False, runtime_env=variables)
Policy = ray.remote(num_cpus=0.1)(slow_policy.Policy)
@ray.remote(num_cpus=0.1)
def reward():
    breakpoint()
    return 7
policies = [Policy.options(name=f"policy_{rank}").remote(rank) for rank in range(2)]
print("RESULT", ray.get([policy.step.remote() for policy in policies]), ray.get(reward.remote()), flush=True)
"""


def test_actors_have_their_names_from_the_start_and_tasks_theirs_in_any_folder(job):
    folder = job.folder / "ray"
    folder.mkdir()
    job.write("ray/slow_policy.py", SLOW)
    process = job.start(job.write("ray/train.py", NAMED), GATES=folder)
    # WHEN the actors import their class THEN they are known by their names
    until(lambda: _names(job, "policy") == ["policy_0", "policy_1"], "actors that import")
    (folder / "import").touch()
    # AND with their ranks as soon as their constructors have them
    until(lambda: _names(job, "policy") == ["policy/0", "policy/1"], "actors that are being made")
    (folder / "init").touch()
    job.wait_stopped(2)
    assert _names(job, "policy") == ["policy/0", "policy/1"]
    job.client.request("continue", who="policy/0:2")
    until(lambda: [p["who"] for p in job.stopped()] == ["reward"], "the task")
    job.client.request("continue", who="all")
    assert "RESULT [0, 1] 7" in output(process)


def _names(job, part):
    return sorted(p["who"] for p in job.ps() if part in p["who"])
