"""`rldbg compare`: two recordings, and the first place where they part."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rldbg.cli.application import verb
from rldbg.cli.output import print_findings, print_json, print_line, print_result
from rldbg.core import ExitCode, UsageError

if TYPE_CHECKING:
    from rldbg.analysis import Comparison, FirstDifference

_EXIT = {"equal": ExitCode.OK, "different": ExitCode.FINDING, "incomplete": ExitCode.INCOMPLETE}


@verb("compare")
@click.argument("a", type=str)
@click.argument("b", type=str)
@click.option("--step", "steps", help="One step N, a range N:M (M not included), or all. Default: all both have.")
@click.option("--kind", "kinds", multiple=True, help="Only this kind; may be given more than once.")
@click.option("--layout", help="Layout of both recordings instead of the detected one.")
@click.option("--atol", type=float, help="Absolute tolerance for every floating-point field.")
@click.option("--rtol", type=float, help="Relative tolerance for every floating-point field.")
@click.option("--tolerance-file", type=click.Path(path_type=Path), help="Tolerances by field, YAML or JSON.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Also write the result as JSON to this file.")
def command(
    a: str,
    b: str,
    steps: str | None,
    kinds: tuple[str, ...],
    layout: str | None,
    atol: float | None,
    rtol: float | None,
    tolerance_file: Path | None,
    output: Path | None,
    as_json: bool,
) -> int:
    """Find the first stage, step, rank, sample and token where recordings A and B differ."""
    from rldbg.analysis import Tolerances, compare
    from rldbg.recording import open as open_recording

    if tolerance_file is None:
        tolerances = Tolerances(atol=atol, rtol=rtol)
    else:
        tolerances = Tolerances.from_file(tolerance_file, atol=atol, rtol=rtol)
    result = compare(
        open_recording(a, layout=layout),
        open_recording(b, layout=layout),
        steps=_parse_steps(steps),
        kinds=kinds or None,
        tolerances=tolerances,
    )
    if output is not None:
        _write(output, result.to_dict())
    if as_json:
        print_json(result.to_dict())
    else:
        _show(result)
    return _EXIT[result.verdict]


def _parse_steps(text: str | None) -> range | tuple[int, ...] | None:
    if text is None or text == "all":
        return None
    first, colon, last = text.partition(":")
    try:
        return range(int(first), int(last)) if colon else (int(first),)
    except ValueError:
        raise UsageError(f"--step {text!r} is no step", "give N, N:M or all") from None


def _write(file: Path, body: dict[str, Any]) -> None:
    import json

    try:
        file.write_text(json.dumps({"schema_version": 1} | body, indent=1, default=str), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}", "choose another place with -o") from error


def _show(result: "Comparison") -> None:
    from rich.table import Table

    first = result.first_difference
    if first is None:
        print_line(f"{result.verdict}: {result.compared:,} values over {_steps_text(result.steps)}")
    else:
        print_line(f"different, first at stage {first.stage.value}:")
        print_line(f"  {_place_text(first)}")
    table = Table("stage", "verdict", "compared", "beyond", "max abs", "mean abs", "max rel", "NaN a/b", box=None)
    for row in result.stages():
        mark = "[green]✓ equal[/]" if row["verdict"] == "equal" else "[bold red]✗ different[/]"
        nan = "/".join(map(str, row["nan"])) if any(row["nan"]) else ""
        numbers = [f"{row[name]:.3g}" for name in ("max_abs", "mean_abs", "max_rel")]
        table.add_row(row["stage"], mark, f"{row['compared']:,}", f"{row['beyond']:,}", *numbers, nan)
    print_result(table)
    if result.findings:
        print_findings(result.findings)


def _steps_text(steps: list[int]) -> str:
    return f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} steps"


def _place_text(first: "FirstDifference") -> str:
    place = first.place
    parts = [f"{first.kind}.{first.field}", f"step {first.step}", f"rank {place.rank}", f"micro {place.micro}"]
    for name in ("sample", "row", "token", "index"):
        value = getattr(place, name)
        if value is not None:
            parts.append(f"{name} {value}")
    if place.name:
        parts.append(place.name)
    return ", ".join(parts) + f": A {place.a}, B {place.b}"
