"""What the service does, whichever protocol asks: sessions, models in training, snapshots, sampling.

All of this runs on the event loop and is quick; the work itself goes to the worker as a job of an operation.
"""

import itertools
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rldbg.training_service.bases import BaseModel, BaseModels
from rldbg.training_service.datums import Datum
from rldbg.training_service.errors import ConflictError, NotFoundError, ServiceRequestError
from rldbg.training_service.lora import LoraSettings
from rldbg.training_service.losses import LossSettings, check_inputs
from rldbg.training_service.models import AdamSettings, TrainedModel
from rldbg.training_service.operations import Operation, Operations
from rldbg.training_service.request_order import GAP_TIMEOUT_S, RequestOrder, digest_of
from rldbg.training_service.samplers import Samplers
from rldbg.training_service.sampling_sessions import SamplingSessions
from rldbg.training_service.snapshots import ModelSnapshot, Purpose, Snapshots
from rldbg.training_service.step_recorder import StepRecorder
from rldbg.training_service.worker import Worker


@dataclass(slots=True)
class ModelEntry:
    """A model id: its description, the order of its requests, and the model once the worker has built it."""

    model_id: str
    base_model: str
    base: BaseModel
    digest: bytes
    creation: Operation
    order: RequestOrder
    lora: LoraSettings | None = None
    # What the client says about the model, kept for its lists.
    metadata: Any = None
    trained: TrainedModel | None = None

    @property
    def model(self) -> TrainedModel:
        if self.trained is None:
            raise ServiceRequestError(f"model {self.model_id} could not be created")
        return self.trained


