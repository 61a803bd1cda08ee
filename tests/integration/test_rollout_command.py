"""`rldbg rollout` as a user types it: time limits, breakpoints at a terminal, many at once, a real model behind it."""

import json
import re
import shlex
import time
from pathlib import Path

import command_line
import pytest
from terminal import Terminal

from rldbg.core import Environment, SampleId
from small_server import rows, small_server

ROOT = Path(__file__).resolve().parents[2]

WORKFLOWS = """
import asyncio, threading, time

async def waits(prompt, generate):
    await generate("x")
    if prompt == "bad":
        await asyncio.sleep(1000)          # LINE waits
    return 1.0

async def blocks(prompt, generate):
    await generate("x")
    if prompt == "bad":
        time.sleep(1000)                   # LINE blocks
    return 1.0

def sleeps(prompt, generate):
    generate("x")
    if prompt == "bad":
        threading.Event().wait(1000)       # LINE sleeps
    return 1.0

def stops(prompt, generate):
    answer = generate(prompt)
    secret = f"the answer to {prompt} is {answer.text}"
    breakpoint()
    return 1.0

async def raises(prompt, generate):
    found = {"key": len(prompt)}
    return found["other"]

def plain(prompt, generate):
    return float(len(generate(prompt, max_new_tokens=3).tokens))
"""


@pytest.fixture(scope="module")
def server():
    with small_server() as running:
        yield running


@pytest.fixture
def project(tmp_path):
    (tmp_path / "flows.py").write_text(WORKFLOWS)
    rows(tmp_path / "data.jsonl", [{"prompt": "good"}, {"prompt": "bad"}, {"prompt": "fine!"}])
    return tmp_path


def rldbg(project, *words, **more):
    environment = {**Environment().everything(), "RLDBG_HOME": str(project / ".rldbg")}
    return command_line.rldbg(project, *words, env=environment, **more)


@pytest.mark.parametrize(("name", "concurrency"), [("waits", 8), ("blocks", 8), ("sleeps", 8), ("sleeps", 1)])
def test_nothing_waits_for_ever_and_the_line_is_shown(project, server, name, concurrency):
    words = (
        "rollout",
        f"flows:{name}",
        "--data",
        "data.jsonl",
        "--addrs",
        server.address,
        "--timeout",
        "1.5",
        "--json",
    )
    done = rldbg(project, *words, "--concurrency", concurrency)
    report = json.loads(done.stdout)
    assert done.returncode == 1 and report["rows"] == 2, (done.stdout, done.stderr)
    (failure,) = report["failures"]
    assert failure["sample"] == "1/0" and failure["kind"] == "timeout"
    assert f"# LINE {name}" in failure["traceback"]


def test_the_command_it_prints_runs_just_that_sample(project, server):
    words = ("rollout", "flows:raises", "--data", "data.jsonl", "--n", "2", "gconfig.max_new_tokens=5")
    done = rldbg(project, *words, AREAL_LLM_SERVER_ADDRS=server.address)
    assert done.returncode == 1 and 'return found["other"]' in done.stderr and "KeyError: 'other'" in done.stderr
    command = re.search(r"run only this sample .*?: (rldbg .*)", done.stderr)[1]
    again = rldbg(project, *shlex.split(command)[1:], "--json")
    assert [failure["sample"] for failure in json.loads(again.stdout)["failures"]] == ["0/0"]
    assert json.loads(again.stdout)["episodes"] == 1


def test_a_run_folder_of_another_verb_keeps_what_it_says(project, server):
    (project / "first" / "recording").mkdir(parents=True)
    (project / "first" / "run.json").write_text('{"command": ["rldbg", "train"], "config": {"seed": 5}}')
    words = ("rollout", "flows:plain", "--data", "data.jsonl", "--addrs", server.address)
    for folder in ("first", "second", "second"):
        assert rldbg(project, *words, "--run", folder).returncode == 0
        assert (project / folder / "generated" / "batch_data.pt").is_file()
    kept = json.loads((project / "first" / "run.json").read_text())
    assert kept["config"] == {"seed": 5} and kept["command"] == ["rldbg", "train"] and "rollout" in kept
    assert json.loads((project / "second" / "run.json").read_text())["exit_code"] == 0
    assert "trajectory" in rldbg(project, "show", "second").stdout


