"""The published SDKs of agents, unchanged, against the embedded server through the proxy, and then its recording."""

import json
import subprocess
from pathlib import Path

import pytest
from client_environments import environment_with

from byte_model import byte_folder
from rldbg.inference.application import build_application
from rldbg.inference.embedded.loading import load_backend
from rldbg.inference.protocols.route_fields import ROUTE_FIELDS
from rldbg.inference.proxy.application import build_proxy
from rldbg.inference.proxy.generation_recorder import GenerationRecorder
from served_application import served

# A new release may have a new field: `make soak` looks at the newest ones.
SDKS = ("openai==3.51.0", "anthropic==2.10.0", "openai-agents==0.24.0", "litellm==1.83.0", "inspect_ai==0.3.285",
        "verifiers==0.1.10", "langchain-openai==1.7.3", "langchain-anthropic==1.7.7")  # fmt: skip

pytestmark = pytest.mark.timeout(600)


def recorded(folder, model):
    from rldbg.inference.backend import ModelCard
    from rldbg.inference.embedded.text import load_text
    from rldbg.inference.recorded.backend import RecordedBackend
    from rldbg.inference.recorded.generations import RecordedGenerations

    text, tokenizer = load_text(model)
    ends = frozenset({tokenizer.eos_token_id, tokenizer.pad_token_id})
    card = ModelCard("bytes", "", 1 << 20, 1 << 20, ends, "float32", text, scores_prompts=False)
    return RecordedBackend(RecordedGenerations.read(folder), card)


def test_every_sdk_calls_tools_and_its_recording_answers_the_same(tmp_path):
    model = byte_folder(tmp_path / "bytes")
    recorder = GenerationRecorder(tmp_path / "recording")
    with open(tmp_path / "errors", "w") as errors:
        job = subprocess.Popen(
            [str(environment_with("agents", SDKS)), str(Path(__file__).with_name("agent_sdks_job.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=tmp_path,
        )  # fmt: skip

    def drive(address):
        print(address, file=job.stdin, flush=True)
        report = next((line for line in job.stdout if line.startswith('{"openai_chat"')), None)
        assert report, (tmp_path / "errors").read_text()[-4000:]
        return json.loads(report)

    try:
        with (
            served(lambda: build_application(load_backend(model, name="bytes", device="cpu"))) as engine,
            served(lambda: build_proxy(engine, recorder, guard=[], at_end=lambda: None)) as proxy,
        ):
            first = drive(proxy)
        backends = []

        def replay():
            backends.append(recorded(tmp_path / "recording", model))
            return build_application(backends[0])

        with served(replay) as address:
            again = drive(address)
    finally:
        job.stdin.close()
        job.wait(60)
        job.stdout.close()
    city = ("Rome", "Oslo")
    chat, responses, messages = (first[name] for name in ("openai_chat", "openai_responses", "anthropic_messages"))
    assert chat[:2] == ["tool_calls", "weather"] and {chat[2]["city"], chat[3]} <= set(city) and chat[5] == "bytes"
    assert responses[0] == "weather" and responses[1]["city"] in city and responses[6] in city
    assert responses[3:5] == ["response.created", "response.completed"]
    assert messages[0] == "tool_use" and messages[1]["city"] in city and messages[4:] == [True, ["text"]]
    calls, place, kind, calls_by_chat, place_by_chat, kind_by_chat = first["openai_agents"]
    assert (calls, kind, calls_by_chat, kind_by_chat) == (1, "str", 1, "str") and {place, place_by_chat} <= set(city)
    assert [name for name, _ in first["with_litellm"]] == ["weather"] * 3
    assert first["with_inspect"] == [["weather", "tool_calls"]] * 3
    assert first["with_langchain"][:4] == [["look", True]] * 4 and first["with_verifiers"] == [1, 1.0]
    assert again == first
    unknown = {path: set(names) - ROUTE_FIELDS[path].keys() for path, names in first["fields"].items()}
    assert not any(unknown.values()), unknown
    facts = backends[0].summary()
    assert facts["unknown_prompts"] == 0 and facts["consumed"] == facts["generations"]
    assert not [finding for finding in recorder.report()["findings"] if finding["severity"] != "info"]


# Their newest versions do not fit beside the newest of the others. litellm does not install mcp, which it imports.
NEWEST = {"litellm": ("litellm>=1.106", "mcp"), "verifiers": ("verifiers>=0.4",)}


@pytest.mark.soak
@pytest.mark.parametrize("name", NEWEST)
def test_the_newest_sdks_that_need_an_environment_of_their_own(name, tmp_path):
    model = byte_folder(tmp_path / "bytes")
    python = environment_with(f"newest-{name}", NEWEST[name])
    job = Path(__file__).with_name("newest_sdks_job.py")
    with served(lambda: build_application(load_backend(model, name="bytes"))) as base:
        ran = subprocess.run([str(python), str(job), name, base, str(model)], capture_output=True, text=True,
                             timeout=400)  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    seen = json.loads(ran.stdout.splitlines()[-1])
    if name == "litellm":
        assert seen.pop("responses") == "incomplete", "five tokens are not enough"
        assert seen == {key: ["weather", True, True] for key in ("hosted_vllm", "openai", "anthropic")}
    else:
        assert seen.pop("train") == [8, 8]
        assert seen == {f"{key}Dialect": ["weather", True] for key in ("Chat", "Responses", "Anthropic")}
