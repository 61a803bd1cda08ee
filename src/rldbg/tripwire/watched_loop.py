"""`rldbg.watch`: watch a training loop of your own."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rldbg.agent import mark_as_ours, say
from rldbg.core import Environment, Identity
from rldbg.recording import Recorder
from rldbg.tripwire.events import Event
from rldbg.tripwire.settings import WatchSettings
from rldbg.tripwire.watcher_process import WatcherProcess

_REPORT_S = 0.5


def watch(
    directory: Path | str,
    *,
    stop: bool = False,
    when: str | Sequence[str] = (),
    notify: str = "",
    rules: Path | str = "",
    keep: int = 8,
    around: int = 2,
    keep_events: int = 8,
    checks: bool = True,
) -> WatchedLoop:
    """Watch what is recorded in `directory`: by `log` of the result, `rldbg.record_loop`, or any `rldbg.Recorder`.

    A separate process checks each step, and rank 0 reports events on stderr. With `stop`, every rank stops
    at the end of a step after an event: under `rldbg run` as at a breakpoint, elsewhere the program ends. Call it on
    every rank; rank 0 starts the process.
    """
    expressions = (when,) if isinstance(when, str) else tuple(when)
    settings = WatchSettings(stop, expressions, str(rules), notify, keep, around, keep_events, checks)
    return WatchedLoop(Path(directory), settings)


class WatchedLoop:
    """What `watch` returns; also a context manager that closes itself."""

    def __init__(self, directory: Path, settings: WatchSettings) -> None:
        identity = Identity.from_environment(Environment())
        self.recorder = Recorder(directory, identity=identity, keep_last=settings.keep)
        self._process = _started(directory, settings) if identity.rank == 0 else None
        self._events: list[Event] = []
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._reporting = mark_as_ours(threading.Thread(target=self._report, name="rldbg-watch", daemon=True))
        if self._process is not None:
            self._reporting.start()

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Record what a step has logged, and end it. This is where a rank stops."""
        self.recorder.record("training_metrics", step=step, metrics=dict(metrics))
        self.recorder.end_step(step)
        self._take()

    def new_events(self) -> list[Event]:
        """Events since the last call; always none on other ranks than 0."""
        self._take()
        events, self._events = self._events, []
        return events

    def _report(self) -> None:
        """Says events also while this process logs nothing: a driver that waits for its actors, a long step."""
        while not self._is_over.wait(_REPORT_S):
            self._take()

    def _take(self) -> None:
        with self._lock:
            if self._process is None:
                return
            events = self._process.new_events()
            self._events += events
            for text in [*(event.message for event in events), *self._process.new_notes()]:
                say(f"watch: {text}")

    def close(self) -> list[Event]:
        """Write what is left, judge it, and end the watcher; returns the events since `new_events`."""
        self.recorder.close()
        self._is_over.set()
        if self._process is not None:
            self._reporting.join()
            self._process.close()
        events = self.new_events()
        self._process = None
        return events

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def _started(directory: Path, settings: WatchSettings) -> WatcherProcess | None:
    """None, which is said, where the folder cannot be written or no process be started: the training goes on."""
    try:
        return WatcherProcess(directory, settings, log=directory.parent / f"{directory.name}-watch.log")
    except OSError as error:
        say(f"watch: no step is checked, training continues: {error}; give a folder that can be written")
        return None
