"""The terminal output of `rldbg compare`: the first difference, its explanation, and a table of all stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType

from rldbg.reports.findings import to_terminal as findings_to_terminal
from rldbg.reports.tables import Table

if TYPE_CHECKING:
    # With all hypotheses, which recordings that are equal do not need.
    from rldbg.analysis import Comparison, Explanation, FirstDifference

# Text is a line by itself; anything else is rendered.
Lines = Iterator[str | RenderableType]

_CHANGES_SHOWN = 8
_NOISE_SHOWN = 6
_ADVICE = ("shape-mismatch", "loss-difference")
_MARKS = {
    "equal": "[green]✓ equal[/]",
    "equal within noise": "[green]✓ equal within noise[/]",
    "drift": "[yellow]~ drift[/]",
    "different": "[bold red]✗ different[/]",
}


# Of a stage after the first that differs.
_FOLLOWS = {"drift": "[yellow]↳ follows from the first[/]", "different": "[red]✗ different, after the first[/]"}


def to_terminal(results: Sequence[Comparison]) -> Lines:
    """Each comparison in turn; with more than one, under the names of what was compared."""
    for result in results:
        if len(results) > 1:
            yield f"{result.titles[0]}  and  {result.titles[1]}"
        yield from one_to_terminal(result)
        if len(results) > 1:
            yield ""


def one_to_terminal(result: Comparison) -> Lines:
    """The verdict, the first difference with its explanation, all stages, and what noise allows."""
    first = result.first_difference
    if first is None:
        yield f"{result.verdict}: {result.compared:,} values over {_steps_text(result.steps)}"
    else:
        yield f"different, first at stage {first.stage.value}:"
        yield f"  {place_text(first)}"
    yield _stages(result)
    yield from _noise(result)
    if first is not None:
        for item in result.explanations:
            yield f"because {item.explains} (residual {item.residual:.2g})"
        if result.candidates:
            yield "cause not decided: the recordings leave these candidates"
            yield from (f"  {item.id}: {item.explains}" for item in result.candidates)
        elif not result.explanations:
            yield from _nearest(result)
    yield from _structure(result)
    yield from _mismatch(result)
    yield from _configuration(result)
    # Advice by the form of a difference is for one whose cause is not known.
    advice = [each for each in result.findings if each.id in _ADVICE and result.explanations]
    findings = [each for each in result.findings if each not in advice]
    if findings:
        yield findings_to_terminal(findings)
    if advice:
        yield f"other findings, with the advice for an unknown cause in --json: {', '.join(each.id for each in advice)}"


def _nearest(result: Comparison) -> Lines:
    """Hypotheses that do not fit: hints where to look, not causes."""
    yield "cause unknown: no hypothesis accounts for it"
    for number, item in enumerate(result.nearest):
        yield ("  nearest: " if number == 0 else "           ") + nearest_text(item)
    if result.nearest:
        yield "  what remains is more than rounding explains, so none of these is the cause"


def _stages(result: Comparison) -> Table:
    rows = result.stages()
    table = Table("stage", "verdict", "compared", "beyond", "allowed", "max abs", "mean abs", "max rel", box=None)
    if any(any(row["nan"]) for row in rows):
        table.add_column("NaN a/b")
    for row in rows:
        mark = _MARKS[row["verdict"]]
        if row["stage"] == "config" and row["verdict"] != "equal":
            mark = "[yellow]≠ differs[/]"
        elif not row["compared"] and not row["allowed"]:
            mark = "[dim]– nothing to compare[/]"
        elif row.get("follows"):
            mark = _FOLLOWS[row["verdict"]]
        odd = ["/".join(map(str, row["nan"]))] if any(row["nan"]) else []
        numbers = [f"{row[name]:.3g}" for name in ("max_abs", "mean_abs", "max_rel")]
        counts = [f"{row[name]:,}" for name in ("compared", "beyond", "allowed")]
        table.add_row(row["stage"], mark, *counts, *numbers, *odd)
    return table


def _noise(result: Comparison) -> Lines:
    """The noise after each optimizer step, and what it allows in the next pass."""
    if not result.noise:
        return
    yield "noise after each optimizer step, and what it allows:"
    for level in result.noise[-_NOISE_SHOWN:]:
        step, epoch, mini_batch = level.update
        yield (
            f"  step {step} epoch {epoch} mini-batch {mini_batch}: gradients differ by {level.gradient:.2g},"
            f" parameters by {level.parameter:.2g} ({level.allowed:,} allowed by the optimizer's sensitivity);"
            f" next log probs by {level.log_prob:.2g} more"
        )
    lost = next((level for level in result.noise if level.hides_all), None)
    if lost is not None:
        step, epoch, mini_batch = lost.update
        yield (
            f"  after step {step} epoch {epoch} mini-batch {mini_batch} the models are so far apart that what they"
            " compute is not judged: record both sides in float32, or with a smaller learning rate, to see more"
        )


def _structure(result: Comparison) -> Lines:
    """The differences of log probs compared with those of a clean repetition, and whether they have the structure of
    noise."""
    for item in result.structures:
        yield (
            f"not shaped like noise: {item.quantity}: {item.shape} ({item.effect:.2g}); "
            f"clean noise has such a shape with a probability of {item.chance:.1g}"
        )
    for numbers in result.noise_statistics:
        beyond = ", ".join(f"{share:.2%} beyond {bound}" for bound, share in numbers.beyond.items())
        yield (
            f"{numbers.quantity}: {numbers.tokens:,} tokens differ by {numbers.median_abs:.2g} (median), "
            f"{numbers.p99_abs:.2g} (99 %), {numbers.largest:.2g} (largest), {numbers.mean:.2g} on average (k1); "
            f"k3 {numbers.k3:.2g}; {beyond}; {_growth(numbers.by_step)}{numbers.tests} tests of shape"
        )


def _growth(by_step: Mapping[int, float]) -> str:
    """The median of the first and of the last step, where there are several."""
    first, last = min(by_step), max(by_step)
    return f"median {by_step[first]:.2g} in step {first}, {by_step[last]:.2g} in step {last}; " if first != last else ""


def _mismatch(result: Comparison) -> Lines:
    for name, numbers in result.mismatch.items():
        parts = ", ".join(f"{key} {value:.3g}" for key, value in numbers.items())
        yield f"{name}, B against A: {parts}"


def _configuration(result: Comparison) -> Lines:
    """Settings that differ: possible causes, not proof."""
    if result.configuration is None or not result.configuration.changes:
        return
    changes = [change for change in result.configuration.changes if not change.name.startswith("command")]
    if changes:
        yield "the configurations differ (possible causes, not proof):"
    for change in changes[:_CHANGES_SHOWN]:
        yield f"  {change.name}: A {change.a}, B {change.b}"
    if len(changes) > _CHANGES_SHOWN:
        yield f"  and {len(changes) - _CHANGES_SHOWN} more (--json lists all)"


def _steps_text(steps: list[int]) -> str:
    return f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} steps"


def place_text(first: FirstDifference) -> str:
    place = first.place
    parts = [f"{first.kind}.{first.field}", f"step {first.step}"]
    parts += [
        f"epoch {first.epoch}",
        f"mini-batch {first.mini_batch}",
        f"rank {place.rank}",
        f"micro-batch {place.micro}",
    ]
    for name in ("sample", "row", "token", "index"):
        value = getattr(place, name)
        if value is not None:
            parts.append(f"{name} {value}")
    if place.name:
        parts.append(place.name)
    return ", ".join(parts) + ": A {}, B {}".format(*_both(place.a, place.b))


def _both(a: object, b: object) -> tuple[object, object]:
    """Seven digits of two numbers, or all of them where only the rest differs."""
    if isinstance(a, float) and isinstance(b, float) and f"{a:.7g}" != f"{b:.7g}":
        return f"{a:.7g}", f"{b:.7g}"
    return a, b


def nearest_text(item: Explanation) -> str:
    """A hypothesis that does not fit: what it states, and how far off it is."""
    left = f"{item.residual:.2g} left where rounding allows {item.noise:.2g}"
    if item.noise == 0:
        left = f"does not hold for {item.residual:.0f} of the samples that differ"
    return f"{item.id}, accounts for {item.share:.0%}: {item.explains} ({left})"
