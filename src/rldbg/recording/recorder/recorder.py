"""The recorder a trainer calls. Its invariant: whatever happens in here, training neither dies nor changes."""

import math
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import index
from pathlib import Path
from typing import Any, Self

from rldbg.core import Environment, Identity
from rldbg.recording.recorder import parameters
from rldbg.recording.recorder.orders import Orders
from rldbg.recording.recorder.preparation import RecordCall, prepare
from rldbg.recording.recorder.process_end import ProcessEnd
from rldbg.recording.recorder.process_writer import ProcessWriter
from rldbg.recording.recorder.sample_ids import SampleIds
from rldbg.recording.recorder.settings import RecorderSettings
from rldbg.recording.recorder.warn_once import WarnOnce
from rldbg.recording.records import RecordKey

# An exit so long after a SIGTERM has another reason: the process has survived every usual grace period.
_SAME_END_S = 120.0
_LEAST_S = 1.0


class Recorder:
    """Records what a training process knows, while it trains.

    record() returns as soon as it has a copy: the caller may overwrite its tensors at once. Threads write the files.
    A recorder that meets an error stops itself, reports it once, and training continues.
    """

    def __init__(self, directory: Path | str, *, identity: Identity | None = None, **settings: Any) -> None:
        self._begin(RecorderSettings.make(directory, **settings), identity)

    @classmethod
    def from_settings(cls, settings: RecorderSettings, identity: Identity | None = None) -> Self:
        recorder = cls.__new__(cls)
        recorder._begin(settings, identity)
        return recorder

    def _begin(self, settings: RecorderSettings, identity: Identity | None) -> None:
        self.settings = settings
        self.identity = identity or Identity.from_environment(Environment())
        self._admitted = settings.admits(self.identity)
        self._warn_once = WarnOnce()
        self._sample_ids = SampleIds()
        self._closed = False
        self._signalled_at = -math.inf
        self._orders = Orders(settings.directory)
        self._unopened: str | None = None
        self._writer: ProcessWriter | None = None
        self._process_end: ProcessEnd | None = None
        if self._admitted:
            self._open_writer()

    @property
    def stopped(self) -> str | None:
        """Why the recorder stopped itself; None while it records."""
        return self._unopened or (self._writer.stopped if self._writer else None)

    def wants(self, kind: str, step: int) -> bool:
        """Whether a record of this kind and step would be kept; cheap, so that callers can skip their own work."""
        return self._admitted and not self._closed and self._asked_for(kind, step) and self.stopped is None

    def record(
        self,
        kind: str,
        /,
        *,
        step: int,
        micro: int | None = None,
        epoch: int = 0,
        mini_batch: int = 0,
        samples: Iterable[Any] | None = None,
        prompt_hashes: Sequence[str] = (),
        policy_version: int | None = None,
        **fields: Any,
    ) -> None:
        """Records one kind of one step.

        `samples` are (group_id, run_id) pairs, one per row; trajectories may name them in their extra fields instead.
        Trajectories are given as columns, or as `trajectories=[...]`, one mapping or object per sample. A value `Later`
        stands for the fields that it makes; its own name does not count.
        """
        try:
            if self.wants(kind, step):
                key = RecordKey(
                    kind, index(step), self.identity.rank, index(micro or 0), index(epoch), index(mini_batch)
                )
                self._record(RecordCall(key, micro is not None, samples, tuple(prompt_hashes), policy_version, fields))
        except Exception as error:  # noqa: BLE001 - the hook inside the user's training loop, which must never kill it
            self._warn_once(f"record {kind}", f"cannot record {kind} of step {step}: {error!r}")

    def record_parameters(self, step: int, model: Any, *, epoch: int = 0, mini_batch: int = 0, first: int = 0) -> None:
        """Records the parameters that match the patterns, after the optimizer step.

        They are numbered from `first`: parameters of a second model in the same process need numbers of their own.
        """
        self._record_model("param", model, step, epoch, mini_batch, first=first)

    def record_gradients(self, step: int, model: Any, *, epoch: int = 0, mini_batch: int = 0, first: int = 0) -> None:
        """Records the gradients of the parameters that match the patterns, before the optimizer step."""
        self._record_model("gradient", model, step, epoch, mini_batch, first=first)

    def record_optimizer(self, step: int, model: Any, optimizer: Any, *, epoch: int = 0, mini_batch: int = 0) -> None:
        """Records the optimizer's state after its step, twice as much as the parameters: only if its kind is named."""
        if "optimizer_state" in (self.settings.kinds or ()):
            self._record_model("optimizer_state", model, step, epoch, mini_batch, optimizer)

    def end_step(self, step: int) -> None:
        """Says that nothing more comes for this step: its files are written now."""
        writer = self._own_writer()
        if writer is not None and (whole := self._whole(step)) is not None:
            writer.end_step(whole)
            self._obey(whole)

    def pin(self, step: int) -> None:
        """Keeps this step for good, whatever `keep_last` says."""
        writer = self._own_writer()
        if writer is not None and (whole := self._whole(step)) is not None:
            writer.pin(whole)

    def flush(self, timeout_s: float | None = None) -> bool:
        """Waits until all that was recorded is on disk; False when that took longer than the timeout."""
        writer = self._own_writer()
        return True if writer is None else writer.flush(timeout_s)

    def close(self, timeout_s: float | None = None) -> bool:
        """Writes what is left and ends the recording; False when that took longer than the timeout."""
        writer = self._own_writer()
        self._closed = True
        if writer is None:
            return True
        finished = writer.close(timeout_s)
        if self._process_end is not None:
            self._process_end.cancel()
        return finished

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _asked_for(self, kind: str, step: int) -> bool:
        kinds = self.settings.kinds
        return (kinds is None or kind in kinds) and step % self.settings.every_n_steps == 0

    def _open_writer(self) -> ProcessWriter | None:
        self._writer = None
        identity = replace(self.identity, pid=os.getpid())
        try:
            self._writer = ProcessWriter(self.settings, identity, self._warn_once)
            self._process_end = ProcessEnd(finish=self._finish, on_signal=self._flush_for_signal)
        except Exception as error:  # noqa: BLE001 - the hook inside the user's training loop, which must never kill it
            self._unopened = f"{self.settings.directory} cannot be used for recording: {error}"
            self._warn_once("stop", f"recording is off, training continues: {self._unopened}")
        return self._writer

    def _own_writer(self) -> ProcessWriter | None:
        """This process's writer, if it has one: a child made by fork does not, until it records."""
        writer = self._writer
        return writer if writer is not None and writer.process == os.getpid() and not self._closed else None

    def _writer_to_record(self) -> ProcessWriter | None:
        return self._own_writer() or (None if self._closed else self._open_writer())

    def _record(self, call: RecordCall) -> None:
        writer = self._writer_to_record()
        if writer is None:
            return
        try:
            prepared = prepare(call, self.settings, self._sample_ids)
        except Exception as error:  # noqa: BLE001 - the hook inside the user's training loop, which must never kill it
            writer.refuse(call.key, f"{type(error).__name__}: {error}")
            return
        if prepared is not None:
            writer.submit(prepared.header, prepared.fields)
            if prepared.header.samples:
                # What a debugger that stops this process can say it was working on.
                setattr(sys, "_rldbg_last_record", prepared.header)  # noqa: B010 - mypy knows no such attribute

    def _whole(self, step: Any) -> int | None:
        try:
            return index(step)
        except TypeError:
            self._warn_once(f"step {step!r}", f"invalid step: {step!r} (expected an integer); not recorded")
            return None

    def _obey(self, step: int) -> None:
        try:
            self._orders.obey(step)
        except Exception as error:  # noqa: BLE001 - the hook inside the user's training loop, which must never kill it
            self._warn_once("orders", f"cannot read the orders of `rldbg watch`: {error!r}")

    def _record_model(
        self, kind: str, model: Any, step: int, epoch: int, mini_batch: int, optimizer: Any = None, first: int = 0
    ) -> None:
        try:
            # Gathering is a collective: what one rank cannot record, it still has to take part in.
            wanted = self.wants(kind, step)
            collective = self.settings.gather_shards and self.settings.enabled and self._asked_for(kind, step)
            if not (wanted or collective) or not self.settings.parameter_patterns:
                return
            key = RecordKey(kind, index(step), self.identity.rank, index(first), index(epoch), index(mini_batch))
            prepared = list(parameters.prepare(key, model, self.settings, self._warn_once, optimizer))
            writer = self._writer_to_record() if wanted else None
            if writer is not None:
                for header, fields in prepared:
                    writer.submit(header, fields)
        except Exception as error:  # noqa: BLE001 - the hook inside the user's training loop, which must never kill it
            self._warn_once(f"record {kind}", f"cannot record {kind} of step {step}: {error!r}")

    def _finish(self) -> None:
        self.close(self._left_to_exit_s())

    def _flush_for_signal(self) -> None:
        self._signalled_at = time.monotonic()
        self.flush(self.settings.exit_flush_s)

    def _left_to_exit_s(self) -> float:
        """An exit soon after SIGTERM shares its time budget: the sender of the signal waits once, then kills."""
        whole = self.settings.exit_flush_s
        since_s = time.monotonic() - self._signalled_at
        return whole if since_s > _SAME_END_S else max(whole - since_s, min(whole, _LEAST_S))
