"""Process groups of torch.distributed: their names and ranks in a process, and which of them a wait is in."""

import re
from collections.abc import Mapping, Sequence

from ..calls.looking import DEFAULT_GROUP, Wait
from ..reading.kernel import Facts
from ..reading.objects import Frame, Object

_C10D = "torch.distributed.distributed_c10d"
_RANK_NAMES = ("rank", "global_rank", "world_rank", "local_rank", "rank_id")
# Names that torch gives: the number of a group, or a hash of its ranks.
_TORCHS_NAME = re.compile(r"|default_pg|\d+|[0-9a-f]{40}")


def name_groups(waits: Sequence[Wait], modules: Mapping[str, Object]) -> list[Facts]:
    """Adds the name and the ranks of its process group to each wait in a collective, as torch knows them. All groups of
    the process: `ranks` in the order of their numbers in the group; None where these are not numbers of the job."""
    by_address = _groups(modules)
    groups = list(by_address.values())
    by_name = {group["name"]: group for group in groups}
    for wait in (wait for wait in waits if wait["kind"] == "collective"):
        if wait["op"] == "backward" and not groups:
            wait["kind"] = "unknown"
        told, name, number = (wait.pop(each, None) for each in ("group", "group_name", "number"))
        own = by_name.get(name) or by_address.get(_default(modules) if told == DEFAULT_GROUP else str(told))
        # What does not name its group is in the only one.
        own = own or (groups[0] if len(groups) == 1 else {})
        wait["group"] = told if told == DEFAULT_GROUP else own.get("name", "")
        wait["members"] = own.get("ranks")
        if wait["peer"] is None and number is not None and number < len(wait["members"] or ()):
            wait["peer"] = wait["members"][number]
    return groups


def said_ranks(stacks: Sequence[Sequence[Frame]]) -> dict[str, int]:
    """What the program's own functions call their rank, the outermost first: of one that was told it in a call, and not
    in its environment, torch keeps the number in compiled code."""
    found: dict[str, int] = {}
    for frame in (frame for frames in stacks for frame in reversed(frames)):
        owner = frame.variable("self")
        for name in _RANK_NAMES:
            for value in (frame.variable(name), owner.get(name) if owner is not None else None):
                number = value.number() if value is not None else None
                if number is not None and number >= 0:
                    found.setdefault(name, number)
    return found


def groups_made(modules: Mapping[str, Object]) -> int | None:
    """How many groups this process has numbered, also those that it is not a member of."""
    module = modules.get(_C10D)
    count = module.get("_group_count") if module is not None else None
    return count.number() if count is not None else None


def _groups(modules: Mapping[str, Object]) -> dict[str, Facts]:
    """By their addresses."""
    module = modules.get(_C10D)
    names, ranks = (module.get("_pg_names"), module.get("_pg_group_ranks")) if module is not None else (None, None)
    numbers = {f"{key.address:#x}": _in_order(value) for key, value in ranks.pairs()} if ranks is not None else {}
    found: dict[str, Facts] = {}
    for key, value in names.pairs() if names is not None else ():
        name, of_group = value.text() or "", numbers.get(f"{key.address:#x}", [])
        # Libraries that join processes of several jobs name the group themselves, and number its ranks anew.
        known = bool(of_group) and _TORCHS_NAME.fullmatch(name) is not None
        found[f"{key.address:#x}"] = {"name": name, "size": len(of_group), "ranks": of_group if known else None}
    return found


def _in_order(ranks: Object) -> list[int]:
    """The ranks of a group by their numbers in it."""
    by_number = {value.number(): key.number() for key, value in ranks.pairs()}
    return [rank for number in range(len(by_number)) if (rank := by_number.get(number)) is not None]


def _default(modules: Mapping[str, Object]) -> str:
    """The address of the group of all ranks."""
    world = modules[_C10D].get("_world") if _C10D in modules else None
    group = world.get("_default_pg") if world is not None else None
    return f"{group.address:#x}" if group is not None else ""
