"""sglang's dumper: one file per tensor, rank and call, named by its tags; and its forward hook: one file per pass.

<dir>/step=0___rank=0___dump_index=1___name=log_probs___recompute_status=disabled___layer_id=0.pt
<dir>/TP0_PP0_Rank0_pid123/Pass00000.pt
"""

import re
from collections.abc import Mapping
from typing import Any

from rldbg.recording import FileFact, Record, Tree
from rldbg.recording.formats.pt_reader import load_pt
from rldbg.recording.layouts.base import Entry, Layout, Listing, listing_of, matches
from rldbg.recording.layouts.pickled import plain

_TAGGED = re.compile(r"(?:^|/)(?P<tags>[^/]*(?:^|___|/)name=[^/]*)\.pt$")
_PASS = re.compile(r"(?:^|/)TP(?P<tp>\d+)(?:_PP(?P<pp>\d+))?_Rank(?P<rank>\d+)[^/]*/Pass(?P<pass>\d+)\.pt$")
_PASS_KIND = "forward_pass"
_RANK = re.compile(r"(?P<axis>[a-z_]+)_rank$")


class SglangLayout(Layout):
    name = "sglang"
    looks_for = "step=<N>___rank=<R>___dump_index=<I>___name=<tensor>....pt, or TP<t>_PP<p>_Rank<r>_pid<n>/Pass<N>.pt"

    def recognises(self, tree: Tree) -> bool:
        return any(_tags(found) for _, found in matches(tree, _TAGGED)) or any(True for _ in matches(tree, _PASS))

    def survey(self, tree: Tree) -> Listing:
        entries = _tagged_entries(tree)
        for fact, found in matches(tree, _PASS):
            entries.append(
                Entry(_PASS_KIND, int(found["pass"]), int(found["rank"]), 0, 0, 0, fact.name, fact.size, 0, 0)
            )
        return listing_of(tree, entries, ignored=r"(^|/)comparator_report\.jsonl$")

    def load(self, tree: Tree, file: str) -> Any:
        return load_pt(tree.local(file))

    def record(self, content: Any, entry: Entry) -> Record:
        found = _PASS.search(entry.file)
        if found:
            fields = plain(dict(content) if isinstance(content, Mapping) else {"value": content})
            place = {axis: int(found[axis]) for axis in ("tp", "pp") if found[axis]}
            return Record(entry.key, fields, coordinates=place, source=entry.file)
        meta: Any = {}
        if isinstance(content, Mapping) and "value" in content:
            content, meta = content["value"], content.get("meta") or {}
        named = _TAGGED.search(entry.file)
        extra = (_tags(named) if named else {}) | (dict(meta) if isinstance(meta, Mapping) else {"meta": meta})
        return Record(
            entry.key, {"value": plain(content)}, coordinates=_coordinates(extra), extra=plain(extra), source=entry.file
        )


def _tagged_entries(tree: Tree) -> list[Entry]:
    """Dumps of one tensor in a step (once per layer) are numbered in the order of the dumps, as `micro`."""
    found: list[tuple[str, str, int, int, int, FileFact]] = []
    for fact, match in matches(tree, _TAGGED):
        tags = _tags(match)
        if tags:
            folder = fact.name.rpartition("/")[0]
            found.append((folder, tags["name"], tags["step"], tags["rank"], tags["dump_index"], fact))
    entries: list[Entry] = []
    previous: tuple[str, str, int, int] | None = None
    micro = 0
    for folder, name, step, rank, _, fact in sorted(found):
        same = (folder, name, step, rank) == previous
        previous, micro = (folder, name, step, rank), micro + 1 if same else 0
        entries.append(Entry(name, step, rank, micro, 0, 0, fact.name, fact.size, 0, 0))
    return entries


def _tags(match: re.Match[str]) -> dict[str, Any]:
    """The tags of a file name; empty when it is not one of the dumper's. Old dumps say forward_pass_id for step."""
    tags: dict[str, Any] = dict(item.partition("=")[::2] for item in match["tags"].split("___"))
    tags["step"] = tags.pop("forward_pass_id", tags.get("step", ""))
    for name in ("step", "rank", "dump_index"):
        text = str(tags.get(name, ""))
        if not re.fullmatch(r"-?\d+", text):
            if name != "dump_index":
                return {}
            text = "0"
        tags[name] = int(text)
    return tags


def _coordinates(meta: Mapping[str, Any]) -> dict[str, int]:
    """The rank's coordinate in each parallel dimension, from whichever framework's parallel info is recorded."""
    place: dict[str, int] = {}
    for key, info in meta.items():
        if key.endswith("_parallel_info") and isinstance(info, Mapping):
            for name, value in info.items():
                found = _RANK.fullmatch(str(name))
                if found and isinstance(value, int):
                    place.setdefault(found["axis"], value)
    return place


LAYOUT = SglangLayout()
