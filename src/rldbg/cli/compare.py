"""`rldbg compare`: the first place where two or more recordings diverge."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rldbg.cli.application import verb
from rldbg.cli.output import print_all, print_json, print_line, print_note, to_json
from rldbg.cli.progress import progress
from rldbg.core import Environment, ExitCode, PrerequisiteError, UsageError, did_you_mean, explained_as

if TYPE_CHECKING:
    from rldbg.analysis import Comparison
    from rldbg.recording import Recording


# Finding ids of version 0.1 that --fail-on still takes.
_FORMER_NAMES = {"metrics-part": "metrics-diverge"}
# The document's sections read what was compared once more: so many files stay loaded for them.
_FILES_OF_A_STEP = 64


@verb("compare")
@click.argument("recordings", nargs=-1, metavar="A B [C]...")
@click.option("--step", "steps", help="One step N, a range N:M (M not included), or all.  [default: all common steps]")
@click.option(
    "--shift",
    type=int,
    help="Number to add to the steps of every recording but A, if it counts from a different start.",
)
@click.option("--kind", "kinds", multiple=True, help="Compare only this kind. Repeatable.")
@click.option("--layout", help="Layout of all recordings.  [default: detected]")
@click.option("--atol", type=float, help="Absolute tolerance for every floating-point field.")
@click.option("--rtol", type=float, help="Relative tolerance for every floating-point field.")
@click.option("--tolerance-file", type=click.Path(path_type=Path), help="Tolerances by field, YAML or JSON.")
@click.option(
    "--noise",
    "repetitions",
    multiple=True,
    metavar="A2",
    help="A clean repetition of A (other ranks, batch shape, kernels): its differences count as noise. Repeatable. "
    "[default: what `rldbg rerun A --step N --noise` left next to A]",
)
@click.option(
    "--fail-on",
    help="What makes the exit code nonzero, comma-separated: different, drift, incomplete, config, stages, finding ids,"
    " or never.  [default: different,incomplete]",
)
@click.option("--jobs", type=click.IntRange(min=1), help="Number of processes.  [default: chosen by recording size]")
@click.option("--on-ray", is_flag=True, help="Run the comparison on the running Ray cluster.")
@click.option("--ray-address", default="auto", help="The cluster for --on-ray.", show_default=True)
@click.option("--html", type=click.Path(path_type=Path), help="Also write an HTML report: one self-contained file.")
@click.option("--tokenizer", metavar="PATH|tiny", help="Tokenizer of the model, for text in the --html report.")
@click.option("--self_hosted_dir", help="Dump of the self-hosted mode, instead of A (form of the NexRL document).")
@click.option("--remote_api_dir", help="Dump of the remote API mode, compared with --self_hosted_dir.")
@click.option("--weaver_dir", help="Dump of the trainer service, compared with --self_hosted_dir.")
@click.option("--num_ranks", type=click.IntRange(min=1), help="Compare only ranks below this.  [default: all]")
@click.option("--num_micros", type=click.IntRange(min=1), help="Compare only micro-batches below this.  [default: all]")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Also write the result as JSON to this file.")
def command(
    recordings: tuple[str, ...],
    steps: str | None,
    layout: str | None,
    fail_on: str | None,
    html: Path | None,
    tokenizer: str | None,
    self_hosted_dir: str | None,
    remote_api_dir: str | None,
    weaver_dir: str | None,
    output: Path | None,
    as_json: bool,
    **how: Any,
) -> int:
    """Find the first stage, step, rank, sample and token where recording A and each of the others differ.

    \b
    rldbg compare A B                      all common steps
    rldbg compare A B --step 3             one step
    rldbg compare A B --html report.html   a report to share
    """
    # A process compares on one core. The threads that numpy would start for more are a quarter of its start-up.
    Environment().export("OPENBLAS_NUM_THREADS", "1")
    from rldbg.analysis import compare, noise_beside
    from rldbg.recording import open as open_recording

    options = _options(layout, **how)
    directories = {"Self-Hosted": self_hosted_dir, "Remote API": remote_api_dir, "Weaver": weaver_dir}
    chosen = _parse_steps(steps or ("1" if self_hosted_dir else None))
    paths = _paths(recordings, directories)
    _check_fail_on(fail_on)
    if tokenizer is not None and html is None:
        raise UsageError("--tokenizer is for the --html report", "add --html report.html")
    # The document's call names a folder twice where one program has both roles.
    others = list(dict.fromkeys(paths[1:])) if self_hosted_dir else paths[1:]
    opened = [open_recording(path, layout=layout) for path in (paths[0], *others)]
    with_sections = self_hosted_dir is not None and (as_json or output is not None)
    for recording in opened if with_sections else ():
        recording.files_kept = _FILES_OF_A_STEP
    options["repetitions"] = options["repetitions"] or noise_beside(opened[0])
    with progress("comparing", "records read", as_json=as_json) as advance:
        for recording in (*opened, *options["repetitions"]):
            recording.on_read = advance
        results = [compare(opened[0], other, steps=chosen, **options) for other in opened[1:]]
    body = results[0].to_dict() if len(results) == 1 else _together(results)
    by_path = dict(zip(others, opened[1:], strict=True))
    given = [name for name, path in directories.items() if path]
    sides = dict(zip(given, [opened[0], *(by_path[path] for path in paths[1:])], strict=bool(self_hosted_dir)))
    if with_sections:
        assert isinstance(chosen, tuple)
        body = _document(body, sides, directories, chosen[0], results, options)
    if output is not None:
        _write(output, to_json(body))
    if html is not None:
        from rldbg.ui import comparison_page

        pairs = list(zip(opened[1:], results, strict=True))
        _write(html, comparison_page(opened[0], pairs, decode=_decoder(tokenizer)))
    if as_json:
        print_json(body)
    elif self_hosted_dir:
        _show_document(directories, chosen, results, sides.get("Remote API"), output)
    else:
        from rldbg.reports.comparison import to_terminal

        print_all(to_terminal(results))
    if html is not None:
        print_note(f"report: {html}")
    return _exit_code(results, fail_on)


def _options(
    layout: str | None,
    *,
    kinds: tuple[str, ...],
    tolerance_file: Path | None,
    atol: float | None,
    rtol: float | None,
    repetitions: tuple[str, ...],
    on_ray: bool,
    ray_address: str,
    **others: int | None,
) -> dict[str, Any]:
    """The keywords of `compare`; the `others` have its names."""
    from rldbg.recording import open as open_recording

    return others | {
        "kinds": kinds or None,
        "tolerances": _tolerances(tolerance_file, atol, rtol),
        "on_ray": ray_address if on_ray else None,
        "repetitions": [open_recording(path, layout=layout) for path in repetitions],
    }


def _document(
    body: dict[str, Any],
    sides: dict[str, "Recording"],
    directories: dict[str, str | None],
    step: int,
    results: list["Comparison"],
    options: dict[str, Any],
) -> dict[str, Any]:
    """The result in the document's form: its sections beside ours."""
    from rldbg.reports.comparison_sections import document_report

    limits = {name: options[name] for name in ("num_ranks", "num_micros")}
    report = document_report(sides, directories, step, **limits)
    return {"step": step, **body, "comparisons": [result.to_dict() for result in results]} | report


