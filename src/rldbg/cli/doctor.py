"""`rldbg doctor`: the root cause of a failure, with its fix."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rldbg.cli.application import verb
from rldbg.core import ExitCode

if TYPE_CHECKING:
    from rldbg.doctor import Library
    from rldbg.doctor.engines import EngineName
    from rldbg.doctor.evidence import Hit


@verb("doctor", short_help="The root cause of a failure, with its fix.")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option(
    "--engine", type=click.Choice(["auto", "hyperscan", "numpy"]), default="auto", help="How logs are searched."
)
@click.option("--knowledge", multiple=True, type=click.Path(path_type=Path), help="A folder with entries of your own.")
@click.option("--verbose", "-v", is_flag=True, help="Show the lines of the fallout and harmless look-alikes too.")
def command(
    paths: tuple[str, ...], engine: "EngineName", knowledge: tuple[Path, ...], verbose: bool, as_json: bool
) -> int:
    """Names the root cause of a failure in logs: files, folders, globs, a run, a Ray session, - for a pipe."""
    from rldbg.doctor import Library

    library = Library.load(knowledge)
    return _diagnose(paths, library, engine=engine, verbose=verbose, as_json=as_json)


def _diagnose(paths: tuple[str, ...], library: "Library", *, engine: "EngineName", verbose: bool, as_json: bool) -> int:
    from rldbg.cli.output import print_json, print_result
    from rldbg.doctor import SearchIndex, diagnose
    from rldbg.doctor.terminal import diagnosis_to_terminal

    index = SearchIndex(library, engine)
    with _reading(library, quiet=as_json) as (on_bytes, on_hit):
        diagnosis = diagnose(paths, index=index, on_bytes=on_bytes, on_hit=on_hit)
    if as_json:
        print_json(diagnosis.to_dict())
    else:
        print_result(diagnosis_to_terminal(diagnosis, verbose=verbose))
    return ExitCode.OK if diagnosis.verdict == "healthy" else ExitCode.FINDING


@contextmanager
def _reading(library: "Library", *, quiet: bool) -> "Iterator[tuple[Callable[[int], None], Callable[[Hit], None]]]":
    """A progress bar while logs are read, and the first line of each possible cause as soon as it is found."""
    if quiet or not sys.stderr.isatty():
        yield (lambda _count: None), (lambda _hit: None)
        return
    from rich.progress import DownloadColumn, Progress, SpinnerColumn, TimeElapsedColumn, TransferSpeedColumn

    from rldbg.cli.output import console, visible

    seen: set[str] = set()
    columns = (SpinnerColumn(), "reading", DownloadColumn(), TransferSpeedColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)

        def on_hit(hit: "Hit") -> None:
            if hit.entry not in seen and library.entries[hit.entry].can_be_cause:
                seen.add(hit.entry)
                bar.console.print(visible(f"{hit.entry}: {hit.place.file}:{hit.place.line}"), markup=False)

        yield (lambda count: bar.advance(task, count)), on_hit
