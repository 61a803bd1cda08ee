"""Process groups in the wait graph: who belongs to the group that a rank waits in, and groups that are not the same on
all ranks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rldbg.agent import Message
from rldbg.live.diagnosis.graph.entries import process_id
from rldbg.live.diagnosis.graph.wait_graph import Id, Node
from rldbg.live.diagnosis.graph.wait_words import DEFAULT_GROUP, clause
from rldbg.live.diagnosis.hang import HangDiagnosis, ranks_text
from rldbg.live.diagnosis.passed_by import other_branch_of, passed_by

UNKNOWN_MEMBER = " (whether it is a member is not seen)"
_MOST_SHOWN = 8
_SAME_GROUPS = (
    "call new_group for each group on all ranks, in the same order, also on those that are not its members; with "
    "use_local_synchronization=True only the members call it, and all of them must have made as many groups before"
)
_Members = tuple[int, ...]


def group_name(node: Node) -> str:
    """The default group has several names."""
    name = str(node.wait.get("group") or "")
    return "" if name in DEFAULT_GROUP else name


def is_member(node: Node, own: Message, rank: int) -> bool | None:
    """Whether a rank of the same job belongs to the process group that a node waits in; None where that is not seen.
    `own` is the snapshot of the node's process."""
    if members := node.wait.get("members"):
        return rank in members
    if node.wait.get("call") == "init_process_group":
        return True
    if has_own_numbers(node, own):
        # Its processes are looked for in all jobs.
        return False
    several = len(groups_of(own)) > 1
    return None if several else True


def has_own_numbers(node: Node, own: Message) -> bool:
    """Whether the group was named by a library, which may join processes of several jobs."""
    known = any(each["name"] == group_name(node) and not each["ranks"] for each in groups_of(own))
    return known or joins_named(node)


def joins_named(node: Node) -> bool:
    """Whether a rank makes a group that a library names."""
    return node.kind == "rendezvous" and bool(group_name(node)) and node.wait.get("call") != "new_group"


def groups_of(stack: Message) -> list[Message]:
    return list(stack.get("process_groups") or [])


def diagnose_groups(nodes: Sequence[Node], stacks: Sequence[Message]) -> list[tuple[HangDiagnosis, set[Id]]]:
    """Jobs whose ranks wait in a group which others have made of other ranks, or make under another name; each with the
    processes that are told with it."""
    jobs: dict[str, dict[int, Message]] = {}
    for stack in (stack for stack in stacks if stack.get("rank") is not None):
        jobs.setdefault(str(stack.get("job") or ""), {})[int(stack["rank"])] = stack
    told = [(_disagreement(ranked, _waiting(nodes, ranked)), ranked) for ranked in jobs.values()]
    return [(found, {process_id(ranked[rank]) for rank in found.ranks}) for found, ranked in told if found is not None]


def _waiting(nodes: Sequence[Node], ranked: Mapping[int, Message]) -> dict[int, Node]:
    """The ranks of a job that wait in a group of known members, or until it is made."""
    ranks: dict[Id, int] = {process_id(stack): rank for rank, stack in ranked.items()}
    together = [node for node in nodes if node.waits and node.kind in ("collective", "rendezvous")]
    return {ranks[node.id[:2]]: node for node in reversed(together) if node.id[:2] in ranks}


def _disagreement(ranked: Mapping[int, Message], waiting: Mapping[int, Node]) -> HangDiagnosis | None:
    made = {rank: _made(stack, waiting.get(rank)) for rank, stack in ranked.items()}
    for rank, node in sorted(waiting.items()):
        for name in _concerning(node, waiting, made):
            versions = _versions(name, made)
            if len(versions) > 1:
                each = " and ".join(f"{_ranks(of)} on {_ranks(ranks)}" for of, ranks in versions.items())
                words = f"process group {name} is not the same on all ranks: its members are {each}"
                return _told(words, {each for ranks in versions.values() for each in ranks}, ranked, waiting)
        names = {group_name(node): [rank], **_other_names(rank, node, waiting)}
        if len(names) > 1:
            each, members = (
                " and ".join(f"{_ranks(of)} as group {name}" for name, of in names.items()),
                node.wait["members"],
            )
            words = f"the ranks make the group of {_ranks(members)} under different names, so they never meet: {each}"
            return _told(words, {each for ranks in names.values() for each in ranks}, ranked, waiting)
    return None


