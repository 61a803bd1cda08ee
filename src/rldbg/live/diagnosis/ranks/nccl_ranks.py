"""Ranks whose GPU waits for a collective, by what NCCL's RAS service counts: who has launched it and who has not.

Calls of collectives on a GPU return at once, so the stack of a rank that hangs in one shows a later line: the one that
waits for the GPU. Ranks are numbered within each communicator; the process of each is named by the host it runs on.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rldbg.agent import Message
from rldbg.live.diagnosis.graph.entries import front_of, process_id
from rldbg.live.diagnosis.graph.wait_graph import Edge, Id, Node

_SILENT = frozenset({"INCOMPLETE", "DEAD"})


@dataclass
class _Communicator:
    """What is known of one: its name in the answer, the processes of its ranks, and what they have launched."""

    name: str = ""
    processes: dict[int, Id] = field(default_factory=dict)
    launched: dict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    most: dict[str, int] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)

    def reached(self, operation: str) -> int:
        return max([*self.launched[operation].values(), self.most.get(operation, 0)])

    def behind(self, operation: str) -> dict[int, int]:
        reached = self.reached(operation)
        return {rank: count for rank, count in self.launched[operation].items() if count < reached}

    def awaited_by(self, process: Id) -> Iterator[tuple[str, list[tuple[int, str]]]]:
        """The operations that a process has launched and others have not, with those others."""
        own = next((rank for rank, other in self.processes.items() if other == process), None)
        for operation in self.launched:
            behind = self.behind(operation)
            # Where many ranks have come equally far, they are counted and not named.
            if own not in behind and (own in self.launched[operation] or operation in self.most):
                reached = self.reached(operation)
                others = [
                    (rank, f"has launched {count} of {reached} operations") for rank, count in sorted(behind.items())
                ]
                yield f"{operation} {reached} of NCCL communicator #{self.name}", others
        if self.silent and own not in self.silent:
            yield f"an operation of NCCL communicator #{self.name}", [(rank, "is part of it") for rank in self.silent]


def join_nccl(nodes: Sequence[Node], stacks: Sequence[Message]) -> list[Node]:
    """Adds edges from ranks that wait for their GPU to those that NCCL waits for; and nodes of ranks not looked at."""
    known = {node.id: node for node in nodes}
    added: dict[Id, Node] = {}
    for communicator in _communicators(stacks).values():
        for node in [node for node in nodes if node.kind == "cuda"]:
            for awaited, others in communicator.awaited_by(node.id[:2]):
                node.wait = {**node.wait, "call": awaited}
                for rank, relation in others:
                    target = _target(communicator, rank, known, added)
                    node.edges.append(Edge(target, relation))
    return [*nodes, *added.values()]


def nccl_errors(stacks: Sequence[Message]) -> list[str]:
    """What ranks have reported to NCCL, unless a rank is missing, of which the others report as well."""
    communicators = _communicators(stacks)
    found = {}
    for stack in stacks:
        for trouble in stack.get("nccl") or []:
            if trouble["what"] == "ERROR" and trouble["id"] and not communicators[trouble["id"]].silent:
                said = [f"rank {each['rank']} {each['says']}" for each in trouble["ranks"] if each["says"]]
                found[trouble["id"]] = f"NCCL communicator #{trouble['communicator']} has failed: {', '.join(said[:8])}"
    return list(found.values())


def _target(communicator: _Communicator, rank: int, known: Mapping[Id, Node], added: dict[Id, Node]) -> Id:
    process = communicator.processes.get(rank)
    if process is not None and (front := (*process, front_of(process[1], process[0], known))) in known:
        return front
    identity = ("nccl", communicator.name, rank)
    where = f" (process {process[1]} on {process[0]})" if process is not None else ""
    label = f"rank {rank} of that communicator{where}"
    gone = "does not answer NCCL" if rank in communicator.silent else "was not inspected"
    added[identity] = Node(identity, label, activity=gone, gone="not_found")
    return identity


def _communicators(stacks: Sequence[Message]) -> dict[str, _Communicator]:
    """By NCCL's identification, which is the same on all hosts."""
    found: dict[str, _Communicator] = defaultdict(_Communicator)
    for stack in stacks:
        for trouble in stack.get("nccl") or []:
            if not trouble["id"]:
                continue
            communicator = found[trouble["id"]]
            communicator.name = communicator.name or trouble["communicator"]
            for operation, most in trouble["most"].items():
                communicator.most[operation] = max(most, communicator.most.get(operation, 0))
            for each in trouble["ranks"]:
                if each["here"]:
                    communicator.processes[each["rank"]] = (process_id(stack)[0], each["pid"])
                if each["operation"]:
                    communicator.launched[each["operation"]][each["rank"]] = each["launched"]
                if trouble["what"] in _SILENT:
                    communicator.silent.add(each["rank"])
    return found
