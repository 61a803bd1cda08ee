"""The inference server of a run: a sampler with the policy's newest weights. A plain class; Ray wraps it."""

from collections.abc import Mapping, Sequence
from typing import Any

from rldbg.inference import Generation, GenerationRequest, Sampler
from rldbg.replay.loss import choose_device
from rldbg.trainer.determinism import fix_threads
from rldbg.trainer.model import build_model
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
        return self._sampler.generate(
            requests, max_new_tokens=self._settings.max_new_tokens, temperature=self._settings.temperature
        )
