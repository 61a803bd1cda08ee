"""Workflows of all shapes against a real HTTP server: rows, order, failures, timelines."""

import json
import os
import socket
import sys
import threading

import pytest

import rldbg
from rldbg.core import IncompleteDataError, RldbgError, Run, SampleId, UnreachableError, UsageError
from rldbg.inference.workflows import GenerationSettings, RolloutRequest, rollout, servers
from rldbg.inference.workflows.completions import Completion, rows_of_answers
from rldbg.inference.workflows.network_thread import NetworkThread
from rldbg.inference.workflows.settings import parse_overrides
from rldbg.replay import ReplayRollout
from rldbg.reports.rollout import failure_text
from small_server import rows, small_server

WORKFLOWS = """
import numpy as np

class Areal:
    async def arun_episode(self, engine, data):
        answer = await engine.agenerate({"input_ids": [ord(char) for char in data["prompt"]]})
        before = answer.input_len
        return {
            "input_ids": np.array([answer.input_tokens + answer.output_tokens]),
            "loss_mask": np.array([[0] * before + [1] * answer.output_len]),
            "logprobs": np.array([[0.0] * before + answer.output_logprobs]),
            "versions": np.array([[-1] * before + answer.output_versions]),
            "rewards": np.array([1.0]),
        }

class Agent:
    async def run(self, data, **given):
        body = {"model": "any", "messages": [{"role": "user", "content": data["prompt"]}]}
        response = await given["http_client"].post(given["base_url"] + "/chat/completions", json=body)
        response.raise_for_status()
        return {response.json()["id"]: 1.0}

class BlockingAgent:
    def run(self, data, base_url):
        import httpx
        body = {"model": "any", "messages": [{"role": "user", "content": data["prompt"]}]}
        return float(httpx.post(base_url + "/chat/completions", json=body, timeout=30).is_success)

def function(prompt, generate):
    answer = generate(prompt)
    assert answer.text == str(len(prompt)), answer
    return 1.0

async def coroutine(prompt, generate):
    return {"reward": 1.0, "note": (await generate([ord(char) for char in prompt])).text}

def rollout_func(prompts, trainer):
    assert trainer.args.num_generations == len(prompts)
    return trainer.vllm_client.generate(prompts) | {"reward": [1.0] * len(prompts)}

def generation_rollout_func(prompts, trainer):
    tokens = [[ord(char) for char in prompt] for prompt in prompts]
    ids, completions, logprobs, _ = trainer.vllm_generation.generate(tokens, None, trainer.num_generations)
    logprobs = [[values[0] for values in row] for row in logprobs]
    return {"prompt_ids": ids, "completion_ids": completions, "logprobs": logprobs, "env_reward": [1.0] * len(ids)}

def old_rollout_func(prompts, args, processing_class):
    return {"prompt_ids": [[1, 2]] * len(prompts), "completion_ids": [[3]] * len(prompts)}
"""
PROMPTS = [{"prompt": "?slow one"}, {"prompt": "two!", "group_id": "g/two"}, {"prompt": "three"}]


@pytest.fixture(scope="module")
def server():
    with small_server() as running:
        yield running


@pytest.fixture
def make(tmp_path, server):
    """Runs a workflow given as source text; the report and the run."""

    def run(source, name, data=PROMPTS, **options):
        file = tmp_path / f"workflow_{len(list(tmp_path.iterdir()))}.py"
        file.write_text(source)
        options.setdefault("addresses", [server.address])
        options.setdefault("command_of", lambda sample: f"run {sample}")
        request = RolloutRequest(
            workflow=f"{file}:{name}", data=rows(tmp_path / "data.jsonl", data), timeout_s=20, **options
        )
        return rollout(request, lambda: Run.create(name="t", path=tmp_path / "run"), load_tokenizer=lambda name: None)

    yield run
    sys.path[:] = [entry for entry in sys.path if entry != str(tmp_path)]


