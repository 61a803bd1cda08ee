"""Where an object that is waited for is kept: a table of the program, and the others of its kind in there."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .kernel import Facts
from .looking import queue_facts
from .objects import Frame, Object
from .places import is_users
from .source import Sources

_MOST_LOOKED_AT = 1000
_MOST_SHOWN = 3
_SHOWN = 60


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


def kept_in(address: int, stacks: Sequence[Sequence[Frame]], sources: Sources) -> Kept | None:
    """The first table that current functions can reach in which an object is."""
    seen: set[int] = set()
    for frame in (frame for frames in stacks for frame in frames if address and is_users(frame.file)):
        for name, table in _tables(frame, sources):
            if table.address not in seen:
                seen.add(table.address)
                if (found := _found_in(name, table, address)) is not None:
                    return found
    return None


def filled_others(kept: Kept) -> Facts:
    """Queues of the same table that have items, by their keys, while the one under `key` has none."""
    sizes = [(key, queue_facts(queue)["size"]) for key, queue in kept.others]
    filled = [[key, size] for key, size in sizes if size]
    return {"table": kept.table, "key": kept.key, "filled": filled[:_MOST_SHOWN], "more": len(filled[_MOST_SHOWN:])}


def _found_in(name: str, table: Object, address: int) -> Kept | None:
    entries = list(_entries(table))
    for key, value in entries:
        if value.address == address:
            return Kept(name, key, "", tuple((k, v) for k, v in entries if v.address != address))
        for attribute, inner in value.attributes().items():
            if inner.address == address:
                others = ((k, v.get(attribute)) for k, v in entries if v is not value)
                return Kept(name, key, attribute, tuple((k, v) for k, v in others if v is not None))
    return None


def _tables(frame: Frame, sources: Sources) -> Iterator[tuple[str, Object]]:
    """Dictionaries, lists and the like in variables of a function and in the attributes of these."""
    own = frame.locals()
    named = [*((name, value) for value, name in sources.names(frame)), *own.items()]
    named += [(f"{name}.{each}", inner) for name, value in own.items() for each, inner in value.attributes().items()]
    yield from ((name, value) for name, value in named if value.length())


def _entries(table: Object) -> Iterator[tuple[str, Object]]:
    if pairs := table.pairs():
        yield from ((_key(key), value) for key, value in pairs[:_MOST_LOOKED_AT])
        return
    yield from ((str(number), value) for number, value in enumerate(table.elements()[:_MOST_LOOKED_AT]))


def _key(key: Object) -> str:
    """As Python would print it, where it is plain."""
    text, number = key.text(), key.number()
    if text is not None:
        return repr(text)[:_SHOWN]
    if number is not None:
        return str(number)
    parts = [_key(each) for each in key.elements()] if key.kind == "tuple" else []
    return f"({', '.join(parts)})" if parts else f"<{key.kind}>"
