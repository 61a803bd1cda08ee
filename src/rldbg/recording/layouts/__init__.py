"""Every layout rldbg opens: our own, then those of the frameworks, asked in this order whether a path is theirs.

A layout's module is loaded when its turn comes: opening our own recordings costs no import of the others.
"""

from collections.abc import Iterator
from typing import Never

from rldbg.core import IncompleteDataError, UsageError, did_you_mean
from rldbg.frameworks import frameworks, lineage
from rldbg.recording.layouts.base import IDS_FROM, UNCOUNTED, VALIDATION, Entry, Layout, Listing
from rldbg.recording.tree import LocalTree, Tree

_PART = "layout"


def layouts() -> Iterator[Layout]:
    """One of each, in the order in which they are asked; ours comes first."""
    return (layout for framework in frameworks() if (layout := framework.part(_PART)) is not None)


_SHOWN = 5
_LOOKED_INTO = 200


def only_recording_below(tree: Tree) -> str | None:
    """The folder below a local root that is a recording, where there is exactly one: a run's folder names its dump."""
    if not isinstance(tree, LocalTree) or len(tree.scan.folders) > _LOOKED_INTO:
        return None
    found = _recordings_below(tree)
    return found[0] if len(found) == 1 else None


def _recordings_below(tree: Tree) -> list[str]:
    """Folders below a local root that are recordings themselves: the uppermost ones, up to a limit."""
    if not isinstance(tree, LocalTree):
        return []
    found: list[str] = []
    for folder in sorted(tree.scan.folders)[:_LOOKED_INTO]:
        if not any(folder.startswith(outer) for outer in found):
            inner = LocalTree(tree.root / folder)
            if any(layout.recognises(inner) for layout in layouts()):
                found.append(folder)
    return [tree.place(folder.rstrip("/")) for folder in found]


def named(name: str) -> Layout:
    """The layout of this name, or of the framework that the named one is a fork of; dashes and underscores are one."""
    wanted = name.replace("-", "_").lower()
    framework = next((each for each in frameworks() if each.name == wanted), None)
    for each in lineage(framework) if framework is not None else ():
        layout: Layout | None = each.part(_PART)
        if layout is not None:
            return layout
    names = [layout.name for layout in layouts()]
    hint = did_you_mean(wanted, names, f"choose one of: {', '.join(names)}")
    raise UsageError(f"unknown layout: {name!r}", hint)


def recognised(tree: Tree) -> Layout | None:
    """The first layout that recognises the files."""
    return next((layout for layout in layouts() if layout.recognises(tree)), None)


def refuse_unrecognised(tree: Tree) -> Never:
    """Says what was looked for in files that no layout recognises, and where recordings are."""
    if not tree.files:
        raise IncompleteDataError(f"{tree.title} holds no files", "give the folder that the dumps were written to")
    inner = _recordings_below(tree)
    if inner:
        places = ", ".join(inner[:_SHOWN]) + (" ..." if len(inner) > _SHOWN else "")
        raise IncompleteDataError(
            f"{tree.title} is not a recording itself, but there are recordings below it: {places}",
            f"give one of them, for example {inner[0]}",
        )
    names = [fact.name for fact in tree.files]
    if "run.json" in names:
        raise IncompleteDataError(
            f"nothing is recorded in the run {tree.title}",
            "record it: rldbg run --record -- COMMAND; if it was, `rldbg frameworks --run RUN` says why not",
        )
    known = ", ".join(layout.name for layout in layouts())
    found = f"found {len(names)} files such as {', '.join(names[:3])}"
    raise IncompleteDataError(
        f"{tree.title} is not a recording in a known layout ({known}): {found}",
        "give the dump folder itself, or its layout with --layout; `rldbg help layouts` says what each looks like",
    )
