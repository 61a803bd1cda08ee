"""Where the time of a step goes: by role and phase, who waits for whom, which rank is slow, what to try."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

from rldbg.agent.profiling import BEFORE_STEPS, OPEN_END, Plan
from rldbg.core import IncompleteDataError, Run
from rldbg.lazy import shown_by
from rldbg.profiling.growth import Leak, leaks_of
from rldbg.profiling.ledger import LedgerRow, Residue, ledger_of, residues_of
from rldbg.profiling.request import PLAN_FILE
from rldbg.profiling.tracks import PhaseSpan, Track, books_of, read_tracks, self_times

_WHOLE = ("step", "start")
_WAITING = ("sync",)
_TAIL_PHASES = ("rollout", "request")
_SLOW = 1.15
_TAIL = 2.0
_IDLE = 0.4


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """The time of one phase in one role: of itself, without the phases inside it, a process and step."""

    role: str
    processes: int
    phase: str
    seconds: float
    share: float
    slowest: str
    slowest_seconds: float


@dataclass(frozen=True, slots=True)
class RoleRow:
    """The share of a step in which a role's processes are idle, and the part of it spent waiting for the slowest of
    them. Outside its phases a process is idle while it uses no CPU.
    """

    role: str
    processes: int
    busy_share: float
    outside_share: float
    idle_share: float
    waits_for_slowest_share: float
    slowest: str
    slowest_ratio: float
    slowest_steps: int


@dataclass(frozen=True, slots=True)
class Tail:
    """Rollouts or requests of which a few take much longer than most."""

    role: str
    phase: str
    count: int
    median_seconds: float
    longest_seconds: float
    cost_share: float


@shown_by("profile")
@dataclass(frozen=True, slots=True)
class ProfileReport:
    """The whole of it; shares are of a step's time."""

    steps: int
    step_seconds: float
    phases: tuple[PhaseRow, ...]
    roles: tuple[RoleRow, ...]
    tails: tuple[Tail, ...]
    advice: tuple[str, ...]
    ledger: tuple[LedgerRow, ...] = ()
    leaks: tuple[Leak, ...] = ()
    residues: tuple[Residue, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def make_report(run: Path) -> ProfileReport:
    """Over the steps that were whole; the time before the first step does not count. Without a tool, whose files they
    would choose, the steps that were asked for choose what is reported."""
    tracks = read_tracks(run)
    found = step_bounds(tracks)
    start, stop = _asked_steps(run)
    bounds = {number: bound for number, bound in found.items() if start <= number < stop}
    if found and not bounds:
        raise IncompleteDataError(
            f"no phases of steps {start}:{stop}: this run has steps {min(found)} to {max(found)}",
            "profile it again with --steps of those, or without",
        )
    if not bounds and (code := Run(run).read().get("exit_code")):
        raise IncompleteDataError(
            f"no steps found in this run: its command ended with exit code {code}", f"find out why: rldbg doctor {run}"
        )
    if not bounds:
        raise IncompleteDataError(
            "no steps found in this run",
            "call rldbg.step(n) where a step begins, or profile a process that has an optimizer",
        )
    step_s = mean((end - start) / 1e9 for start, end in bounds.values())
    groups = _by_role(tracks)
    phases = [row for role, members in groups.items() for row in _phase_rows(role, members, bounds, step_s)]
    working = {role: members for role, members in groups.items() if any(_inside(each, bounds) for each in members)}
    roles = [_role_row(role, members, bounds, step_s) for role, members in working.items()]
    tails = [tail for role, members in groups.items() for tail in _tails(role, members, bounds, step_s)]
    rows = tuple(sorted(phases, key=lambda row: (row.role, -row.seconds)))
    titled = {role: [(_title(track), track) for track in members] for role, members in groups.items()}
    chosen = {
        role: [(title, replace(track, spans=_inside(track, bounds))) for title, track in members]
        for role, members in titled.items()
    }
    each = [pair for members in titled.values() for pair in members]
    leaks = tuple(leak for title, track in each for leak in leaks_of(title, track))
    return ProfileReport(
        len(bounds),
        step_s,
        rows,
        tuple(roles),
        tuple(tails),
        (*(f"{leak.text}: look for what is kept there" for leak in leaks), *advise(rows, roles, tails)),
        tuple(ledger_of(titled if bounds == found else chosen, len(bounds))),
        leaks,
        tuple(residue for title, track in each for residue in residues_of(title, track)),
    )


def _asked_steps(run: Path) -> tuple[int, int]:
    """The first step and the one after the last."""
    file = books_of(run) / PLAN_FILE
    plan = Plan.parse(file.read_text(encoding="utf-8")) if file.is_file() else None
    return plan.steps if plan is not None and plan.steps and plan.tool == "phases" else (BEFORE_STEPS + 1, OPEN_END)


def _by_role(tracks: Sequence[Track]) -> dict[str, list[Track]]:
    """Workers whose names differ in numbers only are ranks of one role; one alone keeps its name."""
    groups: dict[str, list[Track]] = defaultdict(list)
    for track in tracks:
        groups[track.group].append(track)
    apart = {name: _told_apart(members) for name, members in groups.items()}
    return {members[0].worker if len(members) == 1 else name: members for name, members in apart.items()}


def _told_apart(members: Sequence[Track]) -> list[Track]:
    """Processes of one name get the process id; a helper without phases of a process that has some does not count."""
    named: dict[str, list[Track]] = defaultdict(list)
    for track in members:
        named[_title(track)].append(track)
    found = []
    for title, alike in named.items():
        working = [track for track in alike if track.spans] or alike
        if len(working) > 1:
            working = [replace(track, worker=f"{title} ({track.pid})", rank=None) for track in working]
        found += working
    return found


def step_bounds(tracks: Sequence[Track]) -> dict[int, tuple[int, int]]:
    """Begin and end of each step: as a driver says, else from its first phase to that of the next, so that idleness
    between them counts and processes may be at different steps; the last one to its own end."""
    told = {span.step: (span.start_ns, span.end_ns) for t in tracks for span in t.spans if span.phase == "step"}
    if told:
        return dict(sorted(told.items()))
    found: dict[int, tuple[int, int]] = {}
    for track in tracks:
        for span in track.spans:
            if span.step >= 0:
                start, end = found.get(span.step, (span.start_ns, span.end_ns))
                found[span.step] = min(start, span.start_ns), max(end, span.end_ns)
    ordered = sorted(found.items())
    following = [start for _, (start, _) in ordered[1:]]
    ends = [*following, *(end for _, (_, end) in ordered[-1:])]
    return {number: (start, end) for (number, (start, _)), end in zip(ordered, ends, strict=True)}


def _inside(track: Track, bounds: dict[int, tuple[int, int]]) -> list[PhaseSpan]:
    """The spans between the first step's begin and the last one's end."""
    start, end = min(low for low, _ in bounds.values()), max(high for _, high in bounds.values())
    return [span for span in track.spans if start <= span.start_ns < end and span.phase not in _WHOLE]


def _phase_rows(role: str, members: list[Track], bounds: dict[int, tuple[int, int]], step_s: float) -> list[PhaseRow]:
    totals: dict[str, dict[str, float]] = defaultdict(dict)
    for track in members:
        for span, own in self_times(_inside(track, bounds)):
            mine = totals[span.phase]
            mine[_title(track)] = mine.get(_title(track), 0.0) + own / 1e9 / len(bounds)
    rows = []
    for phase, by_process in totals.items():
        slowest = max(by_process, key=lambda name: by_process[name])
        seconds = sum(by_process.values()) / len(members)
        rows.append(PhaseRow(role, len(members), phase, seconds, seconds / step_s, slowest, by_process[slowest]))
    return rows


def _role_row(role: str, members: list[Track], bounds: dict[int, tuple[int, int]], step_s: float) -> RoleRow:
    """Waiting inside a collective is not work: the rank that the others wait for is the one that waits least."""
    work: dict[str, dict[int, float]] = {}
    for track in members:
        by_step: dict[int, float] = dict.fromkeys(bounds, 0.0)
        for span, own in self_times(_inside(track, bounds)):
            number = _step_of(span, bounds)
            if number is not None and span.phase not in (*_WAITING, "pause"):
                by_step[number] += own / 1e9
        work[_title(track)] = by_step
    totals = {name: sum(by_step.values()) for name, by_step in work.items()}
    longest = [max(by_step[number] for by_step in work.values()) for number in bounds]
    busy = mean(totals.values()) / len(bounds)
    slowest = max(totals, key=lambda name: totals[name])
    middle = median(totals.values())
    times_slowest = sum(work[slowest][number] >= top for number, top in zip(bounds, longest, strict=True))
    outside = mean(_outside_ns(track, bounds) for track in members) / 1e9 / len(bounds)
    return RoleRow(
        role,
        len(members),
        busy / step_s,
        outside / step_s,
        max(0.0, 1 - (busy + outside) / step_s),
        (mean(longest) - busy) / step_s,
        slowest,
        totals[slowest] / middle if middle else 1.0,
        times_slowest,
    )


def _outside_ns(track: Track, bounds: dict[int, tuple[int, int]]) -> int:
    """Processor time between the phases of a process: it works, at something that is not marked as a phase."""
    spans = [span for span in _inside(track, bounds) if len(span.cpu_ns) == 2]
    spans.sort(key=lambda span: span.start_ns)
    total, last = 0, None
    for span in spans:
        if last is not None and span.start_ns > last.end_ns:
            total += min(max(span.cpu_ns[0] - last.cpu_ns[1], 0), span.start_ns - last.end_ns)
        if last is None or span.end_ns > last.end_ns:
            last = span
    return total


def _tails(role: str, members: list[Track], bounds: dict[int, tuple[int, int]], step_s: float) -> list[Tail]:
    found = []
    for phase in _TAIL_PHASES:
        lengths: dict[int, list[float]] = defaultdict(list)
        for track in members:
            for span in _inside(track, bounds):
                number = _step_of(span, bounds)
                if span.phase == phase and number is not None:
                    lengths[number].append(span.length_ns / 1e9)
        every = [length for each in lengths.values() for length in each]
        if len(every) < 2:
            continue
        cost = mean(max(each) - median(each) for each in lengths.values()) / step_s
        found.append(Tail(role, phase, len(every), median(every), max(every), cost))
    return found


def advise(phases: Sequence[PhaseRow], roles: Sequence[RoleRow], tails: Sequence[Tail]) -> list[str]:
    """What to try, worst problem first; only what the numbers show."""
    said: list[tuple[float, str]] = []
    for role in roles:
        idle = role.idle_share
        if role.processes > 1 and role.slowest_ratio >= _SLOW:
            idle -= role.waits_for_slowest_share
            text = f"{role.slowest} works {role.slowest_ratio:.2f} times as long as its peers"
            said.append((role.waits_for_slowest_share, f"{text}: balance its data (by tokens), or check its host"))
        if idle >= _IDLE:
            text = f"{role.role} is idle for {idle:.0%} of a step"
            alone = "rldbg stacks shows what it waits for between its phases"
            others = "overlap it with the others (asynchronous rollouts), or give it fewer resources"
            said.append((idle, f"{text}: {others if len(roles) > 1 else alone}"))
    for tail in tails:
        if tail.median_seconds and tail.longest_seconds >= _TAIL * tail.median_seconds and tail.cost_share >= 0.02:
            ratio = tail.longest_seconds / tail.median_seconds
            text = f"the longest {tail.phase} of {tail.role} takes {ratio:.1f} times the median"
            said.append((tail.cost_share, f"{text}: cap the response length, or start the next batch without it"))
    for row in phases:
        if row.phase == "sync" and row.share >= 0.2:
            said.append(
                (
                    row.share,
                    f"{row.role} spends {row.share:.0%} of a step in sync: send weights in fewer, larger pieces",
                )
            )
    return [text for _, text in sorted(said, reverse=True)]


def _step_of(span: PhaseSpan, bounds: dict[int, tuple[int, int]]) -> int | None:
    """Its own, as processes may be at different ones; of a process without steps, that of its time."""
    if span.step in bounds:
        return span.step
    return next((number for number, (start, end) in bounds.items() if start <= span.start_ns < end), None)


def _title(track: Track) -> str:
    """As `rldbg ps` calls it."""
    return track.worker if "/" in track.worker or track.rank is None else f"{track.worker}/{track.rank}"
