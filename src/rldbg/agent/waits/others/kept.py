"""Where an object that is waited for is kept: a table of the program, and the others of its kind in there; and what a
process of Ray keeps for its actor, also while this runs nothing: queues of `ray.util.queue`, and their items."""

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..calls.looking import is_ray_queue, queue_facts, shared_key
from ..code.origins import attributes_given, last_name, own_nodes, tables_given
from ..code.places import is_users
from ..code.resolving import resolve
from ..code.source import Sources
from ..reading.kernel import Facts
from ..reading.objects import Frame, Object, is_a, quoted

_MOST_LOOKED_AT = 1000
_MOST_SHOWN = 3
_MOST_TABLES, _MOST_OWNERS, _MOST_COMPARED = 300, 32, 16
_SHOWN = 60
# These only wait for what they are given.
_AWAITING = frozenset({"wait_for", "shield", "gather", "wait", "wrap_future", "print", "id"})


@dataclass(frozen=True)
class Kept:
    """`table` names a dictionary or list; the object is in it under `key`, or is the `attribute` of what is there."""

    table: str
    key: str
    attribute: str
    others: tuple[tuple[str, Object], ...]

    @property
    def name(self) -> str:
        """What has to be in the source where such an object is used."""
        return self.attribute or self.table.rpartition(".")[2]


def kept_objects(wanted: set[int], stacks: Sequence[Sequence[Frame]], sources: Sources) -> dict[int, Kept]:
    """For objects by their addresses, the first table that current functions can reach in which they are; or in which
    objects are that have them as attributes. Each table is read once."""
    tables: dict[int, tuple[str, list[tuple[str, Object]]]] = {}
    for frame in (frame for frames in stacks for frame in frames if wanted and is_users(frame.file)):
        for name, table in _tables(frame, sources):
            if table.address not in tables and len(tables) < _MOST_TABLES:
                tables[table.address] = name, list(entries_of(table))
    found: dict[int, Kept] = {}
    for name, entries in tables.values():
        for key, value in entries:
            if value.address in wanted:
                found.setdefault(value.address, Kept(name, key, "", _others(key, entries)))
    left = [(name, entries) for name, entries in tables.values() if len(entries) <= _MOST_OWNERS]
    # Subscribers by topic: a list of queues under each key.
    for name, entries in left if wanted - found.keys() else ():
        for key, value in entries:
            for inner in value.elements()[:_MOST_OWNERS] if is_a(value, "list", "set", "dict") else ():
                if inner.address in wanted:
                    found.setdefault(inner.address, Kept(name, key, "", ()))
    for name, entries in left if wanted - found.keys() else ():
        for key, value in entries:
            for attribute, inner in value.attributes().items():
                if inner.address in wanted:
                    others = ((k, v.get(attribute)) for k, v in _others(key, entries))
                    kept = Kept(name, key, attribute, tuple((k, v) for k, v in others if v is not None))
                    found.setdefault(inner.address, kept)
    return found


def _others(key: str, entries: Sequence[tuple[str, Object]]) -> tuple[tuple[str, Object], ...]:
    return tuple(entry for entry in entries if entry[0] != key)[:_MOST_COMPARED]


def dropped_from(address: int, name: str, place: Frame, sources: Sources) -> str:
    """The table in which the function of a place has put an object of this name, if it is not there any more."""
    function = sources.function(place)
    nodes = own_nodes(function) if function is not None and address else ()
    for target in (target for node in nodes for target in tables_given(node, name)):
        table = resolve(target, place)
        entries = [value for _, value in entries_of(table)] if table is not None else []
        inner = [each for value in entries for each in (*value.elements(), *value.attributes().values())]
        there = address in {each.address for each in (*entries, *inner)}
        if table is not None and table.length() is not None and not there:
            return ast.unparse(target)
    return ""