@pytest.fixture
def terminal(project):
    opened = []

    def start(*words):
        environment = {**Environment().everything(), "RLDBG_HOME": str(project / ".rldbg")}
        opened.append(Terminal([*command_line.RLDBG, *words], environment, project))
        return opened[-1]

    yield start
    for item in opened:
        item.close()


def test_breakpoints_of_many_threads_have_one_prompt_and_no_time_limit(terminal, server):
    words = ["rollout", "flows:stops", "--data", "data.jsonl", "--addrs", server.address]
    screen = terminal(*words, "--concurrency", "8", "--timeout", "3")
    answers = []
    for place in range(3):
        screen.expect("(Pdb) ")
        if place == 0:
            time.sleep(3.5)  # longer than --timeout: the clock must stand still at a prompt
        screen.type("p secret")
        answers.append(re.search(r"the answer to (\S+) is \d", screen.expect("(Pdb) "))[1])
        screen.type("c")
    screen.expect("3 of 3 episodes")
    assert sorted(answers) == ["bad", "fine!", "good"]
    assert screen.process.wait(60) == 0


def test_pdb_opens_where_it_was_raised_and_quitting_a_breakpoint_ends_the_rollout(terminal, server):
    words = ["--data", "data.jsonl", "--addrs", server.address]
    screen = terminal("rollout", "flows:raises", *words, "--sample", "1", "--pdb")
    screen.expect("(Pdb) ")
    screen.type("p found")
    assert "{'key': 3}" in screen.expect("(Pdb) ")
    screen.type("q")
    screen.expect("1 failed")
    assert screen.process.wait(60) == 1
    screen = terminal("rollout", "flows:stops", *words, "--concurrency", "1")
    screen.expect("(Pdb) ")
    screen.type("q")
    screen.expect("not run")
    assert screen.process.wait(60) == 130


def test_a_thousand_at_once_keep_their_order_and_lose_nothing(project, server):
    import torch

    rows(project / "many.jsonl", [{"prompt": "?gather" + "x" * (number % 50)} for number in range(1000)])
    server.gathering = 1000
    words = ("rollout", "flows:plain", "--data", "many.jsonl", "--addrs", server.address, "--concurrency", "1000")
    done = rldbg(project, *words, "--out", "many.pt", "--json")
    assert done.returncode == 0, done.stderr
    batch = torch.load(project / "many.pt", weights_only=True)
    assert batch["attention_mask"].sum(1).tolist() == [7 + n % 50 + len(str(7 + n % 50)) + 1 for n in range(1000)]
    assert batch["group_ids"].tolist() == list(range(1000))


ARITHMETIC = """
class Areal:
    def __init__(self, tokenizer, gconfig):
        self.tokenizer, self.gconfig = tokenizer, gconfig.new_with_stop_and_pad_token_ids(tokenizer)

    async def arun_episode(self, engine, data):
        import torch
        request = {"input_ids": self.tokenizer.encode(data["prompt"]), "gconfig": self.gconfig.new(max_new_tokens=4)}
        answer = await engine.agenerate(request)
        before, after = answer.input_len, answer.output_len
        return {
            "input_ids": torch.tensor([answer.input_tokens + answer.output_tokens]),
            "loss_mask": torch.tensor([[0] * before + [1] * after]),
            "logprobs": torch.tensor([[0.0] * before + answer.output_logprobs]),
            "versions": torch.tensor([[-1] * before + answer.output_versions]),
            "rewards": torch.tensor([sum(answer.output_tokens) / 100]),
        }

class Chat:
    async def run(self, data, base_url, http_client, **rest):
        body = {"messages": [{"role": "user", "content": data["prompt"]}], "max_tokens": 4, "temperature": 0}
        answer = await http_client.post(f"{base_url}/chat/completions", json=body)
        answer.raise_for_status()
        return 1.0

def plain(prompt, generate):
    return float(len(generate(prompt, max_new_tokens=4, greedy=True).tokens))
"""


