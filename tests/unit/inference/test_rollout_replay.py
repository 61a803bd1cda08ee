"""A rollout answered from its own recorded exchanges, and rollouts with injected faults."""

import json
import sys
from types import SimpleNamespace

import httpx
import pytest

from rldbg.core import IncompleteDataError, Run
from rldbg.inference.request_error import RequestError
from rldbg.inference.workflows import RolloutRequest, rollout, rollout_run
from rldbg.inference.workflows.agent_protocols import AgentProtocols
from rldbg.inference.workflows.exchanges import ExchangeLog, RecordedExchanges, ReplayDiverged
from rldbg.inference.workflows.faults import KINDS, fault_of
from rldbg.replay import ReplayRollout
from rldbg.reports.rollout import to_terminal
from small_server import rows, small_server

AGENT = """
import json

class Agent:
    async def run(self, data, base_url, http_client):
        messages = [{"role": "user", "content": data["prompt"]}]
        tools = [{"type": "function", "function": {"name": "calculator", "parameters": {}}}]
        for turn in range(2):
            body = {"messages": messages, "tools": tools}
            answer = await http_client.post(base_url + "/chat/completions", json=body)
            CHECK
            message = answer.json()["choices"][0]["message"]
            messages.append(message)
            for call in message.get("tool_calls", ()):
                json.loads(call["function"]["arguments"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": "RESULT"})
        return 1.0

class Broken:
    async def run(self, data, base_url, http_client):
        messages = [{"role": "user", "content": data["prompt"]}]
        body = {"messages": messages, "tools": [{"type": "function", "function": {"name": "calculator"}}]}
        answer = await http_client.post(base_url + "/chat/completions", json=body)
        message = answer.json()["choices"][0]["message"]
        messages.append({name: value for name, value in message.items() if value and name != "refusal"})
        messages.append({"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "oops"})
        await http_client.post(base_url + "/chat/completions", json=body)
        raise KeyError("turn 2")

class Responder:
    async def run(self, data, base_url, http_client):
        items, previous = [{"role": "user", "content": data["prompt"]}], None
        tools = [{"type": "function", "name": "calculator", "parameters": {}}]
        for turn in range(2):
            body = {"model": "m", "input": items, "tools": tools, "previous_response_id": previous, "stream": turn > 0}
            answer = await http_client.post(base_url + "/responses", json=body)
            answer.raise_for_status()
            last = answer.text.strip().rpartition("data: ")[2]
            response = json.loads(last)["response"] if turn else answer.json()
            assert response["status"] == "completed" and response["usage"]["total_tokens"] >= 0
            calls = [item for item in response["output"] if item["type"] == "function_call"]
            items = [{"type": "function_call_output", "call_id": call["call_id"], "output": "RESULT"} for call in calls]
            previous = response["id"]
        return 1.0

class Claude:
    async def run(self, data, base_url, http_client):
        turns = [{"role": "user", "content": data["prompt"]}]
        tools = [{"name": "calculator", "input_schema": {"type": "object"}}]
        for turn in range(2):
            body = {"model": "m", "max_tokens": 64, "messages": turns, "tools": tools}
            answer = await http_client.post(base_url + "/v1/messages", json=body)
            answer.raise_for_status()
            message = answer.json()
            calls = [block for block in message["content"] if block["type"] == "tool_use"]
            assert message["stop_reason"] == ("tool_use" if calls else "end_turn")
            results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "RESULT"} for call in calls]
            turns += [{"role": "assistant", "content": message["content"]}, {"role": "user", "content": results}]
        return 1.0

def function(prompt, generate):
    answer = generate(prompt)
    return 1.0 if answer.text == str(len(prompt)) else 0.5
"""
ROWS = [{"prompt": f"question {number}"} for number in range(24)]


@pytest.fixture
def run(tmp_path):
    def play(name, server, *, data=ROWS[:2], result="42", check="answer.raise_for_status()", folder="run", **options):
        file = tmp_path / f"workflow_{len(list(tmp_path.iterdir()))}.py"
        file.write_text(AGENT.replace("RESULT", result).replace("CHECK", check))
        addresses = [server.address] if server else []
        request = RolloutRequest(
            workflow=f"{file}:{name}",
            data=rows(tmp_path / "data.jsonl", data),
            timeout_s=20,
            addresses=addresses,
            **options,
        )
        return rollout(request, lambda: Run.create(name="t", path=tmp_path / folder), load_tokenizer=lambda name: None)

    yield play
    sys.path[:] = [entry for entry in sys.path if entry != str(tmp_path)]


@pytest.mark.parametrize("name", ["Responder", "Claude"])
def test_agents_of_other_protocols_ask_what_agents_of_chat_completions_ask(run, name):
    asked, rows = {}, {}
    for kind in ("Agent", name):
        with small_server() as server:
            report = run(kind, server, folder=kind)
            assert report.ok, report.failures
            asked[kind] = sorted([said_in(each) for each in request["messages"]] for request in server.requests)
            rows[kind] = [(row.sample, row.tokens.tolist()) for row in ReplayRollout(report.batch).trajectories(0)]
    assert asked[name] == asked["Agent"] and rows[name] == rows["Agent"]