def _concerning(node: Node, waiting: Mapping[int, Node], made: Mapping[int, Mapping[str, _Members]]) -> list[str]:
    """The groups that a rank may wait in vain for if ranks have made them differently: of one that it makes, each that
    a member has; of one that it uses, that one, if a member has another of the same name or all of them are in it."""
    name, members = group_name(node), tuple(sorted(node.wait.get("members") or ()))
    if not name or not members:
        return []
    if node.kind == "rendezvous":
        return list(dict.fromkeys([name, *(each for rank in members for each in made.get(rank, ()))]))
    own = {made.get(rank, {}).get(name) for rank in members} - {None}
    there = [other.wait for rank in members if (other := waiting.get(rank)) is not None]
    together = len(there) == len(members) and all(
        each.get(fact) == node.wait.get(fact) for each in there for fact in ("kind", "op", "group")
    )
    return [name] if len(own) > 1 or together else []


def _made(stack: Message, node: Node | None) -> dict[str, _Members]:
    """The groups of a rank by their names, with the one that it makes now."""
    made = {str(each["name"]): tuple(sorted(each["ranks"])) for each in groups_of(stack) if each["ranks"]}
    if node is not None and node.kind == "rendezvous" and group_name(node) and node.wait.get("members"):
        made.setdefault(group_name(node), tuple(sorted(node.wait["members"])))
    return made


def _versions(name: str, made: Mapping[int, Mapping[str, _Members]]) -> dict[_Members, list[int]]:
    """The ranks that have a group of this name, by what it is made of."""
    found: dict[_Members, list[int]] = {}
    for rank, groups in sorted(made.items()):
        if name in groups:
            found.setdefault(groups[name], []).append(rank)
    return found


def _other_names(rank: int, node: Node, waiting: Mapping[int, Node]) -> dict[str, list[int]]:
    """Members of a group that is made which make it under another name."""
    found: dict[str, list[int]] = {}
    for other, each in sorted(waiting.items()) if node.kind == "rendezvous" else ():
        alike = each.kind == "rendezvous" and each.wait.get("members") == node.wait.get("members")
        if alike and other != rank and group_name(each) not in ("", group_name(node)):
            found.setdefault(group_name(each), []).append(other)
    return found if node.wait.get("members") and group_name(node) else {}


def _told(
    words: str, concerned: Iterable[int], ranked: Mapping[int, Message], waiting: Mapping[int, Node]
) -> HangDiagnosis:
    counts = {rank: int(stack["groups_made"]) - 1 for rank, stack in ranked.items() if stack.get("groups_made")}
    if len(set(counts.values())) > 1:
        by_count: dict[int, list[int]] = {}
        for rank, count in sorted(counts.items()):
            by_count.setdefault(count, []).append(rank)
        calls = ", ".join(f"{count} so far on {_ranks(ranks)}" for count, ranks in by_count.items())
        words += f"; new_group numbers groups in the order of its calls: {calls}"
    words += next(_skipped(waiting), "")
    return HangDiagnosis(
        words,
        "disagreement",
        tuple(sorted({*concerned, *waiting})),
        tuple(clause(node) for _, node in sorted(waiting.items()))[:_MOST_SHOWN],
        (_SAME_GROUPS,),
    )


def _skipped(waiting: Mapping[int, Node]) -> Iterator[str]:
    """How one rank has come further without the group that another one makes."""
    for rank, node in sorted(waiting.items()):
        for other, far in sorted(waiting.items()):
            makes = node.kind == "rendezvous" and other != rank
            if makes and (branch := other_branch_of(node.route, far.route)):
                yield f"; rank {other} is in the other branch of {branch}"
            elif makes and (how := passed_by(node.route, far.route, waits=True)):
                yield f"; rank {other} skipped the {node.wait.get('call')} of rank {rank}: {how}"


def _ranks(ranks: Iterable[int]) -> str:
    numbers = sorted(ranks)
    return ranks_text(numbers[:_MOST_SHOWN]) + (
        f" and {len(numbers) - _MOST_SHOWN} more" * (len(numbers) > _MOST_SHOWN)
    )