@pytest.mark.parametrize(
    "name", ["Areal", "Agent", "BlockingAgent", "function", "coroutine", "rollout_func", "generation_rollout_func"]
)
def test_every_shape_gives_the_same_rows_in_the_order_of_the_data(make, name):
    report = make(WORKFLOWS, name, n=2)
    assert report.ok and report.rows == 6 and not report.failures, report
    replay = ReplayRollout(report.batch)
    wanted = [SampleId(group, run) for group in ("0", "g/two", "2") for run in (0, 1)]
    trajectories = replay.trajectories(0)
    assert [item.sample for item in trajectories] == wanted
    for item, prompt in zip(trajectories, [row["prompt"] for row in PROMPTS for _ in (0, 1)], strict=True):
        answer = [*map(ord, str(len(prompt))), 0]
        assert item.tokens.tolist() == [*map(ord, prompt), *answer]
        assert item.loss_mask.tolist() == [0] * len(prompt) + [1] * len(answer)
        assert item.logprobs.tolist() == [0.0] * len(prompt) + [-0.5] * len(answer)
        assert item.policy_versions.tolist() == [-1] * len(prompt) + [7] * len(answer)
        assert item.reward == 1.0


def test_the_batch_is_plain_tensors_and_a_recording(make):
    import torch

    report = make(WORKFLOWS, "Areal")
    batch = torch.load(report.batch, weights_only=True)
    assert all(isinstance(value, torch.Tensor) and len(value) == 3 for value in batch.values())
    assert batch["input_ids"].dtype == torch.int32 and batch["attention_mask"].dtype == torch.bool
    assert batch["attention_mask"].sum(1).tolist() == [11, 6, 7]
    assert batch["group_ids"].tolist() == [0, 1, 2] and batch["rewards"].tolist() == [1.0] * 3
    for path in (report.batch, report.run):
        recording = rldbg.open(path)
        assert recording.kinds() == ("trajectory",)
        assert recording.samples() == (SampleId("0", 0), SampleId("g/two", 0), SampleId("2", 0))
    torch.save(batch, report.batch)
    assert rldbg.open(report.batch).samples()[1] == SampleId("1", 0)


def test_an_exception_is_shown_and_ends_nothing_else(make):
    source = (
        WORKFLOWS
        + """
def broken(prompt, generate):
    if prompt != "three":
        raise LookupError(f"no luck with {prompt}") from ValueError("the cause")
    return float(len(generate(prompt).tokens))

async def leaves(prompt, generate):
    raise SystemExit(3)
"""
    )
    report = make(source, "broken")
    first, second = report.failures
    assert (first.sample, second.sample, report.rows, report.mean_reward) == ("0/0", "g/two/0", 1, 2.0)
    assert "raise LookupError(f" in first.traceback and "ValueError: the cause" in first.traceback
    assert "rldbg/inference" not in first.traceback
    assert first.command == "run 0/0" and json.loads(first.data) == PROMPTS[0]
    assert len(report.failures_by_likeness()) == 1 and "and 1 more like it: g/two/0" in failure_text(first, second)
    assert (
        json.loads((Run(report.run).folder("reports") / "rollout.json").read_text())["failures"][0]["sample"] == "0/0"
    )
    assert [failure.error for failure in make(source, "leaves").failures] == ["SystemExit"] * 3
    assert make(source, "leaves").batch is None


NONSENSE = {
    "'a text'": "'a text', not a number",
    "float('nan')": "the result is nan",
    "{'tokens': [1, 2], 'reward': 1}": "no loss_mask",
    "{'tokens': [1, 2], 'loss_mask': [1], 'reward': 1}": "loss_mask is int64 [1], but input_ids is [1, 2]",
    "{'tokens': [1, -2], 'loss_mask': [0, 1], 'reward': 1}": "not token ids",
    "{'tokens': [1.5, 2], 'loss_mask': [0, 1], 'reward': 1}": "not token ids",
    "{'tokens': [1, 2], 'loss_mask': [0, 5], 'reward': 1}": "other than 0 and 1",
    "{'tokens': [1, 2], 'loss_mask': [0, 1]}": "no rewards",
    "{'tokens': [[1, 2], [3]], 'loss_mask': [0, 1], 'reward': 1}": "rows of different lengths",
    "{'prompt_ids': [1], 'completion_ids': [2, 3], 'logprobs': [-1.0], 'reward': 1}": "2 tokens, 1 logprobs",
    "{}": "no reward: it is empty",
    "{'score': 1}": "no reward: only score",
    "object()": "not a number",
    "1.0": "made no request",
}


