"""A rollout: its episodes in a line, and its failures, equal ones together."""

from collections import Counter
from collections.abc import Iterator, Sequence

from rldbg.inference.workflows import EpisodeFailure, RolloutReport

_MOST_SHOWN = 5
_MOST_ALIKE_NAMED = 8
_MOST_REJECTED_NAMED = 10


def to_terminal(report: RolloutReport) -> str:
    return "\n".join([*notes(report), *results(report)])


def notes(report: RolloutReport) -> Iterator[str]:
    """What went wrong, or needs to be known."""
    groups = report.failures_by_likeness()
    for group in groups[:_MOST_SHOWN]:
        yield failure_text(*group) + "\n"
    if len(groups) > _MOST_SHOWN:
        yield f"{len(groups) - _MOST_SHOWN} further kinds of failure: see {report.run}/reports/rollout.json"
    if groups and report.addresses:
        sample = groups[0][0].sample
        yield f"conversation of a failed episode: rldbg show {report.run} --sample {sample}"
        yield f"with the same answers again, in seconds and without a server: add --replay {report.run}"
    yield from (f"note: {note}" for note in report.notes)
    yield from _faults(report)
    if report.rejected:
        yield f"rejected by the workflow (it returned None): {', '.join(report.rejected[:_MOST_REJECTED_NAMED])}"


def _faults(report: RolloutReport) -> Iterator[str]:
    """Per kind of injected fault: how many episodes met it, and what became of them."""
    for kind in dict.fromkeys(item.kind for item in report.faults):
        met = [item for item in report.faults if item.kind == kind and item.verdict != "not reached"]
        verdicts = Counter(item.verdict for item in met)
        told = "; ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
        yield f"fault {kind}: {len(met)} episode{'' if len(met) == 1 else 's'}: {told or 'no episode reached it'}"


def results(report: RolloutReport) -> Iterator[str]:
    """The files that were written."""
    yield summary(report)
    if report.batch:
        yield f"batch: {report.batch}   (rldbg check {report.batch})"
    if report.traces:
        yield f"timelines: {report.traces}   (chrome://tracing or ui.perfetto.dev)"
    yield f"run: {report.run}"


def summary(report: RolloutReport) -> str:
    done = report.episodes - len(report.failures) - len(report.rejected) - len(report.not_run)
    parts = [f"{done} of {report.episodes} episodes", f"{report.rows} rows", f"{report.tokens} tokens trained on"]
    if report.mean_reward is not None:
        parts.append(f"mean reward {report.mean_reward:.3f}")
    for count, what in (
        (len(report.rejected), "rejected by the workflow"),
        (len(report.failures), "failed"),
        (len(report.not_run), "not run"),
    ):
        if count:
            parts.append(f"{count} {what}")
    return ", ".join(parts) + f" in {report.seconds:.1f} s"


def failure_text(failure: EpisodeFailure, *alike: EpisodeFailure) -> str:
    """One failure in full, and the names of those that are like it."""
    parts = [
        f"sample {failure.sample}: {failure.error}{_named(alike)}",
        failure.traceback or f"{failure.error}: {failure.message}",
        f"  sample: {failure.data}",
    ]
    if failure.hint:
        parts.append(f"  try: {failure.hint}")
    return "\n".join([*parts, f"  run only this sample (--pdb stops at the error): {failure.command}"])


def _named(alike: Sequence[EpisodeFailure]) -> str:
    if not alike:
        return ""
    names = ", ".join(item.sample for item in alike[:_MOST_ALIKE_NAMED])
    return f"   (and {len(alike)} more like it: {names}{' ...' if len(alike) > _MOST_ALIKE_NAMED else ''})"
