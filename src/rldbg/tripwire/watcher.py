"""Checks the steps of a recording as they are completed: reports events, pins the steps around them, and requests
stops. It runs in its own process and reads only the recording's files.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rldbg.analysis import check
from rldbg.core import IncompleteDataError, RldbgError, Severity, did_you_mean
from rldbg.recording import Recording, give_orders, note_judged, remove_left, steps_removed_unchecked, stop_step
from rldbg.recording import open as open_recording
from rldbg.tripwire.events import Event, EventLog, steps_from_to
from rldbg.tripwire.judge import Alarm, Judge
from rldbg.tripwire.measures import logged_by_step, measure
from rldbg.tripwire.notification import Notifier
from rldbg.tripwire.rules import WatchRule
from rldbg.tripwire.settings import WatchSettings

# Checks that decide from one step alone and name a fault, not a circumstance.
_CHECKED = (
    "log-probs-finite",
    "log-probs-not-positive",
    "losses-finite",
    "rewards-finite",
    "masks-non-empty",
    "rollout-matches-trainer",
    "first-ratio-is-one",
    "group-shares-a-prompt",
)
# A check that already fails in the first steps is not an event: it is reported once and never stops a run.
_FIRST_STEPS = 4
# While a training runs, checks use at most this share of one core.
_SHARE = 0.05
# An expression over a name that none of the first steps has is probably misspelt.
_STEPS_WITHOUT_NAME = 8

Places = frozenset[tuple[str, int, int, int]]


class Watcher:
    """Watches one recording. `look` is called whenever time has passed, and once when the run has ended."""

    def __init__(
        self,
        recording: Path,
        settings: WatchSettings | None = None,
        *,
        say: Callable[[str], None] = lambda _text: None,
        beside_training: bool = False,
        earlier: Sequence[Event] = (),
        notes: Sequence[str] = (),
    ) -> None:
        """`earlier` events and `notes` were reported while the training ran; the steps that showed them may be gone
        since."""
        self.recording = recording.resolve()
        self.settings = settings or WatchSettings()
        self.events = list(earlier)
        self.notes = list(notes)
        self.steps = 0
        self._known = {(event.rule, event.step) for event in earlier}
        self._say = say
        self._beside_training = beside_training
        self._judge = Judge(self.settings.read_rules(), self.settings.expressions())
        self._failed_checks: set[str] = set()
        self._next_checks = 0.0
        self._judged = -1
        self._checked: set[int] = set()
        self._checking_s = 0.0
        self._unchecked = 0
        self._before: Places = frozenset()
        self._pinned: set[int] = set()
        self._fired: Counter[tuple[str, str]] = Counter()
        self._stop: str | None = None
        self._reason = ""
        self._capsules: set[int] = set()
        self._log = EventLog(self.recording)
        self._undelivered: list[Event] = []
        self._has_noted_names = False
        self._notifier = Notifier(self.settings.notify, self._note)

    def look(self, *, ended: bool = False) -> list[Event]:
        """Judges what is complete by now. A step is complete when it has what the step before it had, when a later
        one has begun, or when the run has ended."""
        self._deliver()
        self._notifier.look()
        found = self._look(ended=ended)
        self._note_unchecked(ended=ended)
        if ended:
            self._note_names()
            self._notifier.finish()
        return found

    def _look(self, *, ended: bool) -> list[Event]:
        try:
            recording = open_recording(self.recording)
        except RldbgError:  # nothing is recorded yet
            return []
        places = _places_by_step(recording)
        self._capsules = set(recording.steps("capsule"))
        logged = logged_by_step(self.recording.parent / "metrics.jsonl")
        found: list[Event] = []
        for step in sorted(step for step in places if step > self._judged):
            is_last = step == max(places)
            if is_last and not ended and not (self._before and places[step] >= self._before):
                break
            self._judged, self._before = step, places[step]
            found += self._judge_step(recording, step, logged.get(step, {}))
            self._note_judged(self.settings.around)
        if ended and self.steps:
            self._note_judged(around=0)
            if self._beside_training:
                with contextlib.suppress(OSError, ValueError):  # full disk: what is left stays
                    remove_left(self.recording)
        return found

    def _judge_step(self, recording: Recording, step: int, logged: Mapping[str, object]) -> list[Event]:
        started = time.perf_counter()
        try:
            measured = measure(recording, step, logged)
        except (IncompleteDataError, OSError):  # retention removed it while it was read
            return []
        self.steps += 1
        self._checked.add(step)
        found = [self._event(step, alarm, stops=self.settings.stop) for alarm in self._judge.step(step, measured)]
        for text, (first, why) in self._judge.not_evaluated.items():
            self._note(f"{text} cannot be evaluated at step {first} ({why}): it is not true there; said once")
        found += self._by_checks(recording, step)
        found = [event for event in found if (event.rule, event.step) not in self._known]
        found = [self._raise_alarm(event) for event in found]
        self._checking_s += time.perf_counter() - started
        if self.steps == _STEPS_WITHOUT_NAME:
            self._note_names()
        return found

    def _by_checks(self, recording: Recording, step: int) -> list[Event]:
        if not self.settings.checks or (self._beside_training and time.monotonic() < self._next_checks):
            return []
        started = time.process_time()
        try:
            report = check(recording, steps=[step], only=_CHECKED)
        except (IncompleteDataError, OSError):
            return []
        self._next_checks = time.monotonic() + (time.process_time() - started) / _SHARE
        found = []
        for finding in report.findings:
            if finding.severity is Severity.ERROR and finding.id not in self._failed_checks:
                self._failed_checks.add(finding.id)
                look = f"rldbg check {{recording}} --step {{step}} --only {finding.id}"
                alarm = Alarm(
                    WatchRule(finding.id, "", "either", finding.cause, look), finding.where, "; ".join(finding.evidence)
                )
                found.append(self._event(step, alarm, stops=self.settings.stop and self.steps > _FIRST_STEPS))
        return found

    def _event(self, step: int, alarm: Alarm, *, stops: bool) -> Event:
        around, place = self.settings.around, shlex.quote(_short(self.recording))
        source, most = (alarm.rule.id, alarm.rule.measure), self.settings.keep_events
        self._fired[source] += 1
        pins = self._fired[source] <= most
        return Event(
            alarm.rule.id,
            step,
            alarm.where,
            alarm.what,
            alarm.rule.cause,
            alarm.rule.look_at(place, step, is_logged=alarm.is_logged),
            pinned=tuple(range(max(step - around, 0), step + around + 1)) if pins else (),
            stops=stops,
            rerun=f"rldbg rerun {place} --step {step}" if step in self._capsules else "",
            not_kept="" if pins else f"its steps are not kept (--keep-events {most})",
        )

    def _raise_alarm(self, event: Event) -> Event:
        event = self._pin(event)
        self.events.append(event)
        self._undelivered.append(event)
        if event.stops and not self._is_stop_ahead():
            self._stop, self._reason = str(event.step), event.reason
        self._deliver()
        self._say(event.message)
        self._notifier.call(event)
        return event

    def _pin(self, event: Event) -> Event:
        """Pins the steps around an event, and only then looks which of them are still there."""
        if not event.pinned:
            return event
        self._pinned |= set(event.pinned)
        self._note_judged(self.settings.around)
        on_disk = open_recording(self.recording).steps()
        lost = steps_removed_unchecked(self.recording)
        kept = tuple(step for step in event.pinned if step not in lost and (step in on_disk or step > max(on_disk)))
        gone = [step for step in event.pinned if step in lost]
        why = f"{steps_from_to(gone)} gone: removed before the checks came to step {event.step}" if gone else ""
        return replace(event, pinned=kept, not_kept=why)

    def _note_judged(self, around: int) -> None:
        with contextlib.suppress(OSError):  # full disk: recorders keep a few more steps
            note_judged(self.recording, self._judged, around=around, pinned=self._pinned)

    def _deliver(self) -> None:
        """Tells recorders and the process that started this one; again at the next look where the disk is full."""
        with contextlib.suppress(OSError):
            while self._undelivered:
                give_orders(self.recording, stop=self._stop, reason=self._reason)
                self._log.append(self._undelivered[0])
                self._undelivered.pop(0)

    def _note(self, text: str) -> None:
        if text in self.notes:
            return
        self.notes.append(text)
        self._say(text)
        with contextlib.suppress(OSError):  # full disk
            self._log.note(text)

    def _note_names(self) -> None:
        if self._has_noted_names or not self.steps:
            return
        self._has_noted_names = True
        for text, name, known in self._judge.names_without_value():
            near = did_you_mean(name, known, f"there are {', '.join(known)}" if known else "they have no number")
            self._note(f"{text} has not been checked: none of {self.steps} steps has {name}; {near}")

    def _note_unchecked(self, *, ended: bool) -> None:
        """Once when the first steps are lost, and how many they were at the end."""
        if not self._beside_training or (self._unchecked and not ended):
            return
        lost = steps_removed_unchecked(self.recording) - self._checked
        if not lost or (ended and len(lost) == self._unchecked):
            return
        self._unchecked = len(lost)
        were = f"{len(lost)} steps were" if len(lost) > 1 else f"step {min(lost)} was"
        per_step = (
            f" ({1000 * self._checking_s / self.steps:.2g} ms per step, once they have started)" if self.steps else ""
        )
        self._note(
            f"{were} removed unchecked: steps came faster than the checks{per_step}; no event of "
            f"{'these steps' if ended else 'such steps'} is reported; keep more steps (keep=), or record less often"
        )

    def _is_stop_ahead(self) -> bool:
        """Whether ranks have been told to stop and had not done so when the judged step ended: one stop is enough."""
        if self._stop is None:
            return False
        agreed = stop_step(self.recording, self._stop)
        return agreed is None or self._judged <= agreed


def _places_by_step(recording: Recording) -> dict[int, Places]:
    """What there is per step: kinds, ranks and updates."""
    places: dict[int, set[tuple[str, int, int, int]]] = {}
    for entry in recording.entries():
        places.setdefault(entry.step, set()).add((entry.kind, entry.rank, entry.epoch, entry.mini_batch))
    return {step: frozenset(found) for step, found in places.items()}


def _short(path: Path) -> str:
    """A path relative to the working directory, if it is below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
