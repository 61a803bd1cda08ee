"""The published clients against the embedded server: `openai`, `litellm`, AReaL's own remote engines, TRL's.

AReaL and TRL pin other versions of what is installed here, so they are installed alone, with the few packages they
import, beside ours.
"""

import json
import subprocess
from pathlib import Path

import pytest
from client_environments import TRL, environment_with
from serve_shell import serving

SCRIPTS = Path(__file__).parent / "serve_clients"
AREAL = ("areal==1.0.4", "colorlog", "tenacity", "torchdata", "lark", "numba", "llvmlite", "einops", "openai",
         "sniffio", "jiter", "pybase64", "orjson", "aiofiles")  # fmt: skip

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    with serving(home, "--model", "tiny") as started:
        yield started["addresses"][0], str(home / "models" / "tiny")


def drive(python, script, *arguments):
    ran = subprocess.run(
        [str(python), str(SCRIPTS / script), *arguments], capture_output=True, text=True, timeout=300, cwd="/"
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return json.loads(ran.stdout.splitlines()[-1])


def test_openai_and_litellm(server):
    report = drive(
        environment_with("openai", ["openai==2.54.0", "litellm==1.106.2"]), "drive_openai.py", f"http://{server[0]}"
    )
    assert report["models"] == ["tiny"]
    first, second = report["completion_ids"]
    assert first == second == report["streamed_ids"] and len(first) == 6
    assert len(report["completion_logprobs"]) == 6 and max(report["completion_logprobs"]) < 0
    assert report["top_logprobs"] == [2] * 6 and report["streamed_text"] == report["whole_text"]
    assert report["usage"] == {"prompt_tokens": 4, "completion_tokens": 12, "total_tokens": 16}
    assert report["chat_top"] == [3] * 5 and len(report["chat_logprobs"]) == 5
    assert report["chat_usage"] == 5 and report["finish"] == "length"
    assert "temperature" in report["refused"]
    assert report["chat"] == report["chat_streamed"] == report["litellm"] == report["litellm_streamed"]


def test_areals_remote_engines(server):
    python = environment_with("areal", AREAL, beside_ours=True)
    report = drive(python, "drive_areal.py", *server)
    for kind in ("sglang", "vllm"):
        seen = report[kind]
        assert len(seen["tokens"]) == 6 and seen["stop"] == "length" and seen["episodes"] == 4
        assert seen["resumed"] == 300
    assert report["sglang"]["tokens"] == report["vllm"]["tokens"]
    assert report["sglang"]["logprobs"] == pytest.approx(report["vllm"]["logprobs"], abs=1e-5)


def test_trls_client(server):
    python = environment_with("trl", TRL, beside_ours=True)
    report = drive(python, "drive_trl.py", f"http://{server[0]}")
    assert (report["model"], report["world_size"]) == ("tiny", 1)
    made, scored = report["generated"], report["scored"]
    assert made["prompt_ids"] == [[5, 12, 6, 16], [7, 8]] and [len(row) for row in made["completion_ids"]] == [6] * 4
    assert made["completion_ids"][::2] == made["completion_ids"][1::2] == scored_tokens(scored)
    drawn = [[place[0] for place in row] for row in made["logprobs"][::2]]
    for row, again in zip(drawn, scored["actual_logprobs"], strict=True):
        assert row == pytest.approx([place[0] for place in again], abs=1e-5)
    assert [[len(place) for place in row] for row in report["likeliest"]["logprobs"]] == [[3] * 6] * 2
    assert len(report["texts"]["prompt_ids"][0]) == 4
    assert len(report["chat"]["prompt_ids"]) == 2 and len(report["chat"]["completion_ids"]) == 4
    assert "no weight-transfer engine" in report["no weights"]


def scored_tokens(scored):
    return [[place[0] for place in row] for row in scored["actual_token_ids"]]
