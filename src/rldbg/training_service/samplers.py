"""Models to sample from: one copy of each base model, holding the weights of whichever snapshot was asked for last."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from rldbg.training_service.bases import BaseModels
from rldbg.training_service.errors import ServiceRequestError
from rldbg.training_service.models import load_weights
from rldbg.training_service.sampling import ClientSamplingSettings, Continuation, Samples, prompt_logprobs
from rldbg.training_service.snapshots import ModelSnapshot, Snapshots


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One prompt to continue, `count` times; 0 only scores the prompt."""

    prompt: np.ndarray
    count: int
    settings: ClientSamplingSettings
    seed: int
    prompt_logprobs: bool = False
    prompt_top: int = 0
    sample_top: int = 0
    score_last: int | None = None


class Samplers:
    """Used by the computing thread alone. Weights are read again only when the snapshot changes."""

    def __init__(self, bases: BaseModels, snapshots: Snapshots) -> None:
        self._bases = bases
        self._snapshots = snapshots
        self._loaded: dict[str, tuple[str | None, Any]] = {}

    def check(self, base_model: str) -> None:
        """Whether there is such a base model."""
        self._bases.describe(base_model)

    def sample(self, base_model: str, snapshot: ModelSnapshot | None, request: SampleRequest) -> Samples:
        module = self._module(base_model, snapshot)
        base = self._bases.describe(base_model)
        settings = request.settings
        room = base.max_length - len(request.prompt)
        limit = min(room, settings.max_tokens or room)
        if request.count and limit < 1:
            raise ServiceRequestError(f"the prompt has {len(request.prompt)} tokens, the model takes {base.max_length}")
        scores, top = None, None
        if request.prompt_logprobs or request.prompt_top:
            scores, top = prompt_logprobs(module, request.prompt, request.prompt_top)
            if request.score_last is not None:
                scores[: len(scores) - request.score_last] = np.nan
        if not request.count:
            return Samples((), scores, top)
        stop_tokens = settings.stop_tokens | ({base.tokenizer.eos_id} if settings.stop_at_end else frozenset())
        continuation = Continuation(
            module, request.prompt, request.count, settings, seed=request.seed, top_k=request.sample_top
        )
        sequences = continuation.run(limit, frozenset(stop_tokens), base.tokenizer.decode)
        return Samples(sequences, scores if request.prompt_logprobs else None, top)

    def _module(self, base_model: str, snapshot: ModelSnapshot | None) -> Any:
        path = self._bases.describe(base_model).path
        wanted = snapshot.id if snapshot is not None else None
        held, module = self._loaded.get(path, (None, None))
        if module is None or (wanted is None and held is not None):
            held, module = None, self._bases.build(base_model)
        if wanted is not None and wanted != held:
            assert snapshot is not None
            weights, _ = self._snapshots.load(snapshot, optimizer=False)
            load_weights(module, weights)
        self._loaded[path] = (wanted, module)
        return module
