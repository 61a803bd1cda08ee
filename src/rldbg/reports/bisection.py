"""The first module that differs, then the modules around it."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from rldbg.bisection import BisectReport, ModuleDifference
from rldbg.reports.tables import table

_AROUND = 3


def to_terminal(report: BisectReport) -> Iterator[RenderableType]:
    if report.agrees:
        yield f"equal: {len(report.modules)} modules agree forward, {len(report.gradients)} backward, within rounding"
        return
    if report.forward is not None:
        yield f"forward: {_sentence(report.forward)}"
        if report.parameters:
            worst = ", ".join(f"{name} (by up to {gap:.3g})" for name, gap in list(report.parameters.items())[:4])
            yield f"  its parameters differ: {worst}"
        if report.forward.given:
            yield f"  what it is given differs too: the code of {report.forward.place or 'the model'} before it"
        if report.operation:
            yield f"  inside {report.forward.place or 'the model'}, {report.operation}"
        yield from _around(report.modules, report.forward)
    if report.backward is not None:
        yield f"backward: {_sentence(report.backward)}"
        yield from _around(report.gradients, report.backward)
    if report.unmatched:
        yield f"not found in B: {', '.join(report.unmatched[:8])}"


def _sentence(item: ModuleDifference) -> str:
    other = "" if item.other == item.name else f" (B: {item.other}, by {item.matched_by})"
    return f"{item.name} {item.kind}{other} is the first that differs: {item.difference:.3g}, rounding {item.noise:.2g}"


def _around(items: Sequence[ModuleDifference], first: ModuleDifference) -> Iterator[RenderableType]:
    place = items.index(first)
    shown = items[max(0, place - _AROUND) : place + _AROUND + 1]
    rows = (
        (item.name, f"{item.difference:.3g}", f"{item.noise:.2g}", "differs" if item.beyond else "") for item in shown
    )
    yield table("module", "difference", "rounding", "", rows=rows)
