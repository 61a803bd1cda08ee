"""Processes that say themselves when they get another name are not asked each time somebody lists them."""

import asyncio
import sys
from types import SimpleNamespace

import pytest

from rldbg.agent import parse_selection
from rldbg.agent.identity import describe_process
from rldbg.agent.settings import Settings
from rldbg.core import UnreachableError
from rldbg.live.broker.processes import ProcessTable
from rldbg.live.broker.server import Broker
from rldbg.live.broker.state import BrokerState


class Asked:
    """An agent that counts how often it is asked."""

    def __init__(self, facts):
        self.facts, self.times = facts, 0

    async def request(self, _op, _body, timeout_s):
        self.times += 1
        return self.facts


def test_settled_processes_are_asked_once(tmp_path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("rldbg.live.broker.state.time", SimpleNamespace(monotonic=lambda: clock[0]))

    async def main():
        state = BrokerState(tmp_path)
        agents = {name: Asked({"role": name, "settled": name == "settled"}) for name in ("settled", "changing")}
        for agent in agents.values():
            state.processes.add(dict(agent.facts), agent=agent)
        for _ in range(4):
            await state.refresh(timeout_s=1.0)
            clock[0] += 1.0
        # A ps much later asks everybody: an environment may have changed.
        clock[0] += 60.0
        await state.refresh(timeout_s=1.0)
        return {name: agent.times for name, agent in agents.items()}

    assert asyncio.run(main()) == {"settled": 2, "changing": 5}


def test_a_crash_is_told_with_the_name_that_its_process_has_by_then(tmp_path):
    async def main():
        broker = Broker(token="secret", run=tmp_path)
        worker = broker.state.processes.add({"role": "ray_worker", "pid": 7})
        who = {"role": "policy", "rank": 1, "pid": 7}
        await broker._crashed(worker, {"message": "KeyError: 'x'", "identity": who})
        return worker.who

    assert asyncio.run(main()) == "policy/1"


@pytest.mark.parametrize(
    ("argv", "modules", "settled"),
    [
        (["train.py"], {}, True),
        (["-c"], {}, False),
        (["train.py"], {"torch.distributed.distributed_c10d": SimpleNamespace(is_initialized=lambda: False)}, False),
        (["train.py"], {"torch.distributed.distributed_c10d": SimpleNamespace(is_initialized=lambda: True)}, True),
        (["train.py"], {"ray._private.worker": SimpleNamespace()}, False),
    ],
)
def test_a_process_is_settled_when_nothing_is_about_to_rename_it(tmp_path, monkeypatch, argv, modules, settled):
    for name in ("torch.distributed", "torch.distributed.distributed_c10d", "ray._private.worker"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sys, "argv", argv)
    assert describe_process(Settings(run=tmp_path), {})["settled"] is settled


def test_a_dashboard_that_fails_once_is_asked_again(tmp_path):
    class Cluster:
        advice = ()
        asked = 0

        async def refresh(self):
            self.asked += 1
            if self.asked == 1:
                raise UnreachableError("the dashboard does not answer")
            state.stopping.set()

    async def watched():
        watching = asyncio.ensure_future(state.watch())
        await asyncio.wait_for(state.stopping.wait(), 60)
        watching.cancel()

    state = BrokerState(tmp_path)
    state.external = Cluster()
    state.sessions.breaks.add({"file": "train.py", "line": 1})
    asyncio.run(watched())
    assert state.external.asked == 2


@pytest.mark.parametrize("text", ["policy_1", "policy/1", "policy", "1"])
def test_an_actor_answers_to_the_name_that_ray_shows_too(text):
    ray = {"actor": "policy_1", "class": "Policy"}
    table = ProcessTable()
    table.add({"role": "policy", "rank": 1, "kind": "actor", "pid": 4, "ray": ray})
    table.add({"role": "policy", "rank": 0, "kind": "actor", "pid": 5, "ray": ray | {"actor": "policy_0"}})
    assert [process.who for process in table.select(parse_selection(text))][-1:] == ["policy/1"]
    assert [process.who for process in table.select(parse_selection("policy_0"))] == ["policy/0"]
