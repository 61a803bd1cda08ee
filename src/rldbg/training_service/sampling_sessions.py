"""Sampling sessions: weights a client samples from, by id, and the requests it made of them."""

import secrets
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rldbg.training_service.errors import ConflictError, NotFoundError, ServiceRequestError
from rldbg.training_service.operations import Operation, Operations
from rldbg.training_service.samplers import SampleRequest, Samplers
from rldbg.training_service.snapshots import ModelSnapshot, Snapshots
from rldbg.training_service.worker import Worker

_REMEMBERED = 4096
# Every weight sync opens a session; the oldest are closed when there are more than this.
_KEPT_SESSIONS = 1000


@dataclass(slots=True)
class SamplingSession:
    """Weights to sample from: a snapshot's, or the base model's own."""

    id: str
    base_model: str
    snapshot: ModelSnapshot | None
    requests: OrderedDict[int, tuple[bytes, str]] = field(default_factory=OrderedDict)
    unseeded: int = 0
    clones: int = 0


class SamplingSessions:
    """All sampling sessions. It lives on the event loop; the worker samples."""

    def __init__(
        self,
        samplers: Samplers,
        snapshots: Snapshots,
        operations: Operations,
        worker: Worker,
        *,
        deterministic: bool,
    ) -> None:
        self._samplers = samplers
        self._snapshots = snapshots
        self._operations = operations
        self._worker = worker
        self._deterministic = deterministic
        self._sessions: OrderedDict[str, SamplingSession] = OrderedDict()

    def create(self, *, model_path: Any = None, base_model: Any = None) -> SamplingSession:
        if model_path:
            snapshot = self._snapshots.find(str(model_path))
            return self.open(snapshot.base_model, snapshot)
        if not isinstance(base_model, str):
            raise ServiceRequestError("a sampling session needs model_path or base_model")
        self._samplers.check(base_model)
        return self.open(base_model, None)

    def open(self, base_model: str, snapshot: ModelSnapshot | None) -> SamplingSession:
        session = SamplingSession(uuid.uuid4().hex, base_model, snapshot)
        self._sessions[session.id] = session
        if len(self._sessions) > _KEPT_SESSIONS:
            self._sessions.popitem(last=False)
        return session

    def get(self, session_id: Any) -> SamplingSession:
        session = self._sessions.get(session_id) if isinstance(session_id, str) else None
        if session is None:
            raise NotFoundError(f"no sampling session {session_id!r}")
        return session

    def close(self, session_id: str) -> None:
        del self._sessions[self.get(session_id).id]

    def choose_seed(self, session: SamplingSession, given: int | None) -> int:
        """The request's seed; without one the session's next number if deterministic, else a random one."""
        if given is not None:
            return given
        if not self._deterministic:
            return secrets.randbits(63)
        session.unseeded += 1
        return session.unseeded

    def sample(self, session: SamplingSession, request: SampleRequest) -> Operation:
        operation = self._operations.add(Operation("sample"))
        self._worker.submit(operation, lambda: self._samplers.sample(session.base_model, session.snapshot, request))
        return operation

    def sample_once(
        self, session: SamplingSession, number: int, digest: bytes, make: Callable[[], SampleRequest]
    ) -> Operation:
        """A sampling request with a number of its own: sent again, it is not sampled again."""
        known_digest, known_id = session.requests.get(number, (digest, ""))
        if known_digest != digest:
            raise ConflictError(f"seq_id {number} of this sampling session was another request")
        known = self._operations.find(known_id)
        if known is not None:
            return known
        operation = self.sample(session, make())
        session.requests[number] = (digest, operation.id)
        if len(session.requests) > _REMEMBERED:
            session.requests.popitem(last=False)
        return operation
