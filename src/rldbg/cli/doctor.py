"""`rldbg doctor`: find the root cause of a failure and its fix; check this machine."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rldbg.cli.application import verb
from rldbg.cli.output import is_quiet, print_json, print_line, print_note, show
from rldbg.core import ExitCode, UsageError

if TYPE_CHECKING:
    from rldbg.doctor import Diagnosis, EngineName, Hit, Library, ProbeResult


@verb("doctor", short_help="Find the root cause of a failure and its fix; check this machine.")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--watch", is_flag=True, help="Follow the logs and report the first root cause that appears.")
@click.option("--preflight", type=click.Path(path_type=Path), help="Check what this recipe or script will need.")
@click.option("--explain", metavar="ID", help="Show everything known about one failure.")
@click.option("--list", "list_all", is_flag=True, help="List all known failures.")
@click.option("--fix", metavar="ID", help="Show what the fix of a failure would change; with --yes apply it.")
@click.option("--yes", is_flag=True, help="With --fix: apply it without asking.")
@click.option("--new-entry", is_flag=True, help="Draft an entry for the first unknown failure in PATH.")
@click.option("--knowledge", multiple=True, type=click.Path(path_type=Path), help="Folder with your own entries.")
@click.option("--nodes/--no-nodes", default=True, help="Without PATH: also check every node of the Ray cluster.")
@click.option(
    "--probe/--no-probe", default=None, help="Confirm causes by checks of this machine.  [default: if the job ran here]"
)
@click.option(
    "--engine", type=click.Choice(["auto", "hyperscan", "numpy"]), default="auto", help="Search engine for logs."
)
@click.option("--verbose", "-v", is_flag=True, help="Also show checks that passed and the lines of consequences.")
def command(
    paths: tuple[str, ...],
    watch: bool,
    preflight: Path | None,
    explain: str | None,
    list_all: bool,
    fix: str | None,
    yes: bool,
    new_entry: bool,
    knowledge: tuple[Path, ...],
    nodes: bool,
    probe: bool | None,
    engine: "EngineName",
    verbose: bool,
    as_json: bool,
) -> int:
    """Without PATH: check this machine and, if a Ray cluster is reachable, every node.

    With PATH (log files, folders, globs, a run, a Ray session, - for a pipe): find the root cause of the failure, with
    evidence and fix, or report that it is not in these logs and where to look.

    \b
    rldbg doctor logs/                      what broke the run
    rldbg doctor --preflight train.sh       what the job will need
    rldbg doctor --explain ray-actor-died   one known failure
    """
    from rldbg.doctor import Library

    if preflight is not None:
        return _preflight(preflight, verbose=verbose, as_json=as_json)
    library = Library.load(knowledge)
    if list_all or explain:
        return _show(library, explain, as_json=as_json)
    if fix:
        return _fix(library, fix, yes=yes, as_json=as_json)
    if not paths:
        if watch or new_entry:
            raise UsageError("nothing to read", "rldbg doctor --watch PATH, rldbg doctor --new-entry LOG")
        return _machine(nodes=nodes, verbose=verbose, as_json=as_json)
    diagnosis = _watched(paths, library, engine) if watch else _read(paths, library, engine, probe, quiet=as_json)
    if new_entry:
        return _draft(diagnosis, as_json=as_json)
    return _report(diagnosis, verbose=verbose, as_json=as_json)


def _report(diagnosis: "Diagnosis", *, verbose: bool, as_json: bool) -> int:
    from rldbg.reports.diagnosis import to_terminal

    show(diagnosis.to_dict(), as_json, lambda: [to_terminal(diagnosis, verbose=verbose)])
    if diagnosis.verdict == "healthy" and diagnosis.read_bytes == 0 and not diagnosis.flights:
        return ExitCode.INCOMPLETE
    return ExitCode.OK if diagnosis.verdict == "healthy" else ExitCode.FINDING


def _read(
    paths: tuple[str, ...], library: "Library", engine: "EngineName", probe: bool | None, *, quiet: bool
) -> "Diagnosis":
    from rldbg.doctor import SearchIndex, diagnose, job_facts
    from rldbg.doctor.machine.probes import probe_machine

    facts = job_facts(paths)
    probes = probe_machine() if (facts.is_local if probe is None else probe) else []
    index = SearchIndex(library, engine)
    with _reading(library, quiet=quiet) as (on_bytes, on_hit):
        return diagnose(paths, index=index, probes=probes, facts=facts, on_bytes=on_bytes, on_hit=on_hit)


def _watched(paths: tuple[str, ...], library: "Library", engine: "EngineName") -> "Diagnosis":
    from rldbg.doctor import SearchIndex, job_facts, watch

    print_note(f"watching {', '.join(paths)}; press Ctrl-C to stop")
    is_run = any((Path(path) / "run.json").is_file() for path in paths)
    has_ended = (lambda: job_facts(paths).has_ended) if is_run else (lambda: False)
    return watch(paths, index=SearchIndex(library, engine), has_ended=has_ended)


@contextmanager
def _reading(library: "Library", *, quiet: bool) -> "Iterator[tuple[Callable[[int], None], Callable[[Hit], None]]]":
    """A progress bar while logs are read, and the first line of each possible cause as soon as it is found."""
    if quiet or is_quiet() or not sys.stderr.isatty():
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


def _machine(*, nodes: bool, verbose: bool, as_json: bool) -> int:
    from rldbg.doctor import cluster_address, probe_nodes
    from rldbg.doctor.machine.probes import Machine, probe_machine

    machine = Machine()
    probes = probe_machine(machine)
    address = cluster_address(machine) if nodes else None
    if address:
        probes += probe_nodes(address)
    return _probes(probes, verbose=verbose, as_json=as_json)


def _preflight(path: Path, *, verbose: bool, as_json: bool) -> int:
    from rldbg.doctor import check_needs

    return _probes(check_needs(path), verbose=verbose, as_json=as_json)


def _probes(probes: "list[ProbeResult]", *, verbose: bool, as_json: bool) -> int:
    """Everything that passed is one line, unless asked for."""
    from rldbg.reports.diagnosis import probes_to_terminal

    bad = [probe for probe in probes if probe.status in ("warn", "fail")]
    failed = any(probe.status == "fail" for probe in probes)
    nothing: dict[str, list[str]] = {"root_causes": [], "fallout": [], "next": []}
    passed = sum(probe.status == "pass" for probe in probes)
    skipped = Counter(probe.reason for probe in probes if probe.status == "skip")
    said = f"{passed} of {len(probes)} checks passed, {len(bad)} need attention"
    if skipped:
        why = "; ".join(f"{reason}: {count}" for reason, count in skipped.items())
        said += f", {skipped.total()} do not apply here ({why})"
    document = {"verdict": "found" if failed else "healthy", "probes": probes, **nothing}
    show(document, as_json, lambda: [probes_to_terminal(probes if verbose else bad), said])
    return ExitCode.FINDING if failed else ExitCode.OK


def _show(library: "Library", name: str | None, *, as_json: bool) -> int:
    from rldbg.reports.knowledge import entry_to_terminal, library_to_terminal

    entries = [library[name]] if name else list(library.entries.values())
    document = {"entries": [entry.model_dump(mode="json") for entry in entries]}
    show(document, as_json, lambda: [entry_to_terminal(entries[0]) if name else library_to_terminal(entries)])
    return ExitCode.OK


def _fix(library: "Library", name: str, *, yes: bool, as_json: bool) -> int:
    from rldbg.doctor import home_folder, steps_of
    from rldbg.doctor.machine.probes import Machine

    entry = library[name]
    if entry.remedy is None:
        advice = "; ".join(entry.fix)
        raise UsageError(f"{name} has no automatic fix", f"do it by hand: {advice}")
    steps = steps_of(entry.remedy, machine=Machine(), home=home_folder())
    if not as_json:
        for step in steps:
            print_line(step.text)
    if steps and not yes and not as_json and sys.stdin.isatty():
        yes = click.confirm("apply?", err=True)
    for step in steps if yes else ():
        step.act()
    if as_json:
        print_json({"id": name, "steps": [step.text for step in steps], "done": yes and bool(steps)})
    elif not steps:
        print_line("nothing to do: this machine is already configured like this")
    else:
        print_note("done" if yes else "nothing was changed; --yes applies it")
    return ExitCode.OK


def _draft(diagnosis: "Diagnosis", *, as_json: bool) -> int:
    from rldbg.doctor import draft

    text = draft(diagnosis)
    if as_json:
        print_json({"entry": text})
    else:
        print_line(text.rstrip())
        print_note("put it into a *.yaml file in a folder of RLDBG_KNOWLEDGE, and replace the words in <>")
    return ExitCode.OK
