"""`rldbg show`: contents and health of a recording, the fields of its records, one sample token by token."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rldbg.cli.application import verb
from rldbg.cli.output import print_json, print_note, print_result, show
from rldbg.cli.progress import progress
from rldbg.core import ExitCode, IncompleteDataError, PrerequisiteError, SampleId, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rldbg.recording import Recording, Sample

_MAX_RECORDS = 12


@verb("show", short_help="Show the contents and health of a recording.")
@click.argument("path")
@click.option("--step", type=int, help="Only this step.")
@click.option("--kind", help="Only this kind.")
@click.option("--rank", type=int, help="Only this rank.")
@click.option("--sample", metavar="GROUP/RUN", help="Show one sample token by token.")
@click.option("--layout", help="Layout, if not detected (`rldbg frameworks` lists the names).")
@click.option("--tokenizer", metavar="PATH", help="Folder of the tokenizer, if not found in the run.")
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
    """Show the contents and health of a recording.

    PATH is a run folder, a dump folder, one kind's folder, one dump file, or a URL (s3://, https://). With --step,
    --kind or --rank: the fields of the matching records. With --sample: one sample, token by token.

    \b
    rldbg show RUN                          what is recorded, and is it whole
    rldbg show RUN --step 3 --kind loss     the fields of records
    rldbg show RUN --step 3 --sample g0/1   one sample
    """
    from rldbg.recording import open

    episode = None if sample is None else _episode(path, SampleId.parse(sample))
    if episode is not None and not episode["samples"]:
        return _show_lost_episode(episode, as_json)
    recording = open(path, layout)
    if sample is not None:
        wanted = SampleId.parse(sample), step, _known_kind(recording, kind), rank
        with progress("searching", "records", as_json=as_json) as advance:
            recording.on_read = advance
            found = recording.sample(*wanted)
        return _show_sample(episode, recording, found, tokenizer, as_json)
    if (step, kind, rank) != (None, None, None):
        return _show_records(recording, kind, step, rank, as_json)
    return _show_summary(recording, as_json)


def _show_summary(recording: "Recording", as_json: bool) -> int:
    from rldbg.reports.recording import to_terminal

    summary = recording.summary()
    show(summary.to_dict(), as_json, lambda: [to_terminal(summary)])
    if not summary.kinds:
        return ExitCode.INCOMPLETE
    return ExitCode.OK if summary.is_healthy else ExitCode.FINDING


def _show_records(recording: "Recording", kind: str | None, step: int | None, rank: int | None, as_json: bool) -> int:
    from rldbg.reports.recording import record_to_terminal, records_to_json

    entries = recording.entries(kind, step, rank)
    if not entries:
        _refuse_absent(recording, kind, step, rank)
    if as_json:
        print_json(records_to_json(recording.layout.name, [recording.read_entry(entry) for entry in entries]))
        return ExitCode.OK
    for entry in entries[:_MAX_RECORDS]:
        print_result(record_to_terminal(recording.read_entry(entry)))
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
    from rldbg.reports.recording import ranges

    return ranges(numbers)


def _known_kind(recording: "Recording", kind: str | None) -> str | None:
    if kind is not None and kind not in recording.kinds():
        _refuse_absent(recording, kind, None, None)
    return kind


def _show_lost_episode(episode: dict[str, Any], as_json: bool) -> int:
    """An episode that failed or was rejected: no row came of it, but what was said is known."""
    from rldbg.reports.episode import episode_to_terminal

    show({"episode": episode}, as_json, lambda: [episode_to_terminal(episode)])
    return ExitCode.OK


def _show_sample(
    episode: dict[str, Any] | None, recording: "Recording", sample: "Sample", tokenizer: str | None, as_json: bool
) -> int:
    from rldbg.recording import TokenColumns
    from rldbg.reports.recording import sample_to_json, sample_to_terminal

    columns = TokenColumns(sample)
    texts = _texts(recording, tokenizer, columns.tokens.tolist())
    body = sample_to_json(sample, columns, texts) | ({} if episode is None else {"episode": episode})

    def lines() -> "Iterator[RenderableType]":
        if episode is not None:
            from rldbg.reports.episode import episode_to_terminal

            yield episode_to_terminal(episode)
        yield sample_to_terminal(sample, columns, texts)

    show(body, as_json, lambda: list(lines()))
    return ExitCode.OK


def _episode(path: str, sample: SampleId) -> dict[str, Any] | None:
    """The conversation that the sample came of, if PATH is the folder of a rollout."""
    if not (Path(path) / "generated").is_dir():
        return None
    from rldbg.inference.workflows import read_episode

    return read_episode(Path(path), str(sample))


def _texts(recording: "Recording", tokenizer: str | None, tokens: Sequence[int]) -> list[str] | None:
    """The text of each token, by the tokenizer that was asked for or that the recording knows."""
    from rldbg.recording import TokenText, find_tokenizer

    if tokenizer is not None:
        file = Path(tokenizer) / "tokenizer.json" if Path(tokenizer).is_dir() else Path(tokenizer)
        if not file.is_file():
            raise UsageError(f"no such file: {file}", "give the model's folder or its tokenizer.json")
        return TokenText(file).of(tokens)
    found = find_tokenizer(recording)
    if found is None:
        return None
    try:
        return TokenText(found).of(tokens)
    except (PrerequisiteError, IncompleteDataError) as error:
        print_note(f"token ids are shown without text: {error.message} ({error.hint})")
        return None
