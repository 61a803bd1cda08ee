"""`rldbg convert`: write a recording in another format."""

from pathlib import Path
from typing import Any

import click

from rldbg.cli.application import verb
from rldbg.cli.output import show
from rldbg.cli.progress import progress
from rldbg.core import ExitCode

_FORMATS = ("nexrl-pt", "nexrl-jsonl", "safetensors", "parquet")


@verb("convert", short_help="Write a recording in another format.")
@click.argument("path")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--to", "target", type=click.Choice(_FORMATS), required=True, help="Format of the result.")
@click.option("--kind", help="Only this kind.")
@click.option("--step", type=int, help="Only this step.")
@click.option("--layout", help="Layout of PATH, if not detected.")
@click.option("--overwrite", is_flag=True, help="Replace OUT when it is a recording of rldbg.")
def command(
    path: str,
    out: Path,
    target: Any,
    kind: str | None,
    step: int | None,
    layout: str | None,
    overwrite: bool,
    as_json: bool,
) -> int:
    """Write the records of PATH (any layout that `rldbg show` opens) to the new folder OUT.

    What the format cannot carry is listed, and the exit code is then 1.

    \b
    rldbg convert RUN out --to parquet             every record
    rldbg convert RUN out --to nexrl-pt --step 3   one step
    """
    from rldbg.recording import convert, open
    from rldbg.reports.findings import to_terminal

    recording = open(path, layout)
    with progress("converting", "records", total=len(recording.entries(kind, step)), as_json=as_json) as advance:
        recording.on_read = advance
        result = convert(recording, out, target, kind=kind, step=step, overwrite=overwrite)
    said = f"{result.records:,} records in {result.files:,} files, {result.bytes:,} bytes: {result.out}"
    show(result.to_dict(), as_json, lambda: [said, to_terminal(result.findings)])
    return ExitCode.FINDING if result.findings else ExitCode.OK
