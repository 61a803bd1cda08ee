"""All known failures: loaded from YAML, checked as a whole, with the relations between them.

The packaged knowledge and that of the frameworks come first; folders of the user (RLDBG_KNOWLEDGE, `--knowledge`) add
to it or replace an entry of the same id.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from rldbg.core import Environment, UsageError
from rldbg.doctor.knowledge.entries import PACKAGED, TESTED, KnownFailure
from rldbg.doctor.search.anchors import NoAnchorError, anchors_of
from rldbg.frameworks import frameworks

_FEW_CAUSES = 4


class Library:
    """The entries by id, and which can cause which: a relation stated by one entry is added to the other."""

    def __init__(self, entries: Iterable[KnownFailure]) -> None:
        stated = {entry.id: entry for entry in entries}
        pairs = {(entry.id, effect): None for entry in stated.values() for effect in entry.leads_to}
        pairs |= {
            (cause, entry.id): None for entry in stated.values() for cause in (*entry.downstream_of, *entry.suspects)
        }
        effects: dict[str, list[str]] = {name: [] for name in stated}
        causes: dict[str, list[str]] = {name: [] for name in stated}
        for cause, effect in pairs:
            if cause not in stated or effect not in stated:
                unknown, by = (effect, cause) if cause in stated else (cause, effect)
                raise UsageError(f"{by} refers to {unknown}, which is not an entry", "correct leads_to, downstream_of")
            effects[cause].append(effect)
            causes[effect].append(cause)
        self.entries: Mapping[str, KnownFailure] = {
            name: entry.model_copy(update={"leads_to": effects[name], "downstream_of": causes[name]})
            for name, entry in stated.items()
        }

    @classmethod
    def load(cls, folders: Sequence[Path | str] = (), environment: Environment | None = None) -> "Library":
        """The packaged knowledge and that of the given folders, or of RLDBG_KNOWLEDGE (separated by colons)."""
        named = [Path(item) for item in (environment or Environment()).text("RLDBG_KNOWLEDGE").split(":") if item]
        entries: dict[str, KnownFailure] = {}
        for entry in packaged():
            entries[entry.id] = entry
        for folder in (*named, *map(Path, folders)):
            for entry in read_folder(folder):
                entries[entry.id] = entry
        return cls(entries.values())

    @cached_property
    def direct_effects(self) -> Mapping[str, frozenset[str]]:
        """For each entry what it is stated to cause."""
        return {name: frozenset(entry.leads_to) - {name} for name, entry in self.entries.items()}

    @cached_property
    def effects(self) -> Mapping[str, frozenset[str]]:
        """For each entry everything it can cause, directly or through others."""
        return {name: frozenset(_reach(name, self.direct_effects) - {name}) for name in self.direct_effects}

    def is_telling(self, name: str) -> bool:
        """Whether it has known causes, but not too many: then it narrows the cause down."""
        return 0 < len(set(self.entries[name].downstream_of) - {name}) <= _FEW_CAUSES

    def __getitem__(self, name: str) -> KnownFailure:
        if name not in self.entries:
            raise UsageError(f"no entry {name!r}", f"`rldbg doctor --list` lists all; nearest: {self._nearest(name)}")
        return self.entries[name]

    def _nearest(self, name: str) -> str:
        from difflib import get_close_matches

        return ", ".join(get_close_matches(name, self.entries, n=3, cutoff=0.3)) or "none"


def _reach(start: str, direct: Mapping[str, frozenset[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = list(direct[start])
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting.extend(direct[name])
    return seen


@lru_cache(maxsize=1)
def packaged() -> tuple[KnownFailure, ...]:
    """The entries that come with rldbg and with frameworks; they cannot change while it runs."""
    of_frameworks = [file for framework in frameworks() if (file := framework.file("knowledge.yaml")) is not None]
    return tuple(entry for place in (PACKAGED, *of_frameworks) for entry in read_folder(place, context=TESTED))


def read_folder(folder: Path, context: str | None = None) -> list[KnownFailure]:
    """Every entry of the YAML files in a folder (or of one file); errors name file, entry and what is wrong.

    Expressions are checked, but not in the context TESTED.
    """
    files = [folder] if folder.is_file() else sorted((*folder.glob("*.yaml"), *folder.glob("*.yml")))
    if not files:
        raise UsageError(f"no knowledge in {folder}", "give a folder with *.yaml files, or unset RLDBG_KNOWLEDGE")
    return [entry for file in files for entry in _read_file(file, context)]


class _EachKeyOnce(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML as the knowledge is written: a key given twice is an error, not the last one silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _value in node.value]
        twice = next((key for number, key in enumerate(keys) if key in keys[:number]), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"{twice!r} is defined twice", node.start_mark)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def _read_file(file: Path, context: str | None) -> list[KnownFailure]:
    try:
        raw: Any = yaml.load(file.read_text(encoding="utf-8"), Loader=_EachKeyOnce)
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(
            f"cannot read {file}: {error}", "fix the file; `rldbg doctor --new-entry LOG` drafts one"
        ) from None
    if not isinstance(raw, list):
        raise UsageError(f"{file} is not a list of entries", "begin each entry with `- id: ...`")
    category = {"category": file.stem} if file.parent == PACKAGED else {}
    entries = []
    for item in raw:
        name = item.get("id", "?") if isinstance(item, dict) else "?"
        try:
            entry = KnownFailure.model_validate(category | item if isinstance(item, dict) else item, context=context)
            for expression in _searched(entry):
                anchors_of(expression)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise UsageError(
                f"{file}: entry {name}: {where}: {first['msg']}", "see docs/doctor.md for the keys"
            ) from None
        except NoAnchorError as error:
            raise UsageError(f"{file}: entry {name}: {error}", "add `anchors:` or more literal text") from None
        entries.append(entry)
    return entries


def _searched(entry: KnownFailure) -> list[str]:
    """The expressions that must be findable by literal text."""
    return [s.match for s in entry.signatures if not s.anchors] + entry.needs + entry.excluded_by + entry.traces
