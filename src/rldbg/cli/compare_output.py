"""What `rldbg compare` shows on a terminal: the first difference, why, and a compact table of all stages."""

from collections.abc import Sequence

from rldbg.analysis import Comparison, FirstDifference, nearest_text
from rldbg.cli.output import print_findings, print_line, print_result

_CHANGES_SHOWN = 8
_NOISE_SHOWN = 6
_MARKS = {
    "equal": "[green]✓ equal[/]",
    "equal within noise": "[green]✓ equal within noise[/]",
    "drift": "[yellow]~ drift[/]",
    "different": "[bold red]✗ different[/]",
}


def show(results: Sequence[Comparison]) -> None:
    """Each comparison in turn; with more than one, under the names of what was compared."""
    for result in results:
        if len(results) > 1:
            print_line(f"{result.titles[0]}  and  {result.titles[1]}")
        _show(result)
        if len(results) > 1:
            print_line("")


def _show(result: Comparison) -> None:
    first = result.first_difference
    if first is None:
        print_line(f"{result.verdict}: {result.compared:,} values over {_steps_text(result.steps)}")
    else:
        print_line(f"different, first at stage {first.stage.value}:")
        print_line(f"  {place_text(first)}")
    _show_stages(result)
    _show_noise(result)
    if first is not None:
        for item in result.explanations:
            print_line(f"because {item.explains} (residual {item.residual:.2g})")
        if not result.explanations:
            _show_nearest(result)
    _show_mismatch(result)
    _show_configuration(result)
    if result.findings:
        print_findings(result.findings)


def _show_nearest(result: Comparison) -> None:
    """What was tried and does not fit: a hint where to look, never a cause."""
    print_line("cause unknown: no hypothesis accounts for it")
    for number, item in enumerate(result.nearest):
        print_line(("  nearest: " if number == 0 else "           ") + nearest_text(item))
    if result.nearest:
        print_line("  what is left is more than rounding explains, so none of these is the cause")


def _show_stages(result: Comparison) -> None:
    from rich.table import Table

    table = Table(
        "stage", "verdict", "compared", "beyond", "allowed", "max abs", "mean abs", "max rel", "NaN a/b", box=None
    )
    for row in result.stages():
        mark = _MARKS[row["verdict"]]
        if row["stage"] == "config" and row["verdict"] != "equal":
            mark = "[yellow]≠ differs[/]"
        odd = "/".join(map(str, row["nan"])) if any(row["nan"]) else ""
        numbers = [f"{row[name]:.3g}" for name in ("max_abs", "mean_abs", "max_rel")]
        counts = [f"{row[name]:,}" for name in ("compared", "beyond", "allowed")]
        table.add_row(row["stage"], mark, *counts, *numbers, odd)
    print_result(table)


def _show_noise(result: Comparison) -> None:
    """How large rounding had become after each optimizer step, and what the next one was allowed for it."""
    if not result.noise:
        return
    print_line("noise after each optimizer step, and what it allows:")
    for level in result.noise[-_NOISE_SHOWN:]:
        step, epoch, mini_batch = level.update
        print_line(
            f"  step {step} epoch {epoch} mini-batch {mini_batch}: gradients apart by {level.gradient:.2g},"
            f" parameters by {level.parameter:.2g} ({level.allowed:,} allowed by the optimizer's sensitivity);"
            f" next log probs by {level.log_prob:.2g} more"
        )


def _show_mismatch(result: Comparison) -> None:
    for name, numbers in result.mismatch.items():
        parts = ", ".join(f"{key} {value:.3g}" for key, value in numbers.items())
        print_line(f"{name}, B against A: {parts}")


def _show_configuration(result: Comparison) -> None:
    """Settings that differ: they rank causes and prove nothing."""
    if result.configuration is None or not result.configuration.changes:
        return
    changes = [change for change in result.configuration.changes if not change.name.startswith("command")]
    if changes:
        print_line("the runs were configured differently (which proves nothing):")
    for change in changes[:_CHANGES_SHOWN]:
        print_line(f"  {change.name}: A {change.a}, B {change.b}")
    if len(changes) > _CHANGES_SHOWN:
        print_line(f"  and {len(changes) - _CHANGES_SHOWN} more (--json lists all)")


def _steps_text(steps: list[int]) -> str:
    return f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} steps"


def place_text(first: FirstDifference) -> str:
    place = first.place
    parts = [f"{first.kind}.{first.field}", f"step {first.step}", f"rank {place.rank}", f"micro {place.micro}"]
    for name in ("sample", "row", "token", "index"):
        value = getattr(place, name)
        if value is not None:
            parts.append(f"{name} {value}")
    if place.name:
        parts.append(place.name)
    return ", ".join(parts) + f": A {place.a}, B {place.b}"
