"""msprobe: step<N>/rank<R>/dump.json lists calls with the statistics of their tensors, dump_tensor_data/ has values.

A call is "Module.fc.Linear.forward.0" or "Functional.linear.0.backward"; a module's parameters are listed with its
forward call, their gradients as "Module.fc.Linear.parameters_grad".
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rldbg.core import IncompleteDataError
from rldbg.recording import Record, Tree
from rldbg.recording.formats.bounded_json import parse_json
from rldbg.recording.formats.malformed import Malformed, reading
from rldbg.recording.formats.pt_reader import load_pt
from rldbg.recording.layouts.base import Entry, Layout, Listing, listing_of, matches
from rldbg.recording.layouts.pickled import plain

_FILE = re.compile(r"(?:^|/)step(?P<step>\d+)/(?:rank(?P<rank>\d*)|proc(?P<pid>\d+))/dump\.json$")
_IGNORED = r"(^|/)(stack|construct)\.json$|(^|/)dump_tensor_data/[^/]*\.(pt|npy)$"
_TENSORS = "dump_tensor_data"
_STATISTICS = {"Max": "max", "Min": "min", "Mean": "mean", "Norm": "norm"}


class _Item(NamedTuple):
    """A call, or one parameter: its kind, its name, and its tensors by field."""

    kind: str
    name: str
    tensors: Mapping[str, Mapping[str, Any]]


class MsprobeLayout(Layout):
    name = "msprobe"
    looks_for = "step<N>/rank<R>/dump.json"
    files = _FILE

    def survey(self, tree: Tree) -> Listing:
        entries = []
        ranks: dict[str, int] = {}
        for fact, found in sorted(matches(tree, _FILE), key=lambda each: each[0].name):
            rank = int(found["rank"]) if found["rank"] else ranks.setdefault(found["pid"] or "", len(ranks))
            counts: dict[str, int] = {}
            for part, kind in enumerate(_kinds(tree, fact.name)):
                micro = counts[kind] = counts.get(kind, -1) + 1
                entries.append(Entry(kind, int(found["step"]), rank, micro, 0, 0, fact.name, fact.size, part, 0))
        return listing_of(tree, entries, ignored=_IGNORED)

    def load(self, tree: Tree, file: str) -> Any:
        folder = file.rpartition("/")[0]

        def values(name: str) -> Any:
            return plain(load_pt(tree.local(f"{folder}/{_TENSORS}/{name}" if folder else f"{_TENSORS}/{name}")))

        return _items(tree.local(file)), values

    def record(self, content: Any, entry: Entry) -> Record:
        items, values = content
        if entry.part >= len(items):
            raise Malformed("the file no longer contains the call")
        item: _Item = items[entry.part]
        if item.kind not in ("param", "gradient"):
            fields = {"name": item.name} | {name: _value(about, values) for name, about in item.tensors.items()}
            return Record(entry.key, fields, source=entry.file)
        ((_, about),) = item.tensors.items()
        facts = {"shape": about.get("shape"), "dtype": str(about.get("dtype", "")).removeprefix("torch.")}
        fields = {"param_name": item.name} | facts | _statistics(about)
        if about.get("data_name"):
            fields[item.kind] = values(about["data_name"])
        return Record(entry.key, fields, source=entry.file)


def _kinds(tree: Tree, file: str) -> list[str]:
    try:
        return [item.kind for item in _items(tree.local(file))]
    except (OSError, IncompleteDataError):
        return ["forward_call"]  # listed, so that reading it says what is wrong


def _items(path: Path) -> list[_Item]:
    with reading(path):
        content = parse_json(path.read_bytes())
        data = content.get("data") if isinstance(content, Mapping) else None
        if not isinstance(data, Mapping) or not all(isinstance(call, Mapping) for call in data.values()):
            raise Malformed("no calls: not a dump.json of msprobe")
        return [item for name, call in data.items() for item in _of_call(name, call)]


def _of_call(name: str, call: Mapping[str, Any]) -> Iterator[_Item]:
    owner, _, _ = name.partition(".forward")
    if ".parameters_grad" in name:
        owner = name.partition(".parameters_grad")[0]
        for parameter, about in call.items():
            yield _Item("gradient", f"{_module(owner)}{parameter}", {"": _first(about)})
        return
    tensors = dict(_tensors(call))
    yield _Item("backward_call" if ".backward" in name else "forward_call", name, tensors)
    parameters = call.get("parameters")
    for parameter, about in parameters.items() if isinstance(parameters, Mapping) else ():
        yield _Item("param", f"{_module(owner)}{parameter}", {"": _first(about)})


def _tensors(call: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for group, field in (("input_args", "input"), ("input_kwargs", "input"), ("input", "input"), ("output", "output")):
        found = call.get(group)
        listed = enumerate(found) if isinstance(found, list) else ()
        for place, about in found.items() if isinstance(found, Mapping) else listed:
            if isinstance(about, Mapping) and "Tensor" in str(about.get("type")):
                yield f"{field}.{place}", about


def _module(owner: str) -> str:
    """ "Module.layers.0.fc.Linear" is the module layers.0.fc; its parameters are named below it."""
    path = owner.split(".")[1:-1]
    return "".join(f"{part}." for part in path)


def _first(about: Any) -> Mapping[str, Any]:
    found = about[0] if isinstance(about, list) and about else about
    return found if isinstance(found, Mapping) else {}


def _value(about: Mapping[str, Any], values: Callable[[str], Any]) -> Any:
    return values(about["data_name"]) if about.get("data_name") else _statistics(about)


def _statistics(about: Mapping[str, Any]) -> dict[str, Any]:
    return {ours: about[theirs] for theirs, ours in _STATISTICS.items() if about.get(theirs) is not None}


LAYOUT = MsprobeLayout()
