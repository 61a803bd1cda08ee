"""One `pause` is enough, whatever an earlier client has just left behind."""

import random

import pytest
from live_job import looping_job, until

from rldbg.agent import BrokerAddress, dial


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    with looping_job(tmp_path_factory.mktemp("pause")) as job:
        yield job


class Visitor:
    """A client that asks without waiting for answers, and leaves without a word."""

    def __init__(self, job):
        address = BrokerAddress.read(job.run.path)
        self._wire = dial((address.host, address.port), kind="client", token=address.token, about={})
        self._asked = 0

    def ask(self, op, **body):
        self._asked += 1
        self._wire.send({"type": "request", "id": self._asked, "op": op, "body": {"who": "loop"} | body})

    def leave_after(self, answers):
        for _ in range(answers):
            self._wire.receive(timeout_s=60.0)
        self._wire.close()


def _pauses(job):
    (loop,) = job.client.request("pause", who="loop")["processes"]
    assert loop["ok"] and loop["state"] == "stopped", loop
    (later,) = [p for p in job.ps() if p["who"] == "loop"]
    assert later["state"] == "stopped" and later["stop_number"] == loop["stop_number"], later


@pytest.mark.parametrize("rounds", [6, pytest.param(150, marks=pytest.mark.soak)])
def test_a_pause_after_a_client_that_was_attached(job, rounds):
    for number in range(rounds):
        visitor = Visitor(job)
        visitor.ask("attach")
        visitor.leave_after(answers=number % 2)
        _pauses(job)
        job.client.request("continue", who="loop")


@pytest.mark.parametrize("rounds", [6, pytest.param(150, marks=pytest.mark.soak)])
def test_a_pause_after_a_client_that_let_it_go(job, rounds):
    chance = random.Random(rounds)
    for _ in range(rounds):
        _pauses(job)
        visitor = Visitor(job)
        visitor.ask("continue")
        until(lambda: not job.stopped(), "loop to run")
        # With no answer read it leaves while the session is being released.
        visitor.leave_after(answers=chance.randint(0, 1))
    _pauses(job)
    job.client.request("continue", who="loop")