class TrainingService:
    """One service process: everything it knows. `recorder_for` makes a model's recorder, or None."""

    def __init__(
        self,
        bases: BaseModels,
        folder: Path,
        *,
        recorder_for: Callable[[str, int], StepRecorder | None] = lambda _model_id, _number: None,
        deterministic: bool = False,
        gap_timeout_s: float = GAP_TIMEOUT_S,
    ) -> None:
        self.bases = bases
        self.snapshots = Snapshots(folder / "snapshots")
        self.operations = Operations()
        self._worker = Worker()
        self.sampling = SamplingSessions(
            Samplers(bases, self.snapshots), self.snapshots, self.operations, self._worker, deterministic=deterministic
        )
        self._recorder_for = recorder_for
        self._gap_timeout_s = gap_timeout_s
        self._sessions: dict[str, float] = {}
        self._models: dict[str, ModelEntry] = {}
        self._created = itertools.count()

    def close(self) -> None:
        """Finishes the work that was accepted and closes the recordings."""
        self._worker.close()
        for entry in self._models.values():
            if entry.trained is not None:
                entry.trained.close()

    # Sessions

    def create_session(self) -> str:
        session_id = uuid.uuid4().hex
        self._sessions[session_id] = time.time()
        return session_id

    def touch_session(self, session_id: Any) -> None:
        if not isinstance(session_id, str) or session_id not in self._sessions:
            raise NotFoundError(f"no session {session_id!r}")
        self._sessions[session_id] = time.time()

    def sessions(self) -> list[str]:
        """The newest first."""
        return list(reversed(self._sessions))

    def last_seen(self, entry: ModelEntry) -> float:
        """When the session of a model was last heard of."""
        return self._sessions.get(entry.model_id.partition(":")[0], 0.0)

    # Models

    def create_model(
        self,
        session_id: Any,
        number: Any,
        base_model: Any,
        *,
        seed: int = 0,
        snapshot: ModelSnapshot | None = None,
        with_optimizer: bool = False,
        lora: LoraSettings | None = None,
        metadata: Any = None,
    ) -> ModelEntry:
        """A model id for (session, number); the same request again gives the same model."""
        self.touch_session(session_id)
        if not isinstance(number, int) or isinstance(number, bool):
            raise ServiceRequestError("model_seq_id is not an integer")
        if not isinstance(base_model, str) or not base_model:
            raise ServiceRequestError("base_model is not a name")
        model_id = f"{session_id}:train:{number}"
        if snapshot is not None and snapshot.lora is not None:
            lora = LoraSettings(**snapshot.lora)
        digest = digest_of(base_model, seed, snapshot.id if snapshot else None, with_optimizer, lora and asdict(lora))
        known = self._models.get(model_id)
        if known is not None:
            if known.digest != digest:
                raise ConflictError(f"model_seq_id {number} of this session is another model")
            return known
        entry = ModelEntry(
            model_id=model_id,
            base_model=base_model,
            base=self.bases.describe(base_model),
            digest=digest,
            creation=self.operations.add(Operation("create_model")),
            order=RequestOrder(gap_timeout_s=self._gap_timeout_s),
            lora=lora,
            metadata=metadata,
        )
        recorder = self._recorder_for(model_id, next(self._created))
        self._models[model_id] = entry

        def build() -> ModelEntry:
            model = TrainedModel(model_id, base_model, self.bases.build(base_model, seed), recorder, lora)
            if snapshot is not None:
                model.load(*self.snapshots.load(snapshot, optimizer=with_optimizer))
            entry.trained = model
            return entry

        self._worker.submit(entry.creation, build)
        return entry

    def model(self, model_id: Any) -> ModelEntry:
        entry = self._models.get(model_id) if isinstance(model_id, str) else None
        if entry is None:
            raise NotFoundError(f"no model {model_id!r}")
        return entry

    @property
    def models(self) -> list[ModelEntry]:
        return list(self._models.values())

    def remove_model(self, model_id: Any) -> Operation:
        """Ends a model after the work it was given; its snapshots stay."""
        entry = self.model(model_id)
        del self._models[entry.model_id]

        def end() -> None:
            if entry.trained is not None:
                entry.trained.close()
                entry.trained = None

        return self._run("unload_model", end)

    # Training

    def run_pass(
        self,
        entry: ModelEntry,
        number: int,
        digest: bytes,
        loss: LossSettings,
        datums: tuple[Datum, ...],
        *,
        backward: bool,
    ) -> Operation:
        if not datums:
            raise ServiceRequestError("the request has no datums")
        for index, datum in enumerate(datums):
            check_inputs(f"datum {index}", datum, loss)
        return self._in_order(
            entry,
            number,
            digest,
            "forward_backward" if backward else "forward",
            lambda: entry.model.run_pass(datums, loss, backward=backward),
        )

    def optimizer_step(self, entry: ModelEntry, number: int, digest: bytes, adam: AdamSettings) -> Operation:
        return self._in_order(entry, number, digest, "optim_step", lambda: entry.model.optimizer_step(adam))

    @contextmanager
    def using_number(self, entry: ModelEntry, number: int, digest: bytes) -> Iterator[None]:
        """A malformed request uses its sequence number all the same: its client continues with the next."""
        try:
            yield
        except ServiceRequestError as error:
            if number >= entry.order.next:
                operation = self.operations.add(Operation("refused"))
                operation.fail(error)
                entry.order.submit(number, digest, operation, None)
            raise

    # Snapshots

    def save(
        self,
        entry: ModelEntry,
        number: int | None,
        digest: bytes,
        *,
        purpose: Purpose,
        name: str | None,
        with_optimizer: bool = False,
        ttl_s: float | None = None,
        overwrite: bool = False,
        kind: str = "weight",
        then: Callable[[ModelSnapshot], Any] = lambda snapshot: snapshot,
    ) -> Operation:
        """Writes the model's state at its turn; the result is what `then` makes of the snapshot."""
        created = time.time()
        snapshot_name = name or f"export-{uuid.uuid4().hex[:12]}"

        def job() -> Any:
            model = entry.model
            snapshot = ModelSnapshot(
                id=str(uuid.uuid4()),
                model_id=entry.model_id,
                purpose=purpose,
                name=snapshot_name,
                base_model=entry.base_model,
                step=model.step,
                has_optimizer=with_optimizer,
                created_at=created,
                expires_at=None if ttl_s is None else created + ttl_s,
                ephemeral=name is None,
                kind=kind,
                lora=None if purpose == "sampler" or entry.lora is None else asdict(entry.lora),
            )
            optimizer = model.optimizer_state() if with_optimizer else None
            weights = model.whole_weights if purpose == "sampler" else model.weights
            return then(self.snapshots.save(snapshot, weights, optimizer, overwrite=overwrite))

        return self._in_order(entry, number, digest, "save", job)

    def load(
        self, entry: ModelEntry, number: int | None, digest: bytes, path: Any, *, with_optimizer: bool
    ) -> Operation:
        snapshot = self.snapshots.find(path) if isinstance(path, str) else None
        if snapshot is None:
            raise ServiceRequestError("path is not the path of a snapshot")

        def job() -> ModelSnapshot:
            entry.model.load(*self.snapshots.load(snapshot, optimizer=with_optimizer))
            return snapshot

        return self._in_order(entry, number, digest, "load", job)

    def weights(self, entry: ModelEntry) -> Operation:
        """The parameters as one safetensors file, after everything that was accepted before."""
        return self._run("weights", lambda: entry.model.to_safetensors())

    def replace_weights(self, entry: ModelEntry, content: bytes) -> Operation:
        return self._run("replace_weights", lambda: entry.model.load_safetensors(content))

    # Order

    def _run(self, kind: str, job: Callable[[], Any]) -> Operation:
        operation = self.operations.add(Operation(kind))
        self._worker.submit(operation, job)
        return operation

    def _in_order(
        self, entry: ModelEntry, number: int | None, digest: bytes, kind: str, job: Callable[[], Any]
    ) -> Operation:
        """At the request's turn; requests without a number run after everything that has started."""
        if number is None:
            return self._run(kind, job)
        operation = Operation(kind)
        accepted = entry.order.submit(number, digest, operation, lambda: self._worker.submit(operation, job))
        return self.operations.add(operation) if accepted is operation else accepted
