"""Recordings over the wire: a proxy records what passes by, a recording answers as the engine did, a run repeats."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from rldbg.core import Run
from rldbg.recording import open as open_recording

ROOT = Path(__file__).parents[2]
RLDBG = Path(sys.executable).with_name("rldbg")


class Shell:
    """`rldbg serve` with a home of its own."""

    def __init__(self, home):
        self.environment = os.environ | {"RLDBG_HOME": str(home)}

    def run(self, *arguments, code=0):
        ran = subprocess.run(
            [RLDBG, "serve", *map(str, arguments), "--json"],
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=150,
        )
        assert ran.returncode == code, ran.stdout + ran.stderr
        return json.loads(ran.stdout)

    def up(self, *arguments):
        return self.run("up", *arguments)["server"]["addresses"][0]


@pytest.fixture
def shell(tmp_path):
    shell = Shell(tmp_path / "home")
    yield shell
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
    engine = shell.up("--model", "tiny", "--name", "engine")
    proxy = shell.up("--backend", "proxy", "--upstream", f"http://{engine}", "--out", tmp_path / "run", "--name", "p")
    first = conversation(proxy)
    told = json.loads(urllib.request.urlopen(f"http://{proxy}/get_model_info", timeout=30).read())
    assert told["served_model_name"] == "tiny", "other requests pass as they are"
    with pytest.raises(urllib.error.HTTPError, match="400"):
        post(proxy, "/generate", {"input_ids": "x"})
    post(proxy, "/update_weights_from_disk", {"model_path": told["model_path"], "weight_version": "7"})
    later = json.loads(post(proxy, "/generate", {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 3}}))
    shell.run("down", "engine")
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(proxy, "/generate", {"input_ids": [5]})
    assert caught.value.code == 502 and engine in caught.value.read().decode(), "an engine that is gone is told at once"
    (report,) = shell.run("down", "p")["reports"]["p"]
    assert "10 generations are recorded" in report["summary"] and not report["findings"]

    recording = shell.up("--backend", "recording", tmp_path / "run", "--model", "tiny", "--name", "again")
    assert conversation(recording) == first
    post(recording, "/update_weights_from_disk", {"model_path": told["model_path"], "weight_version": "7"})
    again = json.loads(post(recording, "/generate", {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 3}}))
    assert again["output_ids"] == later["output_ids"] and again["meta_info"]["weight_version"] == "7"
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(recording, "/v1/completions", {"prompt": [5, 6, 7]})
    assert caught.value.code == 404 and "nearest recorded prompt" in caught.value.read().decode()
    report = shell.run("down", "again", code=1)["reports"]["again"][0]
    assert report["facts"]["consumed"] == report["facts"]["generations"] == 10
    assert report["findings"][0]["id"] == "serve.unknown_prompt"


def train(folder, *overrides):
    from rldbg.trainer import read_recipe
    from rldbg.trainer import train as run_training

    settings = ["steps=3", "++cluster.in_process=true", "policy.ranks=1", "warm_start.max_steps=10"]
    settings += ["data.prompts_per_step=4", "data.max_turns=2", "++debug.enable_data_dump=true"]
    settings += [f"++debug.dump_options.{kind}=true" for kind in ("trajectory", "loss", "param")]
    run_training(
        read_recipe(ROOT / "recipes" / "arithmetic.yaml", [*settings, *overrides]), Run.create(name="t", path=folder)
    )


def test_a_run_trained_against_its_recording_is_the_same_bit_for_bit(shell, tmp_path):
    train(tmp_path / "original")
    address = shell.up("--backend", "recording", tmp_path / "original", "--name", "r")
    train(tmp_path / "again", f"++inference.addresses=['{address}']")
    report = shell.run("down", "r")["reports"]["r"][0]
    assert report["facts"]["consumed"] == report["facts"]["generations"] and not report["findings"]
    metrics = [
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("original", "again")
    ]
    for one, other in zip(*metrics, strict=True):
        assert {key: value for key, value in one.items() if "time" not in key} == {
            key: value for key, value in other.items() if "time" not in key
        }
    parameters = [
        {
            str(record.key) + str(record.fields["param_name"]): record.array("param")
            for record in open_recording(tmp_path / name).records("param")
        }
        for name in ("original", "again")
    ]
    assert parameters[0] and parameters[0].keys() == parameters[1].keys()
    assert all(np.array_equal(value, parameters[1][name]) for name, value in parameters[0].items())