def test_agents_get_a_client_of_the_http_library_that_their_sdk_takes(run, monkeypatch):
    class Client(httpx.AsyncClient):
        made = 0

        def __init__(self, **options):
            super().__init__(**options)
            Client.made += 1

    library = SimpleNamespace(AsyncClient=Client, Timeout=httpx.Timeout, Limits=httpx.Limits)
    monkeypatch.setitem(sys.modules, "anthropic._base_client", SimpleNamespace(httpx2=library))
    with small_server() as server:
        assert run("Claude", server).ok
    assert Client.made


def said_in(message):
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return message["role"], message.get("content") or "", [(call["name"], call["arguments"]) for call in calls]


@pytest.mark.parametrize(
    ("protocol", "body", "said"),
    [
        ("responses", {"input": "x", "background": True}, "background is not supported"),
        ("responses", {"input": "x", "text": {"verbosity": "high"}}, "text.verbosity is not supported"),
        ("responses", {"input": "x", "previous_response_id": "resp_1"}, "no response 'resp_1'"),
        (
            "messages",
            {"messages": [{"role": "user", "content": "x"}], "thinking": {"type": "enabled"}},
            "thinking is not",
        ),
    ],
)
def test_a_field_that_a_rollout_cannot_pass_on_is_named(protocol, body, said):
    with pytest.raises(RequestError, match=said):
        AgentProtocols().as_chat(protocol, body)


@pytest.mark.parametrize("name", ["Agent", "function", "Responder", "Claude"])
def test_a_rollout_is_repeated_from_its_recording_without_a_server(run, tmp_path, name):
    with small_server() as server:
        first = run(name, server, n=2)
        asked = len(server.requests)
    again = run(name, None, n=2, replay=tmp_path / "run", folder="again")
    assert first.ok and again.ok and len(server.requests) == asked
    batches = [ReplayRollout(report.batch).trajectories(0) for report in (first, again)]
    for one, other in zip(*batches, strict=True):
        assert (one.sample, one.tokens.tolist(), one.logprobs.tolist()) == (
            other.sample, other.tokens.tolist(), other.logprobs.tolist()
        )  # fmt: skip
    kept = [
        (tmp_path / folder / "generated" / "exchanges.jsonl").read_text().splitlines() for folder in ("run", "again")
    ]
    answers = [sorted(json.dumps(json.loads(line)["answer"]) for line in lines) for lines in kept]
    assert answers[0] == answers[1] and len(answers[0]) == (4 if name == "function" else 8)


def test_show_prints_the_conversation_that_a_sample_came_of(run, tmp_path, capsys):
    from rldbg.cli.application import run as command

    with small_server() as server:
        run("Agent", server, n=2)
    assert command(["show", str(tmp_path / "run"), "--sample", "0/1"]) == 0
    told = capsys.readouterr().out
    first, second = told.index("user  question 0"), told.index("tool  42")
    assert first < told.index("request 0") < told.index("calls  calculator(") < second < told.index("request 1")
    assert told.count("question 0") == 1, "a message is shown where it was said"
    assert "rewards 1" in told and " ms" in told
    assert command(["show", str(tmp_path / "run"), "--sample", "0/1", "--json"]) == 0
    episode = json.loads(capsys.readouterr().out)["episode"]
    assert "0/1" in episode["samples"] and episode["rewards"] == [1.0] * len(episode["samples"])
    requests = [event for event in episode["events"] if event["kind"] == "request"]
    assert [message["role"] for message in requests[1]["messages"]] == ["tool"] and not requests[1]["rewritten"]
    assert all(event["duration_ms"] >= 0 for event in episode["events"])


