"""The inference server of a run: a sampler with the policy's newest weights. A plain class; Ray wraps it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rldbg.inference import Generation, GenerationRequest, Sampler
from rldbg.replay.loss import choose_device
from rldbg.trainer.determinism import fix_threads
from rldbg.trainer.model import build_model
from rldbg.trainer.routing import captured_routes
from rldbg.trainer.settings import Recipe
from rldbg.trainer.tokenizer import load_tokenizer
from rldbg.weights import Fingerprint, fingerprints


class InferenceServer:
    """Answers one batch of requests after the other; batches are never mixed, so they do not influence each other."""

    def __init__(self, *, recipe: Recipe, number: int = 0) -> None:
        fix_threads(recipe.threads, deterministic=recipe.deterministic)
        tokenizer = load_tokenizer(recipe.model.path)
        self._number = number
        self._settings = recipe.inference
        self._sampler = Sampler(
            build_model(recipe.model, vocabulary_size=tokenizer.vocabulary_size, seed=recipe.seed),
            pad_id=tokenizer.pad_id,
            eos_id=tokenizer.eos_id,
            device=choose_device(recipe.inference.device, local_rank=number),
        )

    def __repr__(self) -> str:
        return f"inference/{self._number}"

    def load_weights(self, weights: Mapping[str, Any], policy_version: int) -> None:
        self._sampler.load_weights(weights, policy_version)

    def held_weights(self) -> list[Fingerprint]:
        """The fingerprints of what the model holds now."""
        return fingerprints(self._sampler.weights())

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        with captured_routes(self._sampler.model) as routes:
            made = self._sampler.generate(
                requests, max_new_tokens=self._settings.max_new_tokens, temperature=self._settings.temperature
            )
        found = routes.joined() if made else None
        return made if found is None else list(_routed(requests, made, *found))


def _routed(
    requests: Sequence[GenerationRequest], made: Sequence[Generation], experts: np.ndarray, weights: np.ndarray
) -> Iterator[Generation]:
    """Generations with the choices for their own tokens: prompts are padded on the left, answers on the right."""
    width = max(len(request.prompt) for request in requests)
    for row, (request, item) in enumerate(zip(requests, made, strict=True)):
        own = slice(width - len(request.prompt), width + len(item.tokens) - 1)
        yield replace(item, routing=(experts[row, own], weights[row, own]))
