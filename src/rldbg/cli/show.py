"""`rldbg show`: what is in a recording, and is it healthy; the fields of its records; one sample token by token."""

import math
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rldbg.cli.application import verb
from rldbg.cli.output import print_findings, print_json, print_note, print_result, visible
from rldbg.core import ExitCode, IncompleteDataError, PrerequisiteError, SampleId, Severity, UsageError, worst

if TYPE_CHECKING:
    from rldbg.recording import Recording, Sample

_MAX_RECORDS = 12
_MAX_FINDINGS = 12


@verb("show", short_help="What is in a recording, and is it healthy.")
@click.argument("path")
@click.option("--step", type=int, help="Only this step.")
@click.option("--kind", help="Only this kind.")
@click.option("--rank", type=int, help="Only this rank.")
@click.option("--sample", metavar="GROUP/RUN", help="One sample token by token.")
@click.option("--layout", help="The layout, when it is not recognised: nexrl, slime, verl, ...")
@click.option("--tokenizer", metavar="PATH", help="A tokenizer (folder or tokenizer.json), to show tokens as text.")
def command(
    path: str,
    step: int | None,
    kind: str | None,
    rank: int | None,
    sample: str | None,
    layout: str | None,
    tokenizer: str | None,
    as_json: bool,
) -> int:
    """What is in a recording, and is it healthy.

    PATH is a run folder, a dump folder, one kind's folder, one dump file, or a URL (s3://, https://). With --step,
    --kind or --rank: the fields of the matching records. With --sample: one sample, token by token.
    """
    from rldbg.recording import open

    recording = open(path, layout)
    if sample is not None:
        found = recording.sample(_sample_id(sample), step, _known_kind(recording, kind), rank)
        return _show_sample(found, tokenizer, as_json)
    if (step, kind, rank) != (None, None, None):
        return _show_records(recording, kind, step, rank, as_json)
    return _show_summary(recording, as_json)


def _show_summary(recording: "Recording", as_json: bool) -> int:
    summary = recording.summary()
    is_fine = worst(summary.health) in (None, Severity.INFO)
    code = ExitCode.INCOMPLETE if not summary.kinds else ExitCode.OK if is_fine else ExitCode.FINDING
    if as_json:
        print_json(summary.to_dict())
        return code
    from rich.text import Text

    from rldbg.recording.terminal import summary_view

    print_result(summary_view(summary))
    health = list(summary.health)
    if is_fine:
        print_result(
            Text.assemble(
                ("✓ ", "green"), "nothing wrong at first sight; ", ("rldbg verify", "cyan"), " reads every file"
            )
        )
    print_findings(health[:_MAX_FINDINGS])
    if len(health) > _MAX_FINDINGS:
        print_note(f"… and {len(health) - _MAX_FINDINGS} more findings: rldbg verify {recording.title}")
    return code


def _show_records(recording: "Recording", kind: str | None, step: int | None, rank: int | None, as_json: bool) -> int:
    entries = recording.entries(kind, step, rank)
    if not entries:
        _refuse_absent(recording, kind, step, rank)
    if as_json:
        from rldbg.recording.statistics import statistics_of

        records = [recording.read_entry(entry) for entry in entries]
        print_json(
            {
                "layout": recording.layout.name,
                "records": [
                    {
                        "key": record.key._asdict(),
                        "source": record.source,
                        "samples": [str(sample) for sample in record.samples],
                        "fields": [field.to_dict() for field in statistics_of(record)],
                    }
                    for record in records
                ],
            }
        )
        return ExitCode.OK
    from rldbg.recording.terminal import record_view

    for entry in entries[:_MAX_RECORDS]:
        print_result(record_view(recording.read_entry(entry)))
    if len(entries) > _MAX_RECORDS:
        print_note(
            f"… and {len(entries) - _MAX_RECORDS} more records: narrow with --kind, --step, --rank, or use --json"
        )
    return ExitCode.OK


def _refuse_absent(recording: "Recording", kind: str | None, step: int | None, rank: int | None) -> None:
    asked = " ".join(
        f"{name} {value}" for name, value in (("kind", kind), ("step", step), ("rank", rank)) if value is not None
    )
    near = get_close_matches(kind, recording.kinds(), 1) if kind else []
    meant = f"did you mean --kind {near[0]}? " if near and near[0] != kind else ""
    steps = recording.steps()
    span = f"steps {_span(steps)}" if steps else "no steps"
    raise IncompleteDataError(
        f"{recording.title} has no record with {asked}",
        f"{meant}it has kinds {', '.join(recording.kinds())}; {span}; ranks {_span(recording.ranks())}",
    )


def _span(numbers: Sequence[int]) -> str:
    from rldbg.recording.terminal import ranges

    return ranges(numbers)


def _known_kind(recording: "Recording", kind: str | None) -> str | None:
    if kind is not None and kind not in recording.kinds():
        _refuse_absent(recording, kind, None, None)
    return kind


def _show_sample(found: "Sample", tokenizer: str | None, as_json: bool) -> int:
    if as_json:
        from rldbg.recording.token_columns import TokenColumns

        columns = TokenColumns(found)
        print_json(
            {
                "sample": str(found.id),
                "step": found.step,
                "prompt_hash": found.prompt_hash,
                "records": [row.key._asdict() | {"row": row.row, "source": row.source} for row in found.rows],
                "values": found.single_values(),
                "tokens": columns.tokens.tolist(),
                "trained": None if columns.trained is None else columns.trained.tolist(),
                "columns": {name: list(map(_finite, values.tolist())) for name, values in columns.columns.items()},
            }
        )
        return ExitCode.OK
    from rldbg.recording.terminal import sample_view

    print_result(sample_view(found, _decoder(tokenizer) if tokenizer else None))
    return ExitCode.OK


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _sample_id(text: str) -> SampleId:
    try:
        return SampleId.parse(text)
    except ValueError as error:
        raise UsageError(str(error), "give --sample GROUP/RUN, for example --sample g0/3") from error


def _decoder(path: str) -> Callable[[int], str]:
    """Token id to text, by the tokenizers package, which needs no torch."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise PrerequisiteError("--tokenizer needs the tokenizers package", "pip install tokenizers") from error
    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise UsageError(f"there is no {file}", "give the model's folder or its tokenizer.json")
    loaded: Any = Tokenizer.from_file(str(file))
    return lambda token: visible(loaded.decode([token], skip_special_tokens=False))
