"""Profiles: what is planned, what a profiled run left, and the report of where the time of a step goes."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from rldbg.profiling import Merged, Plan, Profiled, ProfileReport, places_by_node
from rldbg.reports.tables import Table


def plan_lines(plan: Plan) -> Iterator[str]:
    """Before the command starts: which tool, which workers, which steps."""
    if plan.tool == "phases":
        return
    which = f"steps {plan.window}" if plan.steps else "from start to end"
    yield f"{plan.tool} for workers {', '.join(plan.patterns)}, {which}; profiles go to {plan.folder}"
    if plan.steps is None:
        yield "without --steps the files grow large: --steps 3:5 profiles steps 3 and 4 only"


def outcome_lines(profiled: Profiled) -> Iterator[str]:
    """Which files there are, and where."""
    for entry in profiled.manifest.profiles:
        for file in entry["files"]:
            yield f"{entry['worker']}: {file['path']} ({file['size_bytes']} bytes)"
    for node, places in places_by_node(profiled.manifest).items():
        yield f"profiles of node {node}: {', '.join(places)}"


def closing_lines(profiled: Profiled) -> Iterator[str]:
    manifest = profiled.manifest
    yield (
        f"exit code {profiled.exit_code}; {len(manifest.profiles)} profiles, {len(manifest.missing)} missing; "
        f"{manifest.folder / 'manifest.json'}; run folder {profiled.run}"
    )
    yield f"next: rldbg profile timeline {profiled.run}; rldbg profile report {profiled.run}"


def timeline_lines(merged: Merged) -> Iterator[str]:
    """What is on the timeline, and how far each process's clock was moved."""
    yield f"{merged.path}: {merged.events} events of {len(merged.tracks)} processes"
    for track in merged.tracks:
        who = f"{track.worker} ({track.host}, process {track.pid})"
        if track.offset_ns is None:
            yield f"clock of {who}: not measured against the broker's; used as it is"
        elif track.round_trip_ns is not None:
            doubt = track.round_trip_ns / 2e6
            yield f"clock of {who}: shifted by {track.offset_ns / 1e6:+.3f} ms, accurate to {doubt:.3f} ms"


def to_terminal(report: ProfileReport) -> Group:
    parts: list[RenderableType] = [
        Text(f"{report.steps} steps of {report.step_seconds:.3f} s"),
        _phases(report),
        _roles(report),
    ]
    if report.tails:
        parts.append(_tails(report))
    if any(row.host_mib or row.gpu_mib for row in report.ledger):
        parts.append(_ledger(report))
    for residue in report.residues:
        parts.append(
            Text(f"{residue.mib:.0f} MiB are still in use on the GPU of {residue.process} after {residue.phase}")
        )
    parts += [Text("what to try")] if report.advice else [Text("nothing stands out")]
    parts += [Text(f"  {number}. {text}") for number, text in enumerate(report.advice, 1)]
    return Group(*parts)


def _phases(report: ProfileReport) -> Table:
    table = Table("role", "processes", "phase", "s per step", "share", "slowest", title="where the time goes")
    for row in report.phases:
        slowest = f"{row.slowest} {row.slowest_seconds:.4f}" if row.processes > 1 else ""
        seconds, share = f"{row.seconds:.4f}", f"{row.share:.1%}"
        table.add_row(row.role, str(row.processes), row.phase, seconds, share, slowest)
    return table


def _roles(report: ProfileReport) -> Table:
    table = Table("role", "busy", "outside phases", "idle", "waits for the slowest", "slowest", title="bubbles")
    for row in report.roles:
        slowest = f"{row.slowest} ({row.slowest_ratio:.2f} times the median, in {row.slowest_steps} steps)"
        table.add_row(
            row.role,
            f"{row.busy_share:.1%}",
            f"{row.outside_share:.1%}",
            f"{row.idle_share:.1%}",
            f"{row.waits_for_slowest_share:.1%}" if row.processes > 1 else "",
            slowest if row.processes > 1 else "",
        )
    return table


def _ledger(report: ProfileReport) -> Table:
    table = Table("process", "phase", "s per step", "host MiB", "GPU MiB", title="memory at entry, peak and exit")
    for row in report.ledger:
        table.add_row(row.process, row.phase, f"{row.seconds:.4f}", _three(row.host_mib), _three(row.gpu_mib))
    return table


def _three(numbers: tuple[float, float, float] | None) -> str:
    return "" if numbers is None else " / ".join(f"{number:.0f}" for number in numbers)


def _tails(report: ProfileReport) -> Table:
    table = Table("role", "phase", "count", "median s", "longest s", "cost of the tail", title="long tails")
    for tail in report.tails:
        lengths = (f"{tail.median_seconds:.4f}", f"{tail.longest_seconds:.4f}")
        table.add_row(tail.role, tail.phase, str(tail.count), *lengths, f"{tail.cost_share:.1%}")
    return table
