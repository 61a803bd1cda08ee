"""Ray clusters that rldbg did not start: plain breakpoints, post-mortem, the driver, the legacy debugger, tokens."""

import json
import os
import re
from pathlib import Path

import pytest
from free_networks import free_port
from live_job import LiveJob, output, rldbg, until
from ray_stage import Stage, plain_environment

from rldbg.agent import Arming
from rldbg.live import connect_target


def _stop_broker_of(url):
    folder = Path(f"/tmp/rldbg-{os.getuid()}") / f"ray-{url.removeprefix('http://').replace(':', '-')}"
    if (folder / "broker.json").exists():
        rldbg("broker", "stop", run=folder, check=False)


@pytest.fixture(scope="module")
def cluster(ray_cluster):
    yield ray_cluster
    _stop_broker_of(ray_cluster.url)


def _ps(url):
    return json.loads(rldbg("ps", "--ray", url, "--json").stdout)["processes"]


def _wait(url, count):
    with connect_target(None, url) as client:
        until(lambda: len(client.request("ps")["processes"]) >= count, f"{count} paused", 90)
    return _ps(url)


def test_nothing_stopped_explains_the_usual_reasons(cluster):
    done = rldbg("ps", "--ray", cluster.url)
    assert "driver" in done.stdout and "stopped" not in done.stdout and "debugpy is not installed" in done.stderr


def test_a_cluster_on_loopback_answers_a_client_that_uses_the_address_of_its_host(cluster):
    host = plain_environment() | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
    done = rldbg("stacks", "--ray", cluster.stage.gcs_address, env=host, timeout_s=100)
    assert "ray_scenes.py" in done.stdout


def test_plain_breakpoints_are_listed_held_and_continued(cluster):
    cluster.stage.play("actors")
    listed = _wait(cluster.url, 4)
    assert {(p["role"], p["state"], p["function"]) for p in listed} == {("dtensor_policy_worker", "stopped", "step")}
    assert all(p["file"].endswith("ray_scenes.py") and p["line"] and p["pid"] for p in listed)
    assert all("DTensorPolicyWorker" in p["ray"]["task"] for p in listed)
    cast = json.loads(rldbg("cast", "all", "p secret", "--ray", cluster.url, "--json").stdout)
    assert sorted(answer["value"] for answer in cast["answers"]) == [1, 8, 15, 22]
    # Clients have come and gone; the workers are still where they were, and Ray no longer lists them.
    again = _ps(cluster.url)
    assert len(again) == 4 and all(p["state"] == "stopped" for p in again)
    text = rldbg("attach", f"@{listed[0]['pid']}", "--ray", cluster.url, "-c", "n", "-c", "locals", "-c", "w").stdout
    assert "secret = " in text and "ray_scenes.py" in text
    rldbg("continue", "all", "--ray", cluster.url)
    assert cluster.stage.result("actors") == [1, 8, 15, 22]


def test_a_failed_task_is_shown_at_the_raising_frame(cluster):
    cluster.stage.play("crash")
    (paused,) = _wait(cluster.url, 1)
    assert paused["reason"] == "exception" and paused["function"].endswith("inner")
    text = rldbg("attach", "all", "--ray", cluster.url, "-c", "p reason", "-c", "u", "-c", "p global_step").stdout
    assert "'a zero in the batch'" in text and "\n31\n" in text
    rldbg("continue", "all", "--ray", cluster.url)
    assert "RuntimeError" in cluster.stage.result("crash")


def test_the_driver_is_listed_too(cluster):
    cluster.stage.play("driver")
    (paused,) = _wait(cluster.url, 1)
    assert paused["role"] == "driver"
    assert "'the driver'" in rldbg("attach", "driver", "--ray", cluster.url, "-c", "p here", "-c", "c").stdout
    assert cluster.stage.result("driver") == "the driver"


def test_ray_address_is_understood(cluster):
    done = rldbg("ps", "--json", env=plain_environment() | {"RAY_ADDRESS": cluster.url, "RLDBG_HOME": "/nonexistent"})
    assert json.loads(done.stdout)["processes"] == []


def test_a_wrong_token_is_a_clear_error(cluster, tmp_path):
    _stop_broker_of(cluster.url)
    environment = plain_environment() | {"RAY_AUTH_TOKEN": "wrong" * 10}
    done = rldbg("ps", "--ray", cluster.url, "--json", check=False, env=environment)
    error = json.loads(done.stdout)["error"]
    assert done.returncode == 3 and error["kind"] == "prerequisite"
    assert "token" in error["message"] and "RAY_AUTH_TOKEN" in error["hint"]


def test_no_dashboard_is_a_clear_error():
    done = rldbg("ps", "--ray", f"http://127.0.0.1:{free_port()}", check=False)
    assert done.returncode == 5 and "no Ray dashboard" in done.stderr


def test_the_legacy_debugger_is_listed_and_attachable(cluster):
    cluster.stage.play("legacy_task")
    (paused,) = _wait(cluster.url, 1)
    assert paused["role"] == "reward" and paused["file"].endswith("ray_scenes.py") and paused["pid"]
    commands = ("-c", "p doubled", "-c", "n", "-c", "w", "-c", "p nope")
    text = rldbg("attach", "reward", "--ray", cluster.url, *commands, check=False).stdout
    assert re.search(r"^12$", text, re.MULTILINE) and "*** NameError" in text
    rldbg("continue", "all", "--ray", cluster.url)
    assert cluster.stage.result("legacy_task") == 12
    until(lambda: not _ps(cluster.url), "what was continued to be listed no more")


def _says_what_is_open(folder):
    logs = (path.read_text(errors="replace") for path in folder.rglob("worker-*.err"))
    return any("without a token" in text and "Task paused, waiting for debugger" in text for text in logs)


def test_ray_breakpoints_leaves_rays_own_path_and_says_what_is_open(cluster, tmp_path):
    with LiveJob(tmp_path, arming=Arming(ray_breakpoints=True)) as job:
        stage = Stage(job.environment | {"RAY_AUTH_MODE": "token"}, address=cluster.stage.gcs_address)
        stage.play("task")
        (paused,) = _wait(cluster.url, 1)
        assert paused["role"] == "reward" and not job.stopped()
        until(lambda: _says_what_is_open(cluster.folder), "the worker's log to say what is open")
        rldbg("continue", "all", "--ray", cluster.url)
        assert stage.result("task") == 10
        stage.end()


def test_under_uv_run_workers_are_armed_all_the_same(tmp_path):
    with LiveJob(tmp_path) as job:
        code = "import json, ray._private.runtime_env.uv_runtime_env_hook as u; print(json.dumps(u.hook({})))"
        armed = json.loads(output(job.start("-c", code)).splitlines()[-1])
    assert armed["env_vars"]["RLDBG_RUN"] == str(job.run.path) and "startup" in armed["env_vars"]["PYTHONPATH"]
