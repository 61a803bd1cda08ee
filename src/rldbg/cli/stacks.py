"""`rldbg stacks`: the stacks of all ranks, identical ones grouped; with --diagnose, why they hang."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rldbg.cli.application import verb
from rldbg.cli.live_target import open_target, target_options
from rldbg.cli.output import print_note, show
from rldbg.core import ExitCode

if TYPE_CHECKING:
    from rldbg.live import HangDiagnosis, StackGroup, UnarmedJob

_LOOK_S = 120.0


@verb("stacks", short_help="Group identical stacks of all ranks; explain hangs (--diagnose).")
@click.argument("who", default="all")
@target_options
@click.option("--pid", "pids", type=int, multiple=True, help="Look at this process and its children. Repeatable.")
@click.option("--torchrun", is_flag=True, help="Look at all torchrun workers of this host (or of --host).")
@click.option("--slurm", "slurm_job", metavar="JOB", default="", help="Look at a SLURM job, on all of its nodes.")
@click.option("--host", default="", help="Look at processes of another host, by ssh.")
@click.option("--ssh", default="ssh", show_default=True, help="The ssh command for --host.")
@click.option("--python", default="python3", show_default=True, help="Python of the other host or node, 3.11 or later.")
@click.option("--native", is_flag=True, help="Include C and C++ frames (needs py-spy).")
@click.option("--locals", "with_locals", is_flag=True, help="Show the local variables of every frame.")
@click.option(
    "--diagnose", "diagnosing", is_flag=True, help="Explain a hang: who waits for what, and why it never comes."
)
@click.option(
    "--dumps",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Diagnose a folder of flight recorder dumps instead of live processes.",
)
def command(
    who: str,
    run_dir: Path | None,
    ray_url: str | None,
    pids: tuple[int, ...],
    torchrun: bool,
    slurm_job: str,
    host: str,
    ssh: str,
    python: str,
    native: bool,
    with_locals: bool,
    diagnosing: bool,
    dumps: Path | None,
    as_json: bool,
) -> int:
    """Show the stacks of all ranks: identical stacks once, the smallest group first.

    With --diagnose, explain a hang in one sentence per cause: who waits for what, who should have done it, and what it
    does instead.

    \b
    Jobs that rldbg did not start need no preparation:
      rldbg stacks --ray auto     this machine's Ray cluster, on all nodes
      rldbg stacks --ray URL      of the cluster with this dashboard, or HOST:PORT
      rldbg stacks --pid 1234     a process and its children
      rldbg stacks --torchrun     all torchrun workers of this host
      rldbg stacks --slurm 42     all processes of a SLURM job
      rldbg stacks --host node7   processes of another host
    """
    from rldbg.live import UnarmedJob, diagnose_dumps

    if dumps is not None:
        return _show([diagnose_dumps(dumps)], [], [], as_json)
    job = UnarmedJob(
        ray=ray_url or "", pids=pids, torchrun=torchrun, slurm_job=slurm_job, host=host, ssh=ssh, python=python
    )
    if job:
        return _show_unarmed(job, {"native": native, "with_locals": with_locals}, diagnosing, as_json)
    return _show_run(run_dir, who, {"native": native, "locals": with_locals}, diagnosing, as_json)


def _show_run(run_dir: Path | None, who: str, wanted: dict[str, Any], diagnosing: bool, as_json: bool) -> int:
    from rldbg.live import explain_run, group_stacks
    from rldbg.reports.stacks import to_lines

    with open_target(run_dir, None) as client:
        if diagnosing:
            stacks, causes = explain_run(client, who, **wanted)
            return _show(causes, group_stacks(stacks), [], as_json)
        stacks = client.request("stacks", who=who, **wanted, timeout_s=_LOOK_S)["stacks"]
    groups = group_stacks(stacks)
    show({"groups": [group.to_dict() for group in groups], "stacks": stacks}, as_json, lambda: to_lines(groups))
    return ExitCode.OK


def _show_unarmed(job: "UnarmedJob", wanted: dict[str, bool], diagnosing: bool, as_json: bool) -> int:
    from rldbg.live import explain, explain_job, group_stacks, look_at_job
    from rldbg.reports.stacks import to_lines

    if diagnosing:
        view, causes = explain_job(job, **wanted)
    else:
        view = look_at_job(job, **wanted)
        causes = explain(view.stacks, ray=view.ray)
    if view.choice:
        print_note(view.choice)
    groups = group_stacks(view.stacks)
    if diagnosing:
        return _show(causes, groups, view.notes, as_json)
    waits = [cause.to_dict() for cause in causes]
    document = {"groups": [g.to_dict() for g in groups], "stacks": view.stacks, "waits": waits, "notes": view.notes}
    show(document, as_json, lambda: [*to_lines(groups), "", *(cause.verdict for cause in causes), *view.notes])
    return ExitCode.OK if all(stack.get("threads") for stack in view.stacks) else ExitCode.INCOMPLETE


def _show(causes: list["HangDiagnosis"], groups: list["StackGroup"], notes: list[str], as_json: bool) -> int:
    from rldbg.reports.findings import to_terminal
    from rldbg.reports.stacks import to_lines

    findings = [cause.to_finding() for cause in causes]
    told = [cause.to_dict() for cause in causes]
    document = {"diagnosis": told[0], "waits": told, "groups": [group.to_dict() for group in groups], "notes": notes}
    show(document, as_json, lambda: [to_terminal(findings), *to_lines(groups, brief=True), *notes])
    if any(finding.severity == "error" for finding in findings):
        return ExitCode.FINDING
    return ExitCode.OK if groups else ExitCode.INCOMPLETE
