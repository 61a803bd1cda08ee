"""The one interface between protocols and what generates: an embedded model, or a recording."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from rldbg.inference.generation import GenerationJob, PendingGeneration, Text
from rldbg.inference.request_error import RequestError
from rldbg.weights import Fingerprint

PauseMode = Literal["abort", "retract", "in_place"]


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What is served. Tokens that end a text join every request's stop tokens unless it ignores them.

    A recording does not score prompts: it has log probs of what was generated only."""

    name: str
    path: str
    max_length: int
    vocabulary_size: int
    end_ids: frozenset[int]
    dtype: str
    text: Text
    scores_prompts: bool = True

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Refuses what no vocabulary of this size has; tokenizers and models would fail on it."""
        wrong = next((token for token in tokens if not 0 <= token < self.vocabulary_size), None)
        if wrong is not None:
            raise RequestError(f"no token {wrong}: the vocabulary has {self.vocabulary_size}")


@dataclass(frozen=True, slots=True)
class WeightVersion:
    """Which weights are loaded: the label a client gave them, and a number that never repeats for other labels."""

    label: str = "0"
    number: int = 0

    def next(self, label: str | None) -> "WeightVersion":
        if label == self.label:
            return self
        if label is None:
            return WeightVersion(str(self.number + 1), self.number + 1)
        return WeightVersion(label, int(label) if label.isdecimal() else self.number + 1)


@dataclass(frozen=True, slots=True)
class BackendStatus:
    running: int
    waiting: int
    paused: bool
    version: WeightVersion
    forward_calls: int
    generated_tokens: int
    finished_requests: int
    healthy: bool = True

    def to_dict(self) -> dict[str, Any]:
        return {
            "running": self.running,
            "waiting": self.waiting,
            "paused": self.paused,
            "weight_version": self.version.label,
            "forward_calls": self.forward_calls,
            "generated_tokens": self.generated_tokens,
            "finished_requests": self.finished_requests,
        }


class Backend(Protocol):
    """All methods are called from the server's event loop. Invalid requests raise `RequestError`."""

    @property
    def card(self) -> ModelCard: ...

    def submit(self, job: GenerationJob, *, streams: bool = False) -> PendingGeneration:
        """Starts a continuation; with `streams` its deltas come as they are made."""

    def abort(self, job_id: str | None, *, with_samples: bool = False) -> None:
        """Ends one continuation, with its request's further samples, or all; each is answered with what it had."""

    async def pause(self, mode: PauseMode) -> None:
        """No token is made after this returns. `abort` ends what is under way, the others keep it waiting."""

    async def resume(self) -> None: ...

    async def load_folder(self, folder: Path, label: str | None) -> WeightVersion:
        """New weights from a folder of safetensors files."""

    async def load_file(self, file: Path, label: str | None) -> WeightVersion:
        """New weights, all or some, from one safetensors file."""

    async def load_tensors(self, tensors: Mapping[str, Any], label: str | None) -> WeightVersion:
        """New weights, all or some, by name."""

    async def name_version(self, label: str) -> WeightVersion:
        """Another name for the weights that are loaded."""

    async def fingerprints(self) -> list[Fingerprint]:
        """Fingerprints of every loaded tensor."""

    def status(self) -> BackendStatus: ...

    def summary(self) -> Mapping[str, Any]:
        """Facts about the backend beyond its status."""

    def report(self) -> Mapping[str, Any] | None:
        """The final report of the server: {"summary", "findings"}, or None."""

    async def close(self) -> None: ...