def overwritten(address: int, name: str, place: Frame, sources: Sources) -> str:
    """The attribute that the function of a place has given the object of this variable, or has taken it from, if it
    stands for something else by now and the function has handed the object to nobody."""
    function = sources.function(place)
    nodes = list(own_nodes(function)) if function is not None and name.isidentifier() and address else []
    calls = [node for node in nodes if isinstance(node, ast.Call) and last_name(node.func) not in _AWAITING]
    given = [each for call in calls for each in (*call.args, *(word.value for word in call.keywords))]
    if any(isinstance(inner, ast.Name) and inner.id == name for each in given for inner in ast.walk(each)):
        return ""
    taken = [node.value for node in nodes if isinstance(node, ast.Assign) and name in map(ast.unparse, node.targets)]
    from_attribute = taken if len(taken) == 1 and isinstance(taken[0], ast.Attribute) else []
    for target in (*(each for node in nodes for each in attributes_given(node, name)), *from_attribute):
        now = resolve(target, place)
        if now is not None and now.address != address:
            return ast.unparse(target)
    return ""


def others_ahead(kept: Kept, kind: str) -> Facts:
    """Others of the same table, by their keys, for which that has happened which the one under `key` waits for."""
    happened = _HAPPENED.get(kind)
    told = [(key, happened(each)) for key, each in kept.others] if happened is not None else []
    ahead = [f"{key}{f' ({words})' if words else ''}" for key, words in told if words is not None]
    return {"table": kept.table, "key": kept.key, "ahead": ahead[:_MOST_SHOWN], "more": len(ahead[_MOST_SHOWN:])}


def _items(queue: Object) -> str | None:
    size = queue_facts(queue)["size"]
    return f"{size} {'item' if size == 1 else 'items'}" if size else None


def _is_set(event: Object) -> str | None:
    flag = event.get("_flag") or event.get("_value")
    return "" if flag is not None and flag.number() else None


def _is_completed(future: Object) -> str | None:
    return "" if future.state() == "FINISHED" else None


_HAPPENED: dict[str, Callable[[Object], str | None]] = {
    "queue_get": _items,
    "event": _is_set,
    "future": _is_completed,
}


def _tables(frame: Frame, sources: Sources) -> Iterator[tuple[str, Object]]:
    """Dictionaries, lists and the like in variables of a function and in the attributes of these."""
    own = frame.locals()
    named = [*((name, value) for value, name in sources.names(frame)), *own.items()]
    named += [(f"{name}.{each}", inner) for name, value in own.items() for each, inner in value.attributes().items()]
    yield from ((name, value) for name, value in named if value.length())


def entries_of(table: Object) -> Iterator[tuple[str, Object]]:
    """What is in a dictionary, list or the like, by keys as Python prints them."""
    if pairs := table.pairs():
        yield from ((_key(key), value) for key, value in pairs[:_MOST_LOOKED_AT])
        return
    yield from ((str(number), value) for number, value in enumerate(table.elements()[:_MOST_LOOKED_AT]))


def _key(key: Object) -> str:
    """As Python would print it, where it is plain."""
    text, number = quoted(key, _SHOWN), key.number()
    if text is not None:
        return text
    if number is not None:
        return str(number)
    parts = [_key(each) for each in key.elements()] if key.kind == "tuple" else []
    return f"({', '.join(parts)})" if parts else f"<{key.kind}>"


def ray_keeping(modules: Mapping[str, Object]) -> Facts:
    """`cluster` is the address of the one that the process has joined; `tables` name attributes of its actor in which
    several queues are, by what all processes know these by; `items` counts those of the queue that the actor is."""
    module = modules.get("ray._private.worker")
    worker = module.get("global_worker") if module is not None else None
    if module is None or worker is None:
        return {}
    node, kept = module.get("_global_node"), worker.get("actors")
    address = node.attributes().get("_gcs_address") if node is not None else None
    actors = [actor for _, actor in kept.pairs()] if kept is not None and "ray.util.queue" in modules else []
    queues = [actor.attributes().get("queue") for actor in actors if is_a(actor, "_QueueActor")]
    return {
        "cluster": (address.text() if address is not None else "") or "",
        "tables": [table for actor in actors for table in _queue_tables(actor)],
        "items": next((queue_facts(queue)["size"] for queue in queues if queue is not None), None),
    }


def _queue_tables(actor: Object) -> Iterator[Facts]:
    for name, value in actor.attributes().items():
        queues = {shared_key(each): key for key, each in entries_of(value) if is_ray_queue(each)}
        if queues:
            yield {"name": f"self.{name}", "queues": queues}
