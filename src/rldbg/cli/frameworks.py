"""`rldbg frameworks [NAME]`: what is supported of each framework, and which hooks the installed version has."""

from pathlib import Path

import click

from rldbg.cli.application import verb
from rldbg.cli.output import show


@verb("frameworks")
@click.argument("name", required=False)
@click.option(
    "--run", type=click.Path(path_type=Path), help="Show what the processes of a recorded run hooked and called."
)
def command(name: str | None, run: Path | None, as_json: bool) -> int:
    """List frameworks and what is supported, or show NAME with all its hooks.

    Exit code 1 when the installed version of a framework lacks a function that rldbg hooks, or, with --run, when
    something was to be recorded and was never called.

    \b
    rldbg frameworks             all of them
    rldbg frameworks NAME        one of them, with its hooks
    rldbg frameworks --run RUN   what a run hooked
    """
    if run is not None:
        return _of_run(run, as_json)
    from rldbg.frameworks import find_framework, frameworks, support_of
    from rldbg.reports.frameworks import framework_details, framework_table

    found = [support_of(framework) for framework in ([find_framework(name)] if name else frameworks())]
    document = {"frameworks": [support.to_dict() for support in found]}
    show(document, as_json, lambda: [framework_details(found[0]) if name else framework_table(found)])
    return 1 if any(support.missing for support in found) else 0


def _of_run(run: Path, as_json: bool) -> int:
    from rldbg.core import IncompleteDataError, Run
    from rldbg.frameworks import nothing_hooked, read_hooks, recording_findings
    from rldbg.reports.frameworks import hooks_of_run

    processes = read_hooks(run)
    if not processes and not Run(run).read():
        raise IncompleteDataError(f"{run} is not a run folder", "give one of .rldbg/runs, as `rldbg run` prints it")
    nothing = nothing_hooked(run)
    findings = [*recording_findings(run), *([nothing] if nothing is not None else [])]
    document = {"processes": list(processes), "findings": [finding.to_dict() for finding in findings]}
    show(document, as_json, lambda: [hooks_of_run(processes, findings)])
    return 1 if findings else 0
