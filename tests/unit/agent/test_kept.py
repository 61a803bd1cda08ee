"""Tables in which objects are kept that are waited for."""

import queue
import sys

from rldbg.agent.waits.kept import kept_objects, others_ahead
from rldbg.agent.waits.objects import OwnFrame, OwnObject
from rldbg.agent.waits.source import Sources

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
