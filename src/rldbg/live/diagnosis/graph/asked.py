"""One wait, with everything that is known besides: what the edges of the wait graph are looked for by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rldbg.live.diagnosis.graph.entries import process_id
from rldbg.live.diagnosis.graph.wait_graph import Id, Node, WaitFacts

_RELATIONS = {
    "file_lock": "holds it",
    "lock_file": "is named in it",
    "child": "is that process",
    "message": "is connected to it",
    "data_loader": "should load it",
} | dict.fromkeys(("pipe", "socket", "stream", "poll", "stdin"), "is at the other end")


@dataclass(frozen=True)
class Asked:
    """A wait, where it was seen, its node, and everything that is known besides."""

    wait: WaitFacts
    stack: WaitFacts
    node: Node
    known: Mapping[Id, Node]
    stacks: Sequence[WaitFacts]

    @property
    def base(self) -> Id:
        return process_id(self.stack)

    @property
    def kind(self) -> str:
        return str(self.wait["kind"])

    def relation(self) -> str:
        """The part of a process at the other end."""
        if not self.wait.get("accepted", True):
            return "listens there and has not accepted the connection"
        return _RELATIONS.get(self.kind, "should do it")
