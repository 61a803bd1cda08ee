"""Recordings over the wire: a proxy records what passes by, a recording answers as the engine did, a run repeats."""

import json
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from serve_shell import RLDBG, ServeShell

from rldbg.core import Run, UnreachableError
from rldbg.recording import open as open_recording

ROOT = Path(__file__).parents[2]
IN_PROCESS = "++cluster.in_process=true"


@pytest.fixture
def shell(tmp_path):
    shell = ServeShell(tmp_path / "home")
    yield shell
    # A server that was not asked everything it has ends with 1.
    subprocess.run([RLDBG, "serve", "down", "--all"], env=shell.environment, capture_output=True, timeout=60)


def post(address, path, body, timeout=60):
    request = urllib.request.Request(
        f"http://{address}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=timeout) as response:
        return response.read().decode()


def events(text):
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def conversation(address):
    """The same questions by every protocol; what was answered, in one form."""
    sampling = {"max_new_tokens": 6, "temperature": 1.0, "ignore_eos": True}
    chat = {"messages": [{"role": "user", "content": "1+2="}], "max_tokens": 5, "ignore_eos": True}
    completion = {"max_tokens": 5, "ignore_eos": True, "logprobs": 0, "return_token_ids": True}
    answers = {
        "batch": [
            (item["output_ids"], [entry[0] for entry in item["meta_info"]["output_token_logprobs"]])
            for item in json.loads(
                post(
                    address,
                    "/generate",
                    {"input_ids": [[5, 6], [7, 8, 9]], "sampling_params": sampling, "return_logprob": True},
                )
            )
        ],
        "text": json.loads(post(address, "/generate", {"text": "3+4=", "sampling_params": sampling}))["text"],
        "stream": events(
            post(address, "/generate", {"input_ids": [4, 4], "sampling_params": sampling, "stream": True})
        )[-1]["output_ids"],
        "completions": [
            (choice["token_ids"], choice["logprobs"]["token_logprobs"])
            for choice in json.loads(post(address, "/v1/completions", completion | {"prompt": [6, 6], "n": 3}))[
                "choices"
            ]
        ],
        "chat": json.loads(post(address, "/v1/chat/completions", chat))["choices"][0]["message"]["content"],
    }
    streamed = events(post(address, "/v1/chat/completions", chat | {"stream": True, "temperature": 0.5}))
    return answers | {
        "chat stream": "".join(part["choices"][0]["delta"].get("content", "") for part in streamed if part["choices"])
    }


def test_what_a_proxy_recorded_is_answered_again_over_every_protocol(shell, tmp_path):
    engine = shell.address("--model", "tiny", "--name", "engine")
    proxy = shell.address(
        "--backend", "proxy", "--upstream", f"http://{engine}", "--out", tmp_path / "run", "--name", "p"
    )
    first = conversation(proxy)
    told = json.loads(urllib.request.urlopen(f"http://{proxy}/get_model_info", timeout=30).read())
    assert told["served_model_name"] == "tiny", "other requests pass as they are"
    with pytest.raises(urllib.error.HTTPError, match="400"):
        post(proxy, "/generate", {"input_ids": "x"})
    post(proxy, "/update_weights_from_disk", {"model_path": told["model_path"], "weight_version": "7"})
    later = json.loads(post(proxy, "/generate", {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 3}}))
    shell.ask("down", "engine")
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(proxy, "/generate", {"input_ids": [5]})
    assert caught.value.code == 502 and engine in caught.value.read().decode(), "an engine that is gone is told at once"
    (report,) = shell.ask("down", "p")["reports"]["p"]
    assert "10 generations are recorded" in report["summary"] and not report["findings"]

    recording = shell.address("--backend", "recording", tmp_path / "run", "--model", "tiny", "--name", "again")
    assert conversation(recording) == first
    post(recording, "/update_weights_from_disk", {"model_path": told["model_path"], "weight_version": "7"})
    again = json.loads(post(recording, "/generate", {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 3}}))
    assert again["output_ids"] == later["output_ids"] and again["meta_info"]["weight_version"] == "7"
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(recording, "/v1/completions", {"prompt": [5, 6, 7]})
    assert caught.value.code == 404 and "nearest recorded prompt" in caught.value.read().decode()
    report = shell.ask("down", "again", code=1)["reports"]["again"][0]
    assert report["facts"]["consumed"] == report["facts"]["generations"] == 10
    assert report["findings"][0]["id"] == "serve.unknown_prompt"


def train(folder, *overrides):
    from rldbg.trainer import read_recipe
    from rldbg.trainer import train as run_training

    settings = ["steps=3", "policy.ranks=1", "warm_start.max_steps=10", "data.prompts_per_step=4", "data.max_turns=2"]
    settings += ["++debug.enable_data_dump=true"]
    settings += [f"++debug.dump_options.{kind}=true" for kind in ("trajectory", "loss", "param")]
    run_training(
        read_recipe(ROOT / "recipes" / "arithmetic.yaml", [*settings, *overrides]), Run.create(name="t", path=folder)
    )


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A run with a sampler of its own."""
    folder = tmp_path_factory.mktemp("original") / "run"
    train(folder, IN_PROCESS)
    return folder


def assert_the_same_run(original, again):
    """Every metric but the times, and every recorded parameter, bit for bit."""
    for one, other in zip(untimed_metrics(original), untimed_metrics(again), strict=True):
        assert one == other
    parameters, repeated = recorded_parameters(original), recorded_parameters(again)
    assert parameters and parameters.keys() == repeated.keys()
    assert all(np.array_equal(value, repeated[name]) for name, value in parameters.items())


def untimed_metrics(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if "time" not in key} for line in lines]


def recorded_parameters(run):
    return {
        str(record.key) + str(record.fields["param_name"]): record.array("param")
        for record in open_recording(run).records("param")
    }


def assert_all_consumed(report):
    assert report["facts"]["consumed"] == report["facts"]["generations"] and not report["findings"]


def test_a_run_trained_against_its_recording_is_the_same_bit_for_bit(shell, original, tmp_path):
    address = shell.address("--backend", "recording", original, "--name", "r")
    served = f"++inference.addresses=['{address}']"
    train(tmp_path / "again", IN_PROCESS, served)
    assert_all_consumed(shell.ask("down", "r")["reports"]["r"][0])
    assert_the_same_run(original, tmp_path / "again")
    with pytest.raises(UnreachableError, match=f"the inference server at {address} does not answer"):
        train(tmp_path / "late", IN_PROCESS, served)


def test_a_run_on_ray_against_a_recording_is_the_same_bit_for_bit(shell, original, tmp_path):
    """Two rollout workers ask one server at once, in whatever order they come, and each gets its own samples."""
    address = shell.address("--backend", "recording", original, "--name", "r")
    train(tmp_path / "again", "rollout_worker.resource.num_workers=2", f"++inference.addresses=['{address}']")
    assert_all_consumed(shell.ask("down", "r")["reports"]["r"][0])
    assert_the_same_run(original, tmp_path / "again")
