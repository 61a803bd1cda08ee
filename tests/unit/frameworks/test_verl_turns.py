"""verl's agent loops, by stubs of the shape of their sources (verl 0.9.1): what the engine answered in each turn."""

import asyncio
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from rldbg.frameworks import plan_for, recorded
from rldbg.frameworks.verl.samples import extras_of
from rldbg.frameworks.verl.turns import OUTPUT, TURNS, versions_of

PROMPT, TOOL = [1, 2], [8, 9]


class LLMServerClient:
    """Answers with two tokens, by weights that change after the first turn."""

    async def generate(self, request_id, *, prompt_ids, sampling_params, **_):
        await asyncio.sleep(0)
        token = 10 * len(prompt_ids) + request_id
        return SimpleNamespace(token_ids=[token, token + 1], extra_fields={"global_steps": len(prompt_ids) // 3})


class AgentLoopWorker:
    async def _run_agent_loop(self, client, session):
        ids = list(PROMPT)
        for turn in range(2):
            ids += (await client.generate(session, prompt_ids=ids, sampling_params={})).token_ids
            ids += TOOL if turn == 0 else []
        output = SimpleNamespace(prompt_ids=ids[:2], response_ids=ids[2:-1], extra_fields={"turn_scores": []})
        await self._compute_score([output], kwargs={})
        return output

    async def _compute_score(self, outputs, kwargs):
        assert TURNS not in outputs[0].extra_fields, "the reward function is not shown it"


def hooked(folder, worker, sessions=(0,)):
    """The rollouts of a worker with its functions hooked, all at the same time."""
    agents = ModuleType("verl.experimental.agent_loop.agent_loop")
    functions = AgentLoopWorker.__dict__ | worker.__dict__
    agents.AgentLoopWorker = type("AgentLoopWorker", (), dict(functions))
    clients = ModuleType("verl.workers.rollout.llm_server")
    clients.LLMServerClient = type("LLMServerClient", (), dict(LLMServerClient.__dict__))
    hooks = recorded.ProcessHooks(plan_for(folder))
    hooks.hook(agents)
    hooks.hook(clients)

    async def all_of_them():
        worker, client = agents.AgentLoopWorker(), clients.LLMServerClient()
        found = await asyncio.gather(*(worker._run_agent_loop(client, session) for session in sessions))
        return found if len(sessions) > 1 else found[0]

    return all_of_them()


@pytest.fixture
def outputs(tmp_path):
    """Two rollouts at the same time; the last token of the second answer is cut off."""
    return asyncio.run(hooked(tmp_path, AgentLoopWorker, sessions=(0, 1)))


def test_each_rollout_knows_its_own_turns(outputs):
    for output in outputs:
        turns = output.extra_fields[TURNS]
        assert [(turn["prompt_tokens"], turn["tokens"], turn["version"]) for turn in turns] == [(2, 2, 0), (6, 1, 2)]
        tokens = np.array([*output.prompt_ids, *output.response_ids])
        assert versions_of(turns, tokens).tolist() == [-1, -1, 0, 0, -1, -1, 2]


def test_a_history_that_was_rewritten_says_nothing_of_versions(outputs):
    turns = outputs[0].extra_fields[TURNS]
    assert versions_of(turns, np.array([1, 2, 99, 99, 8, 9, 60])) is None


def test_what_the_driver_knows_of_a_sample_beside_its_tokens(outputs):
    said = {"acc": np.float64(1.0), "overlong": False, "why": [1]}
    data = {"num_turns": [4], "extra_fields": [outputs[0].extra_fields | {"reward_extra_info": said}]}
    extra = extras_of(data, 0)
    assert extra["num_turns"] == 4
    assert extra["rewards"] == {"acc": 1.0, "overlong": False}
    assert len(extra["turns"]) == 2


def test_each_sequence_of_a_rollout_has_the_turn_that_answered_in_it(tmp_path):
    """One output per turn: the prompt of the second has the first answer, which is not its own."""

    class OnePerTurn(AgentLoopWorker):
        async def _run_agent_loop(self, client, session):
            ids, outputs = list(PROMPT), []
            for _ in range(2):
                answer = (await client.generate(session, prompt_ids=ids, sampling_params={})).token_ids
                outputs.append(SimpleNamespace(prompt_ids=list(ids), response_ids=answer, extra_fields={}))
                ids += answer + TOOL
            await self._compute_score(outputs, kwargs={})
            return outputs

    outputs = asyncio.run(hooked(tmp_path, OnePerTurn))
    assert [output.extra_fields[OUTPUT] for output in outputs] == [[0, 2], [1, 2]]
    turns = [output.extra_fields[TURNS] for output in outputs]
    assert [[(turn["prompt_tokens"], turn["version"]) for turn in of_one] for of_one in turns] == [[(2, 0)], [(6, 2)]]