def test_nonsense_is_a_failure_that_says_what_was_returned(make):
    report = make("def f(prompt, generate):\n    return eval(prompt)\n", "f", [{"prompt": item} for item in NONSENSE])
    assert report.rows == 0 and len(report.failures) == len(NONSENSE)
    for failure, said in zip(report.failures, NONSENSE.values(), strict=True):
        assert said in failure.message and failure.hint


def test_trl_functions_of_both_signatures_with_a_reward_function(make, tmp_path):
    (tmp_path / "rewards.py").write_text(
        "def length(completions, prompts, **columns):\n    return [len(columns['name'][0])] * 2\n"
    )
    data = [{"prompt": "p", "name": "four"}]
    report = make(WORKFLOWS, "old_rollout_func", data, n=2, reward=f"{tmp_path}/rewards.py:length")
    assert report.mean_reward == 4.0 and report.rows == 2
    assert report.notes == ("logprobs are NaN where the workflow returned none",)
    report = make(WORKFLOWS, "old_rollout_func", data, n=2)
    assert report.mean_reward is None and "rewards are NaN" in report.notes[0]
    source = "def rollout_func(prompts, trainer):\n    return trainer.model.generate(prompts)\n"
    (failure,) = make(source, "rollout_func", data).failures
    assert "this trainer is a stub for rollouts and has no 'model'" in failure.message


def test_a_rejected_episode_is_counted_and_said(make):
    report = make(
        "async def f(prompt, generate):\n    await generate(prompt)\n    return None if prompt == 'three' else 1\n",
        "f",
    )
    assert report.rejected == ("2/0",) and report.rows == 2 and not report.failures


def test_rows_of_a_conversation_are_put_together():
    def answer(prompt, tokens, id=""):
        return Completion(tuple(prompt), tuple(tokens), (-1.0,) * len(tokens), (3,) * len(tokens), "", "stop", id)

    turns = [answer([1], [2, 3], "a"), answer([1, 2, 3, 9], [4], "b"), answer([5], [6], "c")]
    first, second = rows_of_answers(turns, 0.5)
    assert first.tokens.tolist() == [1, 2, 3, 9, 4] and first.loss_mask.tolist() == [0, 1, 1, 0, 1]
    assert first.versions.tolist() == [-1, 3, 3, -1, 3] and second.tokens.tolist() == [5, 6]
    (only,) = rows_of_answers(turns, {"a": 1.0, "b": 2.0})
    assert only.reward == 2.0
    same = rows_of_answers([answer([1], [2]), answer([1], [2])], 1.0)
    assert len(same) == 2


def test_several_rows_an_episode_have_ids_of_their_own(make):
    report = make(
        "def f(prompt, generate):\n    generate('a'); generate('bb')\n    return 1\n", "f", [{"prompt": "p"}], n=2
    )
    assert rldbg.open(report.batch).samples() == tuple(SampleId("0", run) for run in range(4))


def test_an_aborted_generation_is_taken_up_again(make, server):
    report = make(WORKFLOWS, "Areal", [{"prompt": "?abort me now"}])
    (trajectory,) = ReplayRollout(report.batch).trajectories(0)
    assert bytes(trajectory.tokens.astype("u1")) == b"?abort me now1115\0"


TROUBLE = {
    "?500": ("ServerRefusal", 'HTTP 500: {"error":"the model fell over"}'),
    "?html": ("UnexpectedResponse", "did not answer with JSON"),
    "?drop": ("ServerRefusal", "HTTP 500"),
    "?hang": ("UnreachableError", "did not answer within 0.6 s"),
}


def test_a_server_in_trouble_is_named(make, server):
    report = make(WORKFLOWS, "coroutine", [{"prompt": prompt} for prompt in TROUBLE], request_timeout_s=0.6)
    for failure, (error, said) in zip(report.failures, TROUBLE.values(), strict=True):
        assert failure.error == error and said in failure.message and server.address in failure.message


def test_dead_servers(make, server):
    with pytest.raises(UnreachableError, match=r"no inference server answers at http://127.0.0.1:9 "):
        make(WORKFLOWS, "function", addresses=["127.0.0.1:9"])
    report = make(WORKFLOWS, "function", addresses=["127.0.0.1:9", server.address])
    assert report.ok and "127.0.0.1:9 is left out" in report.notes[0]


