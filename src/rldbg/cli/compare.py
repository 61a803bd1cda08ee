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
@click.argument("a", required=False)
@click.argument("b", required=False)
@click.option("--step", "steps", help="One step N, a range N:M (M not included), or all. Default: all both have.")
@click.option("--kind", "kinds", multiple=True, help="Only this kind; may be given more than once.")
@click.option("--layout", help="Layout of both recordings instead of the detected one.")
@click.option("--atol", type=float, help="Absolute tolerance for every floating-point field.")
@click.option("--rtol", type=float, help="Relative tolerance for every floating-point field.")
@click.option("--tolerance-file", type=click.Path(path_type=Path), help="Tolerances by field, YAML or JSON.")
@click.option("--self_hosted_dir", help="The NexRL document's form: dump of the self-hosted mode, instead of A.")
@click.option("--remote_api_dir", help="Dump of the remote API mode, compared with --self_hosted_dir.")
@click.option("--weaver_dir", help="Dump of the trainer service, compared with --self_hosted_dir.")
@click.option("--num_ranks", type=int, help="Only ranks below this; all there are when absent.")
@click.option("--num_micros", type=int, help="Only micro-batches below this; all there are when absent.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Also write the result as JSON to this file.")
def command(
    a: str | None,
    b: str | None,
    steps: str | None,
    kinds: tuple[str, ...],
    layout: str | None,
    atol: float | None,
    rtol: float | None,
    tolerance_file: Path | None,
    self_hosted_dir: str | None,
    remote_api_dir: str | None,
    weaver_dir: str | None,
    num_ranks: int | None,
    num_micros: int | None,
    output: Path | None,
    as_json: bool,
) -> int:
    """Find the first stage, step, rank, sample and token where recordings A and B differ."""
    from rldbg.analysis import Tolerances

    if tolerance_file is None:
        tolerances = Tolerances(atol=atol, rtol=rtol)
    else:
        tolerances = Tolerances.from_file(tolerance_file, atol=atol, rtol=rtol)
    options = {"kinds": kinds or None, "tolerances": tolerances, "num_ranks": num_ranks, "num_micros": num_micros}
    if self_hosted_dir is not None:
        directories = {"Self-Hosted": self_hosted_dir, "Remote API": remote_api_dir, "Weaver": weaver_dir}
        return _document_form(directories, steps or "1", layout, options, output, as_json)
    if a is None or b is None:
        raise UsageError("compare needs two recordings", "rldbg compare A B")
    result = _compare(a, b, layout, steps=_parse_steps(steps), **options)
    if output is not None:
        _write(output, result.to_dict())
    if as_json:
        print_json(result.to_dict())
    else:
        _show(result)
    return _EXIT[result.verdict]


def _compare(a: str, b: str, layout: str | None, **options: Any) -> "Comparison":
    from rldbg.analysis import compare
    from rldbg.recording import open as open_recording

    return compare(open_recording(a, layout=layout), open_recording(b, layout=layout), **options)


def _document_form(
    directories: dict[str, str | None],
    step: str,
    layout: str | None,
    options: dict[str, Any],
    output: Path | None,
    as_json: bool,
) -> int:
    """The document's call: one step, the self-hosted dump against one or both of the others."""
    from rldbg.analysis import report_lines

    base, *others = directories.values()
    assert base is not None
    chosen = _parse_steps(step)
    if chosen is None or len(chosen) != 1:
        raise UsageError(f"--step {step!r} is not one step", "this form compares one step: --step N")
    given = [other for other in others if other is not None]
    if not given:
        raise UsageError("nothing to compare with", "add --weaver_dir or --remote_api_dir")
    results = [_compare(base, other, layout, steps=chosen, **options) for other in given]
    body = {"step": chosen[0], "comparisons": [result.to_dict() for result in results]}
    if output is not None:
        _write(output, body)
    if as_json:
        print_json(body)
    else:
        for line in report_lines(chosen[0], directories, results):
            print_line(line)
        if output is not None:
            print_line(f"Report saved to: {output}")
    verdicts = {result.verdict for result in results}
    return _EXIT[next(verdict for verdict in ("different", "incomplete", "equal") if verdict in verdicts)]


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
        for item in result.explanations:
            print_line(f"because {item.explains} (residual {item.residual:.2g})")
        if not result.explanations:
            print_line("no known hypothesis accounts for it")
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
