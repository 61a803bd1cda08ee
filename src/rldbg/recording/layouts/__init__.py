"""Every layout rldbg opens, one file a framework; asked in this order whether a path is theirs."""

from rldbg.core import IncompleteDataError, UsageError
from rldbg.recording.layouts.areal import ArealLayout
from rldbg.recording.layouts.base import IDS_FROM, UNCOUNTED, VALIDATION, Entry, Layout, Listing
from rldbg.recording.layouts.nemo_rl import NemoRlLayout
from rldbg.recording.layouts.nexrl import NexrlLayout
from rldbg.recording.layouts.prime_rl import PrimeRlLayout
from rldbg.recording.layouts.rldbg import RldbgLayout
from rldbg.recording.layouts.sglang import SglangLayout
from rldbg.recording.layouts.slime import SlimeLayout
from rldbg.recording.layouts.trl import TrlLayout
from rldbg.recording.layouts.verl import VerlLayout
from rldbg.recording.tree import LocalTree, Tree

__all__ = ["IDS_FROM", "LAYOUTS", "UNCOUNTED", "VALIDATION", "Entry", "Layout", "Listing", "detect", "named"]

LAYOUTS: tuple[Layout, ...] = (
    RldbgLayout(),
    NexrlLayout(),
    SglangLayout(),
    SlimeLayout(),
    VerlLayout(),
    NemoRlLayout(),
    PrimeRlLayout(),
    ArealLayout(),
    TrlLayout(),
)


_SHOWN = 5
_LOOKED_INTO = 200


def _recordings_below(tree: Tree) -> list[str]:
    """Folders below a local root that are recordings themselves: the uppermost ones, of the first so many."""
    if not isinstance(tree, LocalTree):
        return []
    found: list[str] = []
    for folder in sorted(tree.scan.folders)[:_LOOKED_INTO]:
        if not any(folder.startswith(outer) for outer in found):
            inner = LocalTree(tree.root / folder)
            if any(layout.recognises(inner) for layout in LAYOUTS):
                found.append(folder)
    return [tree.place(folder.rstrip("/")) for folder in found]


def named(name: str) -> Layout:
    """The layout of this name; dashes and underscores are one."""
    wanted = name.replace("-", "_").lower()
    for layout in LAYOUTS:
        if layout.name == wanted:
            return layout
    names = ", ".join(layout.name for layout in LAYOUTS)
    raise UsageError(f"there is no layout {name!r}", f"layouts: {names}")


def detect(tree: Tree) -> Layout:
    """The first layout that recognises the files. Raises when none does, with what was looked for."""
    if not tree.files:
        raise IncompleteDataError(f"{tree.title} holds no files", "give the folder that the dumps were written to")
    for layout in LAYOUTS:
        if layout.recognises(tree):
            return layout
    looked_for = "; ".join(f"{layout.name}: {layout.looks_for}" for layout in LAYOUTS)
    examples = ", ".join(fact.name for fact in tree.files[:3])
    inner = _recordings_below(tree)
    if inner:
        places = ", ".join(inner[:_SHOWN]) + (" ..." if len(inner) > _SHOWN else "")
        raise IncompleteDataError(
            f"{tree.title} is no recording itself, but there are recordings below it: {places}",
            f"give one of them, for example {inner[0]}",
        )
    raise IncompleteDataError(
        f"{tree.title} is no recording in a known layout: found {len(tree.files)} files such as {examples}. "
        f"Looked for {looked_for}",
        "give the dump folder itself, or name its layout with --layout",
    )