def test_a_served_model_feeds_check_and_replay(project):
    """The loop of the guide: a server that stays, a workflow, a saved batch, a trainer that takes it."""
    from rldbg.replay import ReplayRollout
    from rldbg.trainer import read_recipe
    from rldbg.trainer.rollout import ReplayedRollouts, RolloutTask
    from rldbg.trainer.tasks import groups_of_step, load_problems
    from rldbg.trainer.tokenizer import load_tokenizer

    (project / "arithmetic.py").write_text(ARITHMETIC)
    mock = ["++rollout_worker.type=mock", f"++rollout_worker.trajectory_load_path={project}/batch.pt"]
    recipe = read_recipe(ROOT / "recipes" / "arithmetic.yaml", mock).recipe
    groups = groups_of_step(load_problems(recipe.data), recipe.data, recipe.seed, 0)[:3]
    data = [{"group_id": g.group_id, "prompt": g.problem.prompt, "answer": g.problem.answer} for g in groups]
    rows(project / "sums.jsonl", data)
    up = rldbg(project, "serve", "up", "--model", "tiny", "--name", "flows", "--json")
    assert up.returncode == 0, up.stderr
    try:
        words = ("rollout", "arithmetic:Areal", "--tokenizer", "tiny", "--data", "sums.jsonl", "--n", "2")
        done = rldbg(
            project, *words, "--out", "batch.pt", "--seed", "1", "rollout.enable_rollout_tracing=True", "--json"
        )
        assert done.returncode == 0, (done.stdout, done.stderr)
        assert len(list((Path(project) / json.loads(done.stdout)["traces"]).glob("*_*.json"))) == 6
        for name in ("Chat", "plain"):
            other = rldbg(project, "rollout", f"arithmetic:{name}", "--data", "sums.jsonl", "--json")
            assert other.returncode == 0 and json.loads(other.stdout)["rows"] == 3, (other.stdout, other.stderr)
    finally:
        down = rldbg(project, "serve", "down", "flows")
    assert down.returncode == 0, down.stderr
    assert rldbg(project, "check", "batch.pt").returncode == 0
    replay = ReplayRollout(project / "batch.pt")
    assert [item.sample for item in replay.trajectories(0)] == [(g.group_id, run) for g in groups for run in (0, 1)]
    tokenizer = load_tokenizer("tiny")
    tasks = [RolloutTask(SampleId(group.group_id, run), group.problem) for group in groups for run in (0, 1)]
    collected = ReplayedRollouts(recipe.rollout_worker, tokenizer, steps=range(1)).collect(0, tasks)
    assert all(len(item.logprobs) == len(item.tokens) and (item.logprobs <= 0).all() for item in collected)


OPENAI = """
from openai import AsyncOpenAI, OpenAI

class Streaming:
    async def run(self, data, base_url, api_key, http_client):
        client = AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client)
        messages = [{"role": "user", "content": data["prompt"]}]
        text = ""
        async for chunk in await client.chat.completions.create(model="any", messages=messages, stream=True):
            text += chunk.choices[0].delta.content or ""
        assert text == str(len(data["prompt"])), text
        return 1.0

class Blocking:
    def run(self, data, base_url, api_key):
        client = OpenAI(base_url=base_url, api_key=api_key)
        answer = client.completions.create(model="any", prompt=data["prompt"])
        return {answer.id: 1.0}
"""


@pytest.mark.parametrize("name", ["Streaming", "Blocking"])
def test_the_openai_package_talks_to_the_base_url(project, server, name):
    pytest.importorskip("openai")
    (project / "agents.py").write_text(OPENAI)
    done = rldbg(project, "rollout", f"agents:{name}", "--data", "data.jsonl", "--addrs", server.address, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["rows"] == 3, (done.stdout, done.stderr)
