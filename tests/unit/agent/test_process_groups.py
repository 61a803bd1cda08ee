"""Process groups of torch.distributed as a process keeps them."""

from types import SimpleNamespace

from rldbg.agent.waits.others.process_groups import groups_made, name_groups
from rldbg.agent.waits.reading.objects import OwnObject


class Group:
    """Known by its address only."""


def _modules(groups, count=3):
    """As distributed_c10d has them; `groups` are names and ranks, the first one is of all ranks."""
    made = [(Group(), name, ranks) for name, ranks in groups]
    module = SimpleNamespace(
        _pg_names={group: name for group, name, _ in made},
        _pg_group_ranks={group: {rank: number for number, rank in enumerate(ranks)} for group, _, ranks in made},
        _world=SimpleNamespace(_default_pg=made[0][0]),
        _group_count=count,
    )
    return {"torch.distributed.distributed_c10d": OwnObject(module)}, [f"{id(group):#x}" for group, _, _ in made]


def _collective(group, op="all_reduce", **more):
    return {"kind": "collective", "op": op, "group": group, "peer": None} | more


def test_a_collective_has_the_members_of_its_group():
    modules, addresses = _modules([("0", [0, 1, 2, 3]), ("2", [3, 1])])
    waits = [_collective("default"), _collective(addresses[1]), _collective("", "backward")]
    groups = name_groups(waits, modules)
    assert [(wait["group"], wait["members"]) for wait in waits] == [
        ("default", [0, 1, 2, 3]),
        ("2", [3, 1]),
        ("", None),
    ]
    assert groups[1] == {"name": "2", "size": 2, "ranks": [3, 1]} and groups_made(modules) == 3
    # AND the one who sends to all may be told by its number in the group
    sent = _collective(addresses[1], "broadcast", number=0)
    named = _collective("0x1", group_name="2")
    name_groups([sent, named], modules)
    assert sent["peer"] == 3 and named["members"] == [3, 1]


def test_what_names_no_group_is_in_the_only_one():
    modules, _ = _modules([("0", [0, 1])])
    wait = _collective("", "backward")
    name_groups([wait], modules)
    assert wait["members"] == [0, 1]
    nowhere = _collective("", "backward")
    assert name_groups([nowhere], {}) == [] and nowhere["kind"] == "unknown" and groups_made({}) is None


def test_the_ranks_of_a_group_that_a_library_named_are_its_own_numbers():
    modules, addresses = _modules([("0", [0, 1]), ("weight_sync", [0, 1, 2])])
    wait = _collective(addresses[1], "broadcast")
    groups = name_groups([wait], modules)
    assert wait["members"] is None and wait["group"] == "weight_sync"
    assert groups[1] == {"name": "weight_sync", "size": 3, "ranks": None}
