"""How folded answers look: equal ones once with their ranks, odd ones marked."""

from typing import TYPE_CHECKING

from rldbg.cli.output import print_line, print_note

if TYPE_CHECKING:
    from rldbg.live import CastResult


def print_cast(result: "CastResult") -> None:
    from rldbg.live import compress

    for fold in result.folds:
        mark = "! " if fold.odd else "  "
        body = fold.text if "\n" not in fold.text else "\n" + "\n".join(f"    {line}" for line in fold.text.split("\n"))
        print_line(f"{mark}{compress(fold.who)}: {body}")
    if result.spread and len(result.folds) > 1:
        spread = result.spread
        print_line(f"  min {spread.low:g}  median {spread.middle:g}  max {spread.high:g}")
    if result.not_stopped:
        print_note(f"not stopped, not asked: {compress(result.not_stopped)}")
