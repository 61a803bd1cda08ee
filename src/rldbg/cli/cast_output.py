"""How folded answers look: equal ones once with their ranks, odd ones marked."""

from typing import TYPE_CHECKING

from rldbg.cli.output import print_line, print_note

if TYPE_CHECKING:
    from rldbg.live import BroadcastResult


def print_broadcast(result: "BroadcastResult") -> None:
    from rldbg.live import compress

    for group in result.groups:
        mark = "! " if group.odd else "  "
        body = (
            group.text if "\n" not in group.text else "\n" + "\n".join(f"    {line}" for line in group.text.split("\n"))
        )
        print_line(f"{mark}{compress(group.who)}: {body}")
    if result.spread and len(result.groups) > 1:
        spread = result.spread
        print_line(f"  min {spread.low:g}  median {spread.middle:g}  max {spread.high:g}")
    if result.not_stopped:
        print_note(f"not stopped, not asked: {compress(result.not_stopped)}")