def test_a_server_that_takes_long_for_its_first_answer_is_waited_for(monkeypatch):
    monkeypatch.setattr(servers, "_SOON_S", 0.01)
    said = threading.Event()

    def answer(listener):
        for _ in ("/health", "/v1/models"):
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                said.wait(60)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")

    network = NetworkThread()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,), daemon=True)
        thread.start()
        place = f"127.0.0.1:{listener.getsockname()[1]}"
        notes = []
        patient = servers.Servers([place], network=network)
        assert patient.check(lambda note: (notes.append(note), said.set())) == []
        thread.join(60)
        assert "--server-wait" in notes[0] and place in notes[0]
        silent = servers.Servers([place], network=network, server_wait_s=0.05)
        with pytest.raises(UnreachableError, match="raise --server-wait"):
            silent.check(notes.append)
        patient.close()
        silent.close()
    network.close()


def test_a_server_that_wants_a_token(make):
    with small_server(token="s3cret") as guarded:
        with pytest.raises(RldbgError, match="refuses this client: HTTP 401") as refused:
            make(WORKFLOWS, "function", addresses=[guarded.address])
        assert "--api-key" in refused.value.hint
        assert make(WORKFLOWS, "function", addresses=[guarded.address], api_key="s3cret").ok


def test_a_server_without_sglang_routes_is_asked_as_openai(make):
    with small_server(sglang=False) as vllm:
        assert make(WORKFLOWS, "Areal", addresses=[f"http://{vllm.address}/v1"]).rows == 3


def test_requests_are_seeded_by_sample_and_place(make, server):
    server.requests.clear()
    make(WORKFLOWS, "function", n=2, seed=5, settings=GenerationSettings(max_new_tokens=9))
    seeds = {body["sampling_params"]["sampling_seed"] for body in server.requests}
    server.requests.clear()
    make(WORKFLOWS, "function", n=2, seed=5, sample="g/two/1")
    assert len(seeds) == 6 and server.requests[0]["sampling_params"]["sampling_seed"] in seeds


def test_timelines_show_requests_tools_and_reward(make, tmp_path):
    source = """
from rldbg.inference.workflows import span

class Agent:
    def __init__(self, bonus):
        self.reward_fn = lambda: bonus

    async def run(self, data, base_url, http_client):
        messages = [{"role": "user", "content": data["prompt"]}]
        tools = [{"type": "function", "function": {"name": "calculator", "parameters": {}}}]
        for _ in (0, 1):
            body = {"messages": messages, "tools": tools}
            choice = (await http_client.post(base_url + "/chat/completions", json=body)).json()["choices"][0]
            messages.append(choice["message"])
            for call in choice["message"].get("tool_calls", ()):
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": "42"})
        with span("tool", "by hand", x=1):
            return self.reward_fn()
"""
    report = make(source, "Agent", trace=True, arguments={"bonus": "2.5"})
    assert report.ok and report.mean_reward == 2.5, report
    trace = json.loads((tmp_path / "run" / "traces" / "g-two_0.json").read_text())["traceEvents"]
    found = {(event.get("cat"), event["name"]) for event in trace}
    assert {("request", "request 0"), ("request", "request 1"), ("tool", "calculator"), ("tool", "by hand")} <= found
    assert {("reward", "reward_fn"), ("reward", "reward"), ("episode", "g/two/0"), ("code", "workflow")} <= found
    assert [event["args"]["reward"] for event in trace if event["ph"] == "i"] == [2.5]
    everything = json.loads((tmp_path / "run" / "traces" / "all.json").read_text())["traceEvents"]
    assert len({event["tid"] for event in everything}) == 3