def _tolerances(file: Path | None, atol: float | None, rtol: float | None) -> Any:
    from rldbg.analysis import Tolerances

    for name, value in (("--atol", atol), ("--rtol", rtol)):
        if value is not None and not value >= 0:
            raise UsageError(f"invalid tolerance: {name} {value}", "give a non-negative number")
    return Tolerances(atol=atol, rtol=rtol) if file is None else Tolerances.from_file(file, atol=atol, rtol=rtol)


def _decoder(path: str | None) -> Callable[[int], str] | None:
    """A function from token id to text."""
    if path is None:
        return None
    from rldbg.trainer import load_tokenizer

    try:
        tokenizer = load_tokenizer(path)
    except ImportError as error:
        raise PrerequisiteError("--tokenizer needs transformers", "pip install 'rldbg[train]'") from error
    except (OSError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"no tokenizer in {path}: {reason}", "give the folder of a Hugging Face model") from error

    def decode(token: int) -> str:
        """A number stays one where the tokenizer has no text for it: special tokens, another model's tokens."""
        try:
            return tokenizer.decode([token]) or f"⟨{token}⟩"
        except (IndexError, KeyError, ValueError, OverflowError):
            return f"⟨{token}⟩"

    return decode


def _paths(recordings: tuple[str, ...], directories: dict[str, str | None]) -> list[str]:
    """The recordings to compare, the first with each of the others; of the document's form or of ours."""
    base, *others = directories.values()
    given = [other for other in others if other is not None]
    if base is None:
        if given:
            raise UsageError("--self_hosted_dir is missing", "it is compared with --remote_api_dir and --weaver_dir")
        if len(recordings) < 2:
            raise UsageError("compare needs at least two recordings", "rldbg compare A B")
        return list(recordings)
    if recordings:
        raise UsageError("give either A B or --self_hosted_dir, not both", "rldbg compare A B")
    if not given:
        raise UsageError("nothing to compare with", "add --weaver_dir or --remote_api_dir")
    return [base, *given]


