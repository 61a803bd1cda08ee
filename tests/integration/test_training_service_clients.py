"""The real tinker and nex-weaver clients, as published, against the service: create, train, sample; the loss falls.

Each client is installed once into an environment of its own under .venvs/, which later runs use again.
"""

import json
import math
import os
import signal
import subprocess
from pathlib import Path

import pytest
from client_environments import environment_with
from serve_shell import ServeShell, serving

SCRIPTS = Path(__file__).parent / "training_clients"

# Installing nex-weaver brings torch with it, which takes minutes the first time.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def tinker_python():
    return environment_with("tinker", ["tinker==0.38.0"])


@pytest.fixture(scope="module")
def weaver_python():
    return environment_with("nex-weaver", ["nex-weaver==1.19.2"], torch=True)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("home"), "--backend", "train", "--model", "tiny") as started:
        yield started


def drive(python, script, server):
    command = [str(python), str(SCRIPTS / script), f"http://{server['addresses'][0]}"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert ran.returncode == 0, ran.stdout[-500:] + ran.stderr[-4000:]
    return json.loads(ran.stdout.splitlines()[-1])


# The published client was once aborted by its own threads, without a word.
@pytest.mark.flaky(reruns=2)
def test_the_tinker_client_trains_and_samples(tinker_python, service):
    report = drive(tinker_python, "drive_tinker.py", service)
    assert report["models"] == ["tiny"]
    assert report["tokenized"] == [5, 12, 6, 16]
    assert report["losses"][-1] < report["losses"][0] / 50
    assert report["sampled"] == [[11, 1]] * 4 and report["stop_reason"] == "stop"
    assert report["sample_logprobs"] == pytest.approx(report["scored_logprobs"][-2:], abs=1e-5)
    assert report["scored_logprobs"][0] is None
    # On the weights that made them the samples have ratio 1, so the loss is minus their advantages.
    assert report["importance_sampling"]["loss:sum"] == pytest.approx(-2.0, abs=1e-5)
    assert report["importance_sampling"]["ratio/max:max"] == pytest.approx(1.0, abs=1e-5)
    assert report["returned_logprobs"][-2:] == pytest.approx(report["sample_logprobs"], abs=1e-5)
    assert report["ppo"]["loss:sum"] == pytest.approx(-2.0, abs=1e-5)
    assert report["cispo"]["loss:sum"] == pytest.approx(-sum(report["sample_logprobs"]), abs=1e-5)
    assert report["gspo"]["loss:sum"] == pytest.approx(-2.0, abs=1e-5)
    assert report["dro"]["loss:sum"] > report["cispo"]["loss:sum"], "its quadratic pull counts prompt positions too"
    assert report["grad_norm"] > 0
    weights = sum((number + 1) / 3000 for number in range(3000))
    assert report["many"]["loss:sum"] == pytest.approx(report["one"]["loss:sum"] * weights, rel=1e-4)
    assert report["many"]["tokens:sum"] == 6000
    assert report["restored"]["loss:sum"] == pytest.approx(report["one"]["loss:sum"], rel=1e-5)
    assert report["named"] == [11, 1]
    run, path = report["run"]
    assert run in report["runs"] and path == f"tinker://{run}/weights/kept" and path in report["all_checkpoints"]
    assert report["checkpoints"] == ["weights/kept", "sampler_weights/named"] and report["left"] == ["weights/kept"]
    assert any(run in models for models in report["sessions"])
    assert (
        report["unknown_loss"].startswith("BadRequestError")
        and "unknown loss: 'no_such_loss'" in report["unknown_loss"]
    )
    assert "outside the vocabulary" in report["outside"]
    assert report["no_snapshot"].startswith("NotFoundError")
    assert report["after_errors"] == 12, "refused requests do not stop the next"


def test_the_weaver_client_trains_and_samples(weaver_python, service):
    report = drive(weaver_python, "drive_weaver.py", service)
    assert report["models"] == ["tiny"]
    assert report["decoded"] == "3+4=9"
    assert report["losses"][-1] < report["losses"][0] / 50
    assert report["binary_losses"] == pytest.approx(report["losses"], rel=1e-5), "tensors as JSON or binary are one"
    rows = [report[name] for name in ("losses", "whole_losses", "small_losses")]
    assert rows[0][0] == pytest.approx(rows[1][0], rel=1e-6) and rows[0][0] == pytest.approx(rows[2][0], rel=1e-6)
    assert all(row[-1] < row[0] / 2 for row in rows), "the client's default is adapters of rank 32"
    assert len({round(row[-1], 6) for row in rows}) == 3
    assert report["sampled"] == [[11, 1]] * 4 and report["text"] == "9"
    assert report["sample_logprobs"] == pytest.approx(report["scored_logprobs"][-2:], abs=1e-5)
    assert report["importance_sampling"]["loss"] == pytest.approx(-2 * 1.0 + 2 * 0.5, abs=1e-5)
    assert report["ppo"]["tokens"] == 4 and report["outputs"] == 2
    assert report["custom"] == pytest.approx(-sum(report["sample_logprobs"]), abs=1e-4)
    assert report["grad_norm"] > 0
    assert report["checkpoints"] == [True]
    assert math.isclose(*report["restored"], rel_tol=1e-5)
    assert report["unknown_loss"].startswith("WeaverAPIError: [400] invalid_request: unknown loss: 'nope'")
    assert report["no_snapshot"].startswith("WeaverAPIError: [404] not_found")
    assert report["after_errors"] == 14


def test_the_weaver_client_is_told_soon_when_the_service_is_killed(weaver_python, tmp_path):
    shell = ServeShell(tmp_path)
    server = shell.up("--backend", "train", "--model", "tiny")
    url = f"http://{server['addresses'][0]}"
    client = subprocess.Popen(
        [str(weaver_python), str(SCRIPTS / "drive_weaver.py"), url, "killed"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert client.stdout.readline() == "ready\n"
        os.kill(server["processes"][0]["pid"], signal.SIGKILL)
        report = json.loads(client.communicate("go\n", timeout=120)[0])
    finally:
        client.kill()
    assert "transport_unavailable" in report["error"]
    assert report["seconds"] < 60, "three attempts of its own, not its minutes of patience"
    assert shell.ask("ls", code=1)["servers"][0]["state"] == "crashed"
    shell.run("down", "train")