def test_a_reward_is_computed_in_this_process(make):
    """As AReaL wraps it: a pool of processes, a time limit, and 0 when anything goes wrong."""
    source = (
        WORKFLOWS
        + """
import os

class ProcessPoolReward:
    def __init__(self, reward_fn):
        self.reward_fn, self.timeout_seconds = reward_fn, 15

    async def __call__(self, *arguments):
        return 0.0

class Wrapped(Areal):
    def __init__(self):
        self.async_reward_fn = ProcessPoolReward(lambda name: os.getpid() if name == "two!" else {}["no reward"])

    async def arun_episode(self, engine, data):
        result = await super().arun_episode(engine, data)
        return result | {"rewards": np.array([await self.async_reward_fn(data["prompt"])])}
"""
    )
    report = make(source, "Wrapped", PROMPTS[1:], trace=True)
    assert report.mean_reward == os.getpid() and [failure.error for failure in report.failures] == ["KeyError"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"prompt": "a"}\n{"prompt": \n', r"data.jsonl:2 is not JSON"),
        ('{"prompt": "a"}\n[1]\n', r"data.jsonl:2 is a list, not a row"),
        ("\n\n", "has no rows"),
        ('{"uid": 1}\n{"uid": "1"}\n', r"data.jsonl:2 has the group id '1' of .*data.jsonl:1"),
    ],
)
def test_damaged_data_is_named_by_line(tmp_path, server, content, said):
    file = tmp_path / "data.jsonl"
    file.write_text(content)
    (tmp_path / "wf.py").write_text(WORKFLOWS)
    request = RolloutRequest(workflow=f"{tmp_path}/wf.py:function", data=str(file), addresses=[server.address])
    with pytest.raises((IncompleteDataError, UsageError), match=said):
        rollout(request, lambda: Run(tmp_path), load_tokenizer=lambda name: None)


@pytest.mark.parametrize(
    ("source", "name", "said"),
    [
        ("def f(x, y): ...", "f", r"f\(x, y\) is not a workflow of a known shape"),
        ("f = 3", "f", "is a int: not a workflow"),
        ("class F: ...", "F", "is a class F: not a workflow"),
        ("def nearby(prompt, generate): ...", "nearbi", "has no 'nearbi'"),
        ("import nowhere_at_all", "f", "importing .* failed"),
        ("def f(:", "f", "SyntaxError"),
        ("class F:\n    async def run(self, data): ...", "F", "F.run takes no base_url"),
        (
            "class F:\n    def __init__(self):\n        1 / 0\n    async def run(self, data): ...",
            "F",
            "ZeroDivisionError",
        ),
        (
            "class F:\n    def __init__(self, need): ...\n    async def run(self, data): ...",
            "F",
            "needs the argument 'need'",
        ),
        (
            "class F:\n    def __init__(self, tokenizer): ...\n    async def run(self, data): ...",
            "F",
            "needs a tokenizer",
        ),
        ("class F:\n    def arun_episode(self, engine, data): ...", "F", "arun_episode is not async"),
    ],
)
def test_what_is_no_workflow_is_said_before_anything_runs(make, source, name, said):
    with pytest.raises(UsageError, match=said) as error:
        make(source, name)
    assert error.value.hint


def test_datasets_by_name(make, tmp_path, server):
    (tmp_path / "sets.py").write_text("""
class Indexed:
    def __len__(self): return 3
    def __getitem__(self, place): return {"prompt": "x" * (place + 1)}
indexed = Indexed()
def endless():
    while True: yield "p"
def broken():
    yield {"prompt": "p"}
    raise OSError("the disk is gone")
""")
    workflow = tmp_path / "wf.py"
    workflow.write_text(WORKFLOWS)

    def run(name, **options):
        request = RolloutRequest(f"{workflow}:function", f"{tmp_path}/sets.py:{name}", [server.address], **options)
        return rollout(request, lambda: Run.create(name="t", path=tmp_path / "run"), load_tokenizer=lambda name: None)

    assert run("indexed").rows == 3 and run("endless", limit=2).rows == 2
    with pytest.raises(UsageError, match="the disk is gone"):
        run("broken")


def test_overrides_are_areals():
    words = ["rollout.enable_rollout_tracing=True", "gconfig.max_new_tokens=5", "gconfig.stop_token_ids=[1,2]"]
    assert parse_overrides(words) == ({"trace": True}, {"max_new_tokens": 5, "stop_token_ids": (1, 2)})
    for wrong in ("rollout.enable_rollout_tracin=True", "nothing", "gconfig.max_new_tokens=many", "gconfig.top_p=-1"):
        with pytest.raises(UsageError):
            parse_overrides([wrong])
