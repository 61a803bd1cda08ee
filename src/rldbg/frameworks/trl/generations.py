"""A generation of TRL's online trainers: trajectories with their rewards, and the log probs computed with them.

B samples, R response tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rldbg.core import SampleId, prompt_hash
from rldbg.frameworks.recorded import Recorded, RecordedCall
from rldbg.frameworks.rerun import RerunRequest
from rldbg.frameworks.trl.async_batches import AsyncBatches
from rldbg.frameworks.trl.places import TrainerPlace, place_of
from rldbg.frameworks.trl.sequences import distinct, drawn, on_sequences, row_numbers
from rldbg.frameworks.weight_recording import SentWeights
from rldbg.recording import Ragged

# TRL shuffles the batch and splits it: a column of the batch that it carries along says which sample a row is.
ROW = "rldbg_row"
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
# What names a place or a run, and cannot change a number.
_NOT_COMPARED = frozenset({"output_dir", "logging_dir", "run_name", "project", "trackio_space_id", "hub_model_id"})


@dataclass(frozen=True, slots=True)
class _Generation:
    """The samples of the last generation of this rank, by row of the batch before it was shuffled."""

    samples: tuple[SampleId, ...] = ()
    prompt_hashes: tuple[str, ...] = ()
    old_log_probs: Any = None
    """Where the loss gets only their sum (RLOO)."""


class TrainerGenerations(AsyncBatches):
    """The rollout of the trainer that a process has, and what it knows of the place in training."""

    def __init__(self, recorded: Recorded) -> None:
        super().__init__(recorded)
        self._trainer: Any = None
        self._generated: Sequence[Any] | None = None
        self._rewards: Any = None
        self._generation = _Generation()
        self._passes: list[Sequence[Any]] = []
        self._micro = 0
        self._rerun = RerunRequest.from_environment()
        self._first = 0
        self._version = 0
        self._sent: SentWeights | None = None

    def generate(self, trainer: Any, *_: Any, **__: Any) -> RecordedCall:
        self._generated = yield

    def rewards(self, trainer: Any, *_: Any, **__: Any) -> RecordedCall:
        self._rewards = yield

    def batch(self, trainer: Any, inputs: Any) -> RecordedCall:
        """One generation: trajectories with their rewards and advantages, and the log probs computed with them."""
        self._generated = self._rewards = None
        if self._rerun is not None:
            # Methods of the trainer's own take the place of those that are hooked.
            self._generated, self._rewards = trainer._generate(inputs), trainer._calculate_rewards()
        self._passes = []
        self._version = self._place(trainer).step
        batch = yield
        if trainer.model.training:
            self._own(trainer)
            self._record_batch(trainer, batch)

    def sync_weights(self, generation: Any) -> RecordedCall:
        """The weights that a vLLM engine gets before it generates, sent by the first rank."""
        if generation.accelerator.is_main_process and self.recorded.recorder().wants("weights", self._version):
            self._sent = SentWeights(self.recorded, self._version)
            if hasattr(getattr(generation, "model", None), "peft_config"):
                self._sent.adapted(generation.model, generation._fix_param_name_to_vllm)
        yield
        self._record_sent()

    def async_sync(self, trainer: Any) -> RecordedCall:
        """AsyncGRPOTrainer counts what it sends by itself; adapters that it sends alone are no weights."""
        version = int(trainer.model_version)
        if trainer.accelerator.is_main_process and self.recorded.recorder().wants("weights", version):
            self._sent = SentWeights(self.recorded, version)
        yield
        self._record_sent()

    def _record_sent(self) -> None:
        sent, self._sent = self._sent, None
        if sent is not None:
            sent.record()

    def sent_weights(self, generation: Any) -> RecordedCall:
        pairs = yield
        return None if self._sent is None else self._sent.passing(pairs)

    def _record_batch(self, trainer: Any, batch: dict[str, Any]) -> None:
        place = self._place(trainer)
        tokens, prompt_lengths = self._sequences(batch)
        count = len(tokens)
        first = trainer.accelerator.process_index * count
        hashes = [
            prompt_hash(row[:length].astype("<i8").tobytes())
            for row, length in zip(tokens, prompt_lengths, strict=True)
        ]
        samples = [
            SampleId(f"{hashed}#{place.generation}.{row // trainer.num_generations}", row % trainer.num_generations)
            for row, hashed in enumerate(hashes, start=first)
        ]
        old = self._passes[0][0].detach() if "old_logps" in batch and self._passes else None
        self._generation = _Generation(tuple(samples), tuple(hashes), old)
        batch[ROW] = row_numbers(batch, count)
        mask = batch["completion_mask"] * batch["tool_mask"] if "tool_mask" in batch else batch["completion_mask"]
        response_mask = mask.cpu().numpy()
        rewards, by_function = self._own_rewards(trainer, first, count)
        if "old_logps" in batch:
            rewards = self._with_kl(trainer, rewards, response_mask)
        lengths = list(zip(prompt_lengths, map(len, tokens), strict=True))
        loss_mask = on_sequences(response_mask, lengths, before=0, dtype=np.int64)
        recorder = self.recorded.recorder(trainer.model)
        settings = {name: getattr(trainer, name, None) for name in _SAMPLING}
        sampling = {name: value for name, value in settings.items() if value is not None}
        fields: dict[str, Any] = {
            "tokens": Ragged.from_rows(tokens, np.int64),
            "loss_mask": loss_mask,
            "reward": rewards,
            "policy_versions": on_sequences(np.where(drawn(batch), place.step, -1), lengths, before=-1, dtype=np.int64),
            "extra_fields": [
                {"group_id": sample.group_id, "run_id": sample.run_id} | sampling | row
                for sample, row in zip(samples, by_function, strict=True)
            ],
        }
        for extra, mask_r in zip(fields["extra_fields"], response_mask, strict=True):
            if getattr(trainer, "mask_truncated_completions", False) and not mask_r.any():
                extra["left_out"] = "truncated"
        rollout = batch.get("sampling_per_token_logps")
        if rollout is not None:
            fields["logprobs"] = on_sequences(rollout.cpu().numpy(), lengths, before=0, dtype=np.float32)
        where: dict[str, Any] = {"step": place.step, "samples": samples, "policy_version": place.step}
        recorder.record("trajectory", **where, prompt_hashes=hashes, **fields)
        old = batch.get("old_per_token_logps", old)
        if old is not None:
            recorder.record("old_log_probs", **where, prompt_hashes=hashes, old_log_probs=old.detach())

    def _sequences(self, batch: Mapping[str, Any]) -> tuple[list[np.ndarray], list[int]]:
        """Prompt and response of each row as they were generated, and the prompts' lengths."""
        if self._generated is not None:
            prompts, responses = ([np.asarray(row, dtype=np.int64) for row in rows] for rows in self._generated[:2])
        else:
            prompts, responses = (
                [ids[held] for ids, held in zip(ids_bt, masks_bt != 0, strict=True)]
                for ids_bt, masks_bt in (
                    (batch["prompt_ids"].cpu().numpy(), batch["prompt_mask"].cpu().numpy()),
                    (batch["completion_ids"].cpu().numpy(), batch["completion_mask"].cpu().numpy()),
                )
            )
        whole = [np.concatenate(pair) for pair in zip(prompts, responses, strict=True)]
        return whole, [len(prompt) for prompt in prompts]

    def _own_rewards(self, trainer: Any, first: int, count: int) -> tuple[np.ndarray, list[dict[str, Any]]]:
        """This rank's rewards as TRL weighs them, and those of each function; NaN where none gave one."""
        if self._rewards is None:
            return np.full(count, np.nan, dtype=np.float32), [{} for _ in range(count)]
        own = self._rewards[first : first + count].detach().float().cpu().numpy()
        weighted = own * trainer.reward_weights.float().cpu().numpy()
        total = np.where(np.isnan(own).all(axis=1), np.nan, np.nansum(weighted, axis=1)).astype(np.float32)
        weights = dict(zip(distinct(trainer.reward_func_names), trainer.reward_weights.tolist(), strict=True))
        about: list[dict[str, Any]] = []
        for row in own:
            given = {name: None if np.isnan(value) else float(value) for name, value in zip(weights, row, strict=True)}
            about.append({"rewards": given, "reward_weights": weights})
            if all(value is None for value in given.values()):
                about[-1]["left_out"] = "no reward"
        return total, about

    def _with_kl(self, trainer: Any, rewards: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """RLOO's rewards as its advantages see them: clipped, and less the KL divergence to the reference."""
        if trainer.reward_clip_range:
            rewards = np.clip(rewards, *trainer.reward_clip_range)
        if trainer.beta and len(self._passes) > 1:
            old, reference = (found[0].detach().float().cpu().numpy() for found in self._passes[:2])
            rewards = rewards - trainer.beta * ((old - reference) * mask).sum(-1)
        return rewards.astype(np.float32)

    def _own(self, trainer: Any) -> None:
        if trainer is not self._trainer:
            self._trainer = trainer
            self.configured(
                {name: value for name, value in trainer.args.to_dict().items() if name not in _NOT_COMPARED}
            )
            if folder := getattr(trainer.args, "output_dir", None):
                self.recorded.proof.note(checkpoints=str(Path(folder).absolute()))

    def _place(self, trainer: Any) -> TrainerPlace:
        return place_of(trainer, self._first + trainer.state.global_step, self._micro)
