"""Tables in which objects are kept that are waited for."""

import os
import queue
import sys
import threading
import time

import pytest

from rldbg.agent.waits.code.source import Sources
from rldbg.agent.waits.others.kept import dropped_from, kept_objects, others_ahead
from rldbg.agent.waits.reading.objects import OwnFrame, OwnObject
from rldbg.agent.waits.reading.process_views import OwnProcess
from rldbg.agent.waits.snapshot import snapshot

BOXES = {key: queue.Queue() for key in ("a", "b", 3)}


def _frame():
    boxes = BOXES
    assert boxes
    return OwnFrame(sys._getframe())


def test_a_table_is_read_once_for_all_who_wait(monkeypatch):
    reads = []
    pairs = OwnObject.pairs
    monkeypatch.setattr(OwnObject, "pairs", lambda self: reads.append(self.address) or pairs(self))
    wanted = {id(box) for box in BOXES.values()}
    found = kept_objects(wanted, [[_frame()] for _ in range(40)], Sources(0))
    assert found.keys() == wanted and reads.count(id(BOXES)) == 1


def test_others_that_have_items_are_told_by_their_keys():
    BOXES["b"].put(1)
    kept = kept_objects({id(BOXES["a"])}, [[_frame()]], Sources(0))[id(BOXES["a"])]
    told = others_ahead(kept, "queue_get")
    assert (told["key"], told["ahead"], told["more"]) == ("'a'", ["'b' (1 item)"], 0)
    assert told["table"] in ("boxes", "BOXES")


class Answers:
    """A thread hands each answer to who asked, by way of a table and of another thread's loop."""

    def __init__(self):
        self.asked, self.arrived = {}, queue.Queue()

    def dispatch(self, call_soon):
        while (answer := self.arrived.get()) is not None:
            call_soon(self.asked.pop(answer[0]).put_nowait, answer[1])

    def ask(self, key):
        own = self.asked[key] = queue.Queue()
        return own.get()


def test_who_hands_the_method_of_what_is_in_a_table_on_may_fill_it():
    answers = Answers()
    asking = threading.Thread(target=answers.ask, args=("k",), name="asks")
    handing = threading.Thread(target=answers.dispatch, args=(lambda method, item: method(item),), name="hands")
    for thread in (asking, handing):
        thread.start()
    try:
        seen = {}
        while seen.get("asks", {}).get("kind") != "queue_get" or seen["hands"]["kind"] != "queue_get":
            time.sleep(0.01)
            found = snapshot(OwnProcess(frozenset({asking.ident, handing.ident})), Sources(os.getpid()))
            seen = {each["thread"]: each["wait"] for each in found["threads"]}
        assert {"who": "hands", "acts": [], "may": True} in seen["asks"]["users"]
        line = Answers.dispatch.__code__.co_firstlineno + 2
        assert seen["asks"]["functions"] == [f"dispatch:{line}"]
    finally:
        answers.arrived.put(("k", 1))
        answers.arrived.put(None)
        asking.join()
        handing.join()


@pytest.mark.parametrize("cleared", [True, False])
def test_what_was_put_in_a_table_with_other_things_and_is_not_there_any_more_is_known(cleared):
    requests = {}

    def generate():
        done = object()
        requests["a"] = {"future": done, "tokens": []}
        if cleared:
            requests.clear()
        return dropped_from(id(done), "done", OwnFrame(sys._getframe()), Sources(os.getpid()))

    assert generate() == ("requests" if cleared else "")