def test_show_prints_a_failed_episode_and_each_message_once(run, tmp_path, capsys):
    from rldbg.cli.application import run as command

    with small_server() as server:
        report = run("Broken", server, n=1)
    assert not report.ok and report.rows == 0
    assert command(["show", str(tmp_path / "run"), "--sample", "0/0"]) == 0
    told = capsys.readouterr().out
    assert told.count("calls  calculator(") == 1, "the answer that comes back without its empty fields is the same"
    assert "null" not in told and "tool  oops" in told and "failed: KeyError" in told
    assert command(["show", str(tmp_path / "run"), "--sample", "0/0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["episode"]["failure"].startswith("KeyError")


AREAL = """
class Workflow:
    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    async def arun_episode(self, engine, data):
        answer = await engine.agenerate(input_ids=self.tokenizer.encode(data["prompt"]))
        assert answer.tokenizer is self.tokenizer
        ids = answer.input_tokens + answer.output_tokens
        mask = [0] * answer.input_len + [1] * answer.output_len
        return {"input_ids": ids, "loss_mask": mask, "rewards": 1.0}
"""


class Letters:
    eos_token_id = pad_token_id = 0

    def __init__(self, folder):
        self.folder = folder

    def encode(self, text):
        return [ord(letter) for letter in text]


def test_a_workflow_that_needs_a_tokenizer_gets_that_of_the_served_model(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tokenizer_config.json").write_text("{}")
    told = {"model_path": str(tmp_path / "model")}
    monkeypatch.setattr(rollout_run, "http_request", lambda *_request, **_how: httpx.Response(200, json=told))
    (tmp_path / "areal_workflow.py").write_text(AREAL)
    with small_server() as server:
        request = RolloutRequest(
            workflow=f"{tmp_path}/areal_workflow.py:Workflow", data=rows(tmp_path / "data.jsonl", ROWS[:2]),
            timeout_s=20, addresses=[server.address],
        )  # fmt: skip
        made = []
        report = rollout(
            request,
            lambda: Run.create(name="t", path=tmp_path / "run"),
            load_tokenizer=lambda place: made.append(place) or Letters(place),
        )
    assert report.ok, report.failures
    assert made == [told["model_path"]]


@pytest.mark.parametrize("trouble", ["?drop", "?500"])
def test_a_server_that_fails_in_the_middle_fails_in_the_replay_too(run, tmp_path, trouble):
    options = {"result": trouble, "check": "assert answer.status_code == 200, (answer.status_code, answer.text)"}
    with small_server() as server:
        first = run("Agent", server, **options)
    again = run("Agent", None, **options, replay=tmp_path / "run", folder="again")
    assert len(first.failures) == len(again.failures) == 2
    assert [item.message for item in first.failures] == [item.message for item in again.failures]
    lines = (tmp_path / "run" / "generated" / "episodes.jsonl").read_text().splitlines()
    asked = [event for event in json.loads(lines[0])["events"] if event["kind"] == "request"]
    assert [event["answer"]["role"] for event in asked] == ["assistant", "error"]


def test_exchanges_of_a_rollout_that_was_killed_are_there(tmp_path):
    log = ExchangeLog()
    log.open(tmp_path)
    for number in range(2):
        log.add("0/0", number, {"prompt": number}, answer={"text": "ä"})
        assert len(list(log.entries())) == number + 1, "written at once"
    file = tmp_path / "generated" / "exchanges.jsonl"
    file.write_bytes(file.read_bytes()[:-8])
    left = RecordedExchanges(tmp_path)
    assert left.answer("0/0", 0, {"prompt": 0}) == {"text": "ä"}
    with pytest.raises(ReplayDiverged, match="it has 1 of that sample"):
        left.answer("0/0", 1, {"prompt": 1})


def test_a_workflow_that_asks_something_else_is_told_where(run, tmp_path):
    with small_server() as server:
        assert run("Agent", server).ok
    report = run("Agent", None, result="43", replay=tmp_path / "run", folder="again")
    assert len(report.failures) == 2
    report = run(
        "Agent",
        None,
        result="43",
        replay=tmp_path / "run",
        folder="third",
        check="assert answer.is_success, answer.text",
    )
    (message,) = {failure.message.partition("'code'")[0] for failure in report.failures if failure.sample == "0/0"}
    assert "request 1 of sample 0/0 differs" in message and "messages[2].content" in message and "43" in message
    report = run(
        "Agent",
        None,
        data=ROWS[:3],
        replay=tmp_path / "run",
        folder="fourth",
        check="assert answer.is_success, answer.text",
    )
    assert [failure.sample for failure in report.failures] == ["2/0"]
    assert "is not in" in report.failures[0].message
    with pytest.raises(IncompleteDataError, match="no recorded exchanges"):
        run("Agent", None, replay=tmp_path, folder="fifth")


def test_faults_are_injected_once_per_episode_and_judged(run):
    with small_server() as server:
        careless = run("Agent", server, data=ROWS, fuzz=True)
        again = run("Agent", server, data=ROWS, fuzz=True, folder="again")
        function = run("function", server, data=ROWS, fuzz=True, folder="third")
    assert [item.to_dict() for item in careless.faults] == [item.to_dict() for item in again.faults]
    verdicts = {kind: {item.verdict for item in careless.faults if item.kind == kind} for kind in KINDS}
    assert any(verdict.startswith("crashed: JSONDecodeError") for verdict in verdicts["malformed-call"])
    for kind in ("timeout", "server-death", "server-error"):
        assert "gave up: HTTPStatusError" in verdicts[kind], verdicts[kind]
    assert any(verdict == "survived" for verdict in verdicts["truncation"] | verdicts["empty-answer"])
    assert any(
        "crashed: JSONDecodeError" in line for line in to_terminal(careless).splitlines() if "fault malformed" in line
    )
    assert json.loads(json.dumps(careless.to_dict()))["faults"][0]["kind"] in KINDS
    told = {item.verdict.partition(":")[0] for item in function.faults}
    assert "gave a reward of 0.5 to an answer that was cut off" in told and "gave up" in told


def test_every_kind_of_fault_is_drawn():
    assert {fault_of(str(number), 0).kind for number in range(64)} == set(KINDS)
    assert {fault_of(str(number), 0).request for number in range(64)} == {0, 1}