def _parse_steps(text: str | None) -> range | tuple[int, ...] | None:
    if text is None or text == "all":
        return None
    first, colon, last = text.partition(":")
    try:
        return range(int(first), int(last)) if colon else (int(first),)
    except ValueError:
        raise UsageError(
            f"invalid step: {text!r} (expected N, N:M or all)", "for example --step 3 or --step 3:6"
        ) from None


def _together(results: list["Comparison"]) -> dict[str, Any]:
    """More than two recordings: the worst verdict and the earliest difference, then each comparison with A."""
    from rldbg.analysis import VERDICTS

    verdicts = {result.verdict for result in results}
    found = [(result.first_difference, result) for result in results if result.first_difference is not None]
    first = min(found, key=lambda item: (item[0].update, item[0].stage.order, item[0].order), default=None)
    return {
        "verdict": next(verdict for verdict in VERDICTS if verdict in verdicts),
        "first_difference": None if first is None else {**first[0].to_dict(), "recording": first[1].titles[1]},
        "stages": (first[1] if first else results[0]).stages(),
        "explanations": [item.to_dict() for item in first[1].explanations] if first else [],
        "candidates": [item.to_dict() for item in first[1].candidates] if first else [],
        "nearest": [item.to_dict() for item in first[1].nearest] if first else [],
        "findings": [finding.to_dict() for result in results for finding in result.findings],
        "comparisons": [result.to_dict() for result in results],
    }


def _check_fail_on(fail_on: str | None) -> None:
    from rldbg.analysis import COMPARISON_FINDINGS, Stage

    known = ["different", "drift", "incomplete", "never", *(stage.value for stage in Stage), *COMPARISON_FINDINGS]
    for name in _fail_on_names(fail_on):
        if name not in known:
            hint = did_you_mean(name, known, f"valid names: {', '.join(known)}")
            raise UsageError(f"--fail-on: unknown name {name!r}", hint)


def _fail_on_names(fail_on: str | None) -> list[str]:
    names = [name.strip() for name in (fail_on or "different,incomplete").split(",") if name.strip()]
    return [_FORMER_NAMES.get(name, name) for name in names]


def _exit_code(results: list["Comparison"], fail_on: str | None) -> int:
    """1 for a difference that was asked about, 4 for data that is not complete, else 0."""
    names = set(_fail_on_names(fail_on))
    seen = {result.verdict for result in results} | {stage for result in results for stage in result.stage_names()}
    seen |= {finding.id for result in results for finding in result.findings}
    hit = (names & seen) - {"incomplete"}
    if hit:
        return ExitCode.FINDING
    return ExitCode.INCOMPLETE if "incomplete" in names & seen else ExitCode.OK


def _show_document(
    directories: dict[str, str | None],
    steps: Any,
    results: list["Comparison"],
    remote: "Recording | None",
    output: Path | None,
) -> None:
    """The document's report, line by line."""
    from rldbg.reports.comparison_document import report_lines
    from rldbg.reports.comparison_sections import datums_section

    print_all(report_lines(steps[0], directories, results, datums_section(remote, steps[0])))
    if output is not None:
        print_line(f"Report saved to: {output}")


def _write(file: Path, text: str) -> None:
    with explained_as(UsageError, OSError, f"cannot write {file}", "choose another path"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
