"""The recorder a trainer calls. Its invariant: whatever happens in here, training neither dies nor changes."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rldbg.core import Environment, Identity
from rldbg.recording.kinds import Scope
from rldbg.recording.recorder import naming, parameters, row_filter, schema, trajectories
from rldbg.recording.recorder.complaints import Complaints
from rldbg.recording.recorder.process_end import ProcessEnd
from rldbg.recording.recorder.session import Session
from rldbg.recording.recorder.settings import RecorderSettings
from rldbg.recording.recorder.ticket import Ticket
from rldbg.recording.records import RecordKey


class Recorder:
    """Records what a training process knows, while it trains.

    record() returns as soon as it has a copy: the caller may overwrite its tensors at once. Threads write the files.
    A recorder that meets an error stops itself, says so once, and training goes on.
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
        self._complaints = Complaints()
        self._closed = False
        self._unopened: str | None = None
        self._session: Session | None = None
        self._process_end: ProcessEnd | None = None
        if self._admitted:
            self._open_session()

    @property
    def stopped(self) -> str | None:
        """Why the recorder stopped itself; None while it records."""
        return self._unopened or (self._session.stopped if self._session else None)

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

        `samples` are (group_id, run_id) pairs, one a row; trajectories may name them in their extra fields instead.
        Trajectories are given as columns, or as `trajectories=[...]`, one mapping or object a sample.
        """
        if not self.wants(kind, step):
            return
        try:
            key = RecordKey(kind, step, self.identity.rank, micro or 0, epoch, mini_batch)
            self._record(key, micro is not None, samples, tuple(prompt_hashes), policy_version, fields)
        except Exception as error:  # noqa: BLE001 - the hook inside the user's training loop, which must never kill it
            self._complaints.once(f"record {kind}", f"cannot record {kind} of step {step}: {error!r}")

    def record_parameters(self, step: int, model: Any, *, epoch: int = 0, mini_batch: int = 0) -> None:
        """Records the parameters that match the patterns, after the optimizer step."""
        self._record_model("param", "param", step, model, epoch, mini_batch)

    def record_gradients(self, step: int, model: Any, *, epoch: int = 0, mini_batch: int = 0) -> None:
        """Records the gradients of the parameters that match the patterns, before the optimizer step."""
        self._record_model("gradient", "gradient", step, model, epoch, mini_batch)

    def end_step(self, step: int) -> None:
        """Says that nothing more comes for this step: its files are written now."""
        session = self._own_session()
        if session is not None:
            session.end_step(step)

    def pin(self, step: int) -> None:
        """Keeps this step for good, whatever `keep_last` says."""
        session = self._own_session()
        if session is not None:
            session.pin(step)

    def flush(self, timeout_s: float | None = None) -> bool:
        """Waits until all that was recorded is on disk; False when that took longer than the timeout."""
        session = self._own_session()
        return True if session is None else session.flush(timeout_s)

    def close(self, timeout_s: float | None = None) -> bool:
        """Writes what is left and ends the recording; False when that took longer than the timeout."""
        session = self._own_session()
        self._closed = True
        if session is None:
            return True
        finished = session.close(timeout_s)
        if self._process_end is not None:
            self._process_end.cancel()
        return finished

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _asked_for(self, kind: str, step: int) -> bool:
        kinds = self.settings.kinds
        return (kinds is None or kind in kinds) and step % self.settings.every_n_steps == 0

    def _open_session(self) -> Session | None:
        self._session = None
        identity = replace(self.identity, pid=os.getpid())
        try:
            self._session = Session(self.settings, identity, self._complaints)
            self._process_end = ProcessEnd(finish=self._finish, on_signal=self._flush_for_signal)
        except Exception as error:  # noqa: BLE001 - the hook inside the user's training loop, which must never kill it
            self._unopened = f"{self.settings.directory} cannot be recorded to: {error}"
            self._complaints.once("stop", f"recording is off, training goes on: {self._unopened}")
        return self._session

    def _own_session(self) -> Session | None:
        """This process's session, if it has one: a child made by fork does not, until it records."""
        session = self._session
        return session if session is not None and session.process == os.getpid() and not self._closed else None

    def _session_to_record(self) -> Session | None:
        return self._own_session() or (None if self._closed else self._open_session())

    def _record(
        self,
        key: RecordKey,
        has_micro: bool,
        samples: Iterable[Any] | None,
        prompt_hashes: tuple[str, ...],
        policy_version: int | None,
        fields: dict[str, Any],
    ) -> None:
        session = self._session_to_record()
        if session is None:
            return
        if not naming.is_kind_name(key.kind):
            self._complaints.once(
                f"kind {key.kind}", f"{key.kind!r} cannot be the name of a kind: use letters, digits, _"
            )
            return
        if key.kind in trajectories.TRAJECTORY_KINDS and "trajectories" in fields:
            fields |= trajectories.columns(fields.pop("trajectories"))
        ids = trajectories.sample_ids(fields) if samples is None else trajectories.as_sample_ids(samples)
        rows = row_filter.kept_rows(ids, self.settings.samples)
        if rows is not None:
            if not rows:
                return
            fields = row_filter.select(fields, rows, len(ids))
            prompt_hashes = tuple(prompt_hashes[row] for row in rows) if prompt_hashes else ()
            ids = tuple(ids[row] for row in rows)
        for problem in schema.problems(key.kind, fields, len(ids)):
            self._complaints.once(problem, f"{problem} (step {key.step}); recorded as it is")
        scope = naming.scope_of(key.kind, has_micro)
        ticket = Ticket(
            key=key,
            scope=scope,
            rows=schema.rows_of(key.kind, fields, len(ids)),
            alone=self.settings.format != "safetensors" or scope is not Scope.MICRO,
            samples=ids,
            prompt_hashes=prompt_hashes,
            policy_version=policy_version,
        )
        session.hand_over(ticket, fields)

    def _record_model(self, kind: str, field: str, step: int, model: Any, epoch: int, mini_batch: int) -> None:
        # Gathering is a collective: what one rank cannot record, it still has to take part in.
        wanted = self.wants(kind, step)
        collective = self.settings.gather_shards and self.settings.enabled and self._asked_for(kind, step)
        if not (wanted or collective) or not self.settings.parameter_patterns:
            return
        try:
            items = self._parameters(model, gradient=kind == "gradient")
            if wanted:
                self._hand_over_model(RecordKey(kind, step, self.identity.rank, 0, epoch, mini_batch), field, items)
        except Exception as error:  # noqa: BLE001 - the hook inside the user's training loop, which must never kill it
            self._complaints.once(f"record {kind}", f"cannot record {kind} of step {step}: {error!r}")

    def _parameters(self, model: Any, *, gradient: bool) -> list[parameters.Selected]:
        if parameters.flattens_parameters(model):
            self._complaints.once(
                "use_orig_params", "FSDP has flattened the parameters: set use_orig_params=True to record them by name"
            )
            return []
        items = parameters.select(model, self.settings.parameter_patterns, gradient=gradient)
        if not items:
            known = ", ".join(parameters.names(model)[:5])
            what = "parameter with a gradient" if gradient else "parameter"
            patterns = ", ".join(self.settings.parameter_patterns)
            self._complaints.once(f"no {what}", f"no {what} matches {patterns}; the model has {known} ...")
        if not self.settings.gather_shards:
            return items
        whole = []
        for item in items:
            tensor, is_mine = (
                parameters.gathered(item.tensor) if parameters.is_sharded(item.tensor) else (item.tensor, True)
            )
            if is_mine:
                whole.append(parameters.Selected(item.name, tensor))
        return whole

    def _hand_over_model(self, key: RecordKey, field: str, items: list[parameters.Selected]) -> None:
        session = self._session_to_record()
        if session is None:
            return
        complete = parameters.completion(field, self.settings.parameter_mode)
        for number, item in enumerate(items):
            ticket = Ticket(
                key=key._replace(micro=number),
                scope=Scope.RANK,
                rows=0,
                alone=self.settings.format != "safetensors",
                last=number == len(items) - 1,
                complete=complete,
            )
            session.hand_over(ticket, parameters.fields_of(field, item))

    def _finish(self) -> None:
        self.close(self.settings.exit_flush_s)

    def _flush_for_signal(self) -> None:
        self.flush(self.settings.exit_flush_s)
