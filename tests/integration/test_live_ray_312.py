"""Ray on Python 3.12: plain breakpoints, exceptions (whose stacks Ray's own debugger shows wrongly), armed jobs."""

import json
import os
from pathlib import Path

import pytest
from live_job import LiveJob, rldbg, until
from other_python import python_with
from ray_stage import Cluster, Stage

from rldbg.live import connect_target, stop_broker

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def python():
    return python_with("3.12", "ray[default]", "debugpy")


@pytest.fixture(scope="module")
def cluster(python):
    cluster = Cluster(Path(f"/tmp/rldbg-312-{os.getpid()}"), python=python)
    yield cluster
    with connect_target(None, cluster.url) as client:
        folder = client.run
    stop_broker(folder)
    cluster.end()


def test_an_exception_is_shown_where_it_was_raised(cluster):
    cluster.stage.play("crash")
    with connect_target(None, cluster.url) as client:
        until(lambda: client.request("ps")["processes"], "the paused task", 90)
    commands = ("-c", "p reason", "-c", "u", "-c", "p global_step", "-c", "exc")
    text = rldbg("attach", "all", "--ray", cluster.url, *commands).stdout
    assert "'a zero in the batch'" in text and "\n31\n" in text and "RuntimeError" in text
    rldbg("continue", "all", "--ray", cluster.url)
    assert "RuntimeError" in cluster.stage.result("crash")


def test_plain_breakpoints_are_shown_in_the_users_frame(cluster):
    cluster.stage.play("actors")
    with connect_target(None, cluster.url) as client:
        until(lambda: len(client.request("ps")["processes"]) == 4, "four paused workers", 90)
    listed = json.loads(rldbg("ps", "--ray", cluster.url, "--json").stdout)["processes"]
    assert {p["function"].rpartition(".")[2] for p in listed} == {"step"}
    cast = json.loads(rldbg("cast", "all", "p secret", "--ray", cluster.url, "--json").stdout)
    assert sorted(answer["value"] for answer in cast["answers"]) == [1, 8, 15, 22]
    rldbg("continue", "all", "--ray", cluster.url)
    assert cluster.stage.result("actors") == [1, 8, 15, 22]


def test_an_armed_job_stops_steps_crashes_and_ends(cluster, python, tmp_path):
    with LiveJob(tmp_path) as job:
        environment = job.environment | {"RAY_AUTH_MODE": "token", "SCENE_HOOK": "1"}
        stage = Stage(environment, python=python, address=cluster.stage.gcs_address)
        stage.play("actors")
        assert {p["python"][:4] for p in job.wait_stopped(4)} == {"3.12"}
        assert "secret" in job.rldbg("attach", "dtensor_policy_worker/2", "-c", "locals", "-c", "n").stdout
        job.rldbg("continue", "all")
        assert stage.result("actors") == [1, 8, 15, 22]
        stage.play("child")
        (stopped,) = job.wait_stopped()
        assert "'popen'" in job.rldbg("attach", stopped["who"], "-c", "p kind", "-c", "c").stdout
        assert stage.result("child") == 0
        stage.play("crash")
        assert "RuntimeError" in stage.result("crash")
        (file,) = until(lambda: list((job.run.path / "crashes").glob("*.json")), "a crash file")
        assert "'a zero in the batch'" in job.rldbg("attach", str(file), "-c", "p reason", run=None).stdout
        stage.end()
