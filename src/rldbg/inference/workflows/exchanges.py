"""Every request of every episode with its answer, kept in the run folder; and answers taken from there again.

`RUN/generated/exchanges.jsonl` has one line per request, written when it is answered: {"sample", "number", "request",
"answer"}, or "error" in place of "answer" if no server gave one. A request of a replay gets the answer, or the error,
of the same number of the same sample, if it asks the same; nothing is made up.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rldbg.core import IncompleteDataError, RldbgError, UnreachableError
from rldbg.inference.workflows.completions import Completion
from rldbg.inference.workflows.faults import Fault, fault_of
from rldbg.inference.workflows.servers import ServerRefusal

_FILE = Path("generated") / "exchanges.jsonl"
# What differs between two runs that ask the same.
_NOT_COMPARED = frozenset({"rid", "model", "seed", "sampling_seed", "stream", "stream_options", "user"})


class ReplayDiverged(RldbgError):
    """A workflow asked something else than in the run that is replayed."""

    kind = "replay"
    # Clients retry 409 and 5xx; a retry of this request would fail again.
    status = 400


class ExchangeLog:
    """Exchanges of a rollout as they happen, from any thread; with a run folder they survive a rollout that is
    killed."""

    def __init__(self) -> None:
        self._file: Path | None = None
        self._lock = threading.Lock()

    def open(self, run: Path) -> None:
        """Begin a new log in a run folder; before, nothing is kept."""
        self._file = run / _FILE
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_bytes(b"")

    def add(self, sample: str, number: int, request: Any, **outcome: Any) -> None:
        """`outcome` is the answer or the error."""
        line = json.dumps({"sample": sample, "number": number, "request": request, **outcome}, default=str)
        if self._file is not None:
            with self._lock, self._file.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")

    def entries(self) -> Iterator[dict[str, Any]]:
        return iter(()) if self._file is None else _entries(self._file)


def _entries(file: Path) -> Iterator[dict[str, Any]]:
    """A line that a killed rollout has not finished is left out."""
    with file.open(encoding="utf-8") as lines:
        yield from (json.loads(line) for line in lines if line.endswith("\n"))


class RecordedExchanges:
    """The exchanges of a run, by sample and number."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._known: dict[tuple[str, int], Mapping[str, Any]] = {}
        try:
            self._known = {(entry["sample"], entry["number"]): entry for entry in _entries(run / _FILE)}
        except OSError as error:
            raise IncompleteDataError(
                f"{run} has no recorded exchanges: {error.strerror}", "record them with `rldbg rollout --run RUN ...`"
            ) from error

    def answer(self, sample: str, number: int, request: Any) -> Any:
        entry = self._known.get((sample, number))
        if entry is None:
            have = sum(1 for name, _ in self._known if name == sample)
            raise ReplayDiverged(
                f"request {number} of sample {sample} is not in {self._run}: it has {have} of that sample",
                "the workflow makes more requests than it did; compare its code, or record again",
            )
        for place, then, now in _differences(entry["request"], json.loads(json.dumps(request, default=str))):
            raise ReplayDiverged(
                f"request {number} of sample {sample} differs from the recorded one at {place}: "
                f"{then!r:.150} was asked, now {now!r:.150}",
                "all earlier requests are equal; look at what the workflow did after the previous one",
            )
        if (failed := entry.get("error")) is not None:
            kind = ServerRefusal if failed["status"] else UnreachableError
            raise kind(failed["message"], failed["hint"], *filter(None, [failed["status"]]))
        return entry["answer"]


def _differences(then: Any, now: Any, place: str = "request") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(then, dict) and isinstance(now, dict):
        for name in sorted({*then, *now} - _NOT_COMPARED):
            yield from _differences(then.get(name), now.get(name), f"{place}.{name}")
    elif isinstance(then, list) and isinstance(now, list):
        for number, (one, other) in enumerate(zip(then, now, strict=False)):
            yield from _differences(one, other, f"{place}[{number}]")
        if len(then) != len(now):
            yield f"{place}, which had {len(then)} items and has {len(now)}", None, None
    elif then != now:
        yield place, then, now


@dataclass(frozen=True, slots=True)
class Exchanges:
    """How requests of episodes are answered: by servers or from a recording; with faults, if these are asked for."""

    log: ExchangeLog
    recorded: RecordedExchanges | None = None
    faults_seed: int | None = None

    def fault(self, sample: str) -> Fault | None:
        return None if self.faults_seed is None else fault_of(sample, self.faults_seed)

    async def answer(
        self, sample: str, number: int, request: Any, ask: Callable[[], Awaitable[dict[str, Any]]]
    ) -> dict[str, Any]:
        try:
            answer = await ask() if self.recorded is None else self.recorded.answer(sample, number, request)
        except (UnreachableError, ServerRefusal) as error:
            failed = {"message": error.message, "hint": error.hint, "status": getattr(error, "status", 0)}
            self.log.add(sample, number, request, error=failed)
            raise
        self.log.add(sample, number, request, answer=answer)
        return answer


def completion_data(answer: Completion) -> dict[str, Any]:
    return asdict(answer)


def completion_of(data: Mapping[str, Any]) -> Completion:
    plain: dict[str, Any] = {name: tuple(item) if isinstance(item, list) else item for name, item in data.items()}
    return Completion(**plain)
