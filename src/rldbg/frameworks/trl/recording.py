"""Records of TRL's online trainers (GRPOTrainer, RLOOTrainer), and what any Trainer of transformers has: gradients,
parameters and metrics.

Steps are those of the algorithm: one generation, with its iterations as epochs and its optimizer steps as mini-batches.
B samples, R response tokens.
"""

import sys
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from rldbg.core import SampleId, prompt_hash
from rldbg.frameworks.recorded import Recorded
from rldbg.frameworks.rerun import RerunRequest, stop_in
from rldbg.frameworks.trl.async_batches import AsyncBatches
from rldbg.frameworks.trl.loss_facts import loss_facts, loss_terms
from rldbg.frameworks.trl.places import TrainerPlace, first_update, place_of
from rldbg.frameworks.trl.rerun import prepare
from rldbg.frameworks.trl.sequences import distinct, drawn, joined, on_sequences, row_numbers, samples_by_content
from rldbg.frameworks.weight_recording import SentWeights
from rldbg.recording import Ragged

Call = Generator[None, Any, Any]
# TRL shuffles the batch and splits it: a column of the batch that it carries along says which sample a row is.
_ROW = "rldbg_row"
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


class TrlRecording(AsyncBatches):
    """One trainer at a time: TRL has one per process."""

    def __init__(self, recorded: Recorded) -> None:
        super().__init__(recorded)
        self._trainer: Any = None
        self._generated: Sequence[Any] | None = None
        self._rewards: Any = None
        self._generation = _Generation()
        self._passes: list[Sequence[Any]] = []
        self._frame: FrameType | None = None
        self._micro = 0
        self._has_gradients = False
        self._rerun = RerunRequest.from_environment()
        self._first = 0
        self._version = 0
        self._sent: SentWeights | None = None

    def created(self, trainer: Any, *_: Any, **__: Any) -> Call:
        """`rldbg rerun`: the trainer is given a recorded step."""
        yield
        if self._rerun is not None:
            prepare(trainer, self._rerun)
            self._first = first_update(trainer, self._rerun.step)

    # The rollout.

    def generate(self, trainer: Any, *_: Any, **__: Any) -> Call:
        self._generated = yield

    def rewards(self, trainer: Any, *_: Any, **__: Any) -> Call:
        self._rewards = yield

    def batch(self, trainer: Any, inputs: Any) -> Call:
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

    def sync_weights(self, generation: Any) -> Call:
        """The weights that a vLLM engine gets before it generates, sent by the first rank."""
        if generation.accelerator.is_main_process and self.recorded.recorder().wants("weights", self._version):
            self._sent = SentWeights(self.recorded, self._version)
            if hasattr(getattr(generation, "model", None), "peft_config"):
                self._sent.adapted(generation.model, generation._fix_param_name_to_vllm)
        yield
        sent, self._sent = self._sent, None
        if sent is not None:
            sent.record()

    def sent_weights(self, generation: Any) -> Call:
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
        batch[_ROW] = row_numbers(batch, count)
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

    # The update.

    def log_probs(self, trainer: Any, *_: Any, **__: Any) -> Call:
        self._frame = _frame_of("_compute_loss")
        result = yield
        self._passes.append(result)

    def loss(self, trainer: Any, model: Any, inputs: Mapping[str, Any]) -> Call:
        """One micro-batch: what went into the loss, and what came out."""
        metrics = trainer._metrics["train"]
        had = {name: len(values) for name, values in metrics.items()}
        self._passes = []
        if self._rerun is not None and self._rerun.pdb and not self._micro:
            stop_in(type(trainer)._compute_loss)
        loss = yield
        # The variables of a function that has returned are those of its frame, as long as somebody has that.
        computed = {} if self._frame is None else dict(self._frame.f_locals)
        self._frame = None
        if not trainer.model.training:
            return
        self._own(trainer)
        place = self._place(trainer)
        self._micro += 1
        new = {name: values[-1] for name, values in metrics.items() if len(values) > had.get(name, 0)}
        self._record_pass(trainer, place, inputs, loss.detach(), new, computed)

    def compute_loss(self, trainer: Any, model: Any, inputs: Mapping[str, Any], *_: Any, **__: Any) -> Call:
        """Any trainer's loss; that of online trainers comes with its inputs, unless a user's class replaced it."""
        micro = self._micro
        result = yield
        if micro != self._micro or not model.training:
            return
        self._own(trainer)
        place = self._place(trainer)
        self._micro += 1
        loss = (result[0] if isinstance(result, tuple) else result).detach()
        where = place.to_dict()
        if "completion_ids" in inputs:
            where |= self._samples_of(self._rows_of(inputs))
        elif "input_ids" in inputs:
            where["samples"] = samples_by_content(inputs, place.step)
        info = {"optimizer_step": self._first + trainer.state.global_step}
        self.recorded.recorder(trainer.model).record("loss", **where, loss=loss, extra_info=info)

    def _record_pass(
        self,
        trainer: Any,
        place: TrainerPlace,
        inputs: Mapping[str, Any],
        loss: Any,
        metrics: Mapping[str, Any],
        computed: Mapping[str, Any],
    ) -> None:
        recorder = self.recorded.recorder(trainer.model)
        if not self._passes:
            raise ValueError("the loss did not compute log probs by _get_per_token_logps_and_entropies")
        log_probs, entropy = self._passes[-1][0].detach(), self._passes[-1][1]
        mask = inputs["completion_mask"] * inputs["tool_mask"] if "tool_mask" in inputs else inputs["completion_mask"]
        rows = self._rows_of(inputs)
        where: dict[str, Any] = place.to_dict() | self._samples_of(rows)
        reference = inputs.get("ref_per_token_logps")
        recorder.record(
            "forward_data",
            **where,
            log_probs=log_probs,
            response_mask=mask,
            input_ids=joined(inputs),
            **({} if entropy is None else {"entropy": entropy.detach()}),
            **({} if reference is None else {"ref_log_probs": reference}),
        )
        old, advantages = inputs.get("old_per_token_logps"), inputs["advantages"]
        if old is None and rows is not None and self._generation.old_log_probs is not None:
            old = self._generation.old_log_probs[rows]
        facts = loss_facts(trainer, inputs, mask)
        of_tokens, terms = loss_terms(trainer, facts, computed, mask)
        recorder.record(
            "is_loss_debug",
            **where,
            **of_tokens,
            log_probs=log_probs,
            # Without old log probs TRL takes those of the pass itself.
            **({} if old is None else {"old_log_probs": old}),
            advantages=(advantages.unsqueeze(1) if advantages.dim() == 1 else advantages).expand_as(log_probs),
            effective_valid=mask,
            loss=loss,
        )
        # Metrics that only TRL has are no field of their own: another trainer's run would differ in each of them.
        update = self._first + trainer.state.global_step
        info = facts | {"optimizer_step": update, "metrics": metrics}
        recorder.record("loss", **where, loss=loss, **terms, extra_info=info)

    def gradients(self, trainer: Any, model: Any) -> Call:
        """Before they are clipped."""
        self._own(trainer)
        self._record_gradients(trainer, model)
        yield

    def gradient_norm(self, trainer: Any, model: Any, grad_norm: Any = None) -> Call:
        """After clipping, if there is any: without it the gradients are still as the backward pass left them."""
        self._own(trainer)
        if not self._has_gradients:
            self._record_gradients(trainer, model)
        norm = yield
        place = self._place_of_update(trainer)
        rates = trainer.lr_scheduler.get_last_lr() if trainer.lr_scheduler is not None else []
        metrics: dict[str, Any] = {"grad_norm": float(norm), "optimizer_step": self._first + trainer.state.global_step}
        if rates:
            metrics["learning_rate"] = float(rates[0])
        metrics |= {
            name: values[-1] for name, values in getattr(trainer, "_metrics", {}).get("train", {}).items() if values
        }
        self.recorded.recorder(trainer.model).record("training_metrics", **place.of_update(), metrics=metrics)

    def _record_gradients(self, trainer: Any, model: Any) -> None:
        self._has_gradients = True
        place = self._place_of_update(trainer)
        self.recorded.recorder(trainer.model).record_gradients(model=model, **place.of_update())

    def step_end(self, handler: Any, args: Any, state: Any, control: Any, **_: Any) -> Call:
        """After the optimizer step, when the number of steps has been raised."""
        trainer = self._trainer
        if trainer is not None:
            done = self._first + state.global_step
            place = place_of(trainer, done - 1, 0)
            recorder = self.recorded.recorder(trainer.model)
            recorder.record_parameters(model=handler.model, **place.of_update())
            if trainer.optimizer is not None:
                recorder.record_optimizer(model=handler.model, optimizer=trainer.optimizer, **place.of_update())
            if place_of(trainer, done, 0).step != place.step:
                recorder.end_step(place.step)
        self._micro, self._has_gradients = 0, False
        yield

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

    def _place_of_update(self, trainer: Any) -> TrainerPlace:
        return place_of(trainer, self._first + trainer.state.global_step, 0)

    def _rows_of(self, inputs: Mapping[str, Any]) -> Any:
        """Which rows of the generation a micro-batch has; None where TRL, or a class of the user's, dropped them."""
        rows = inputs.get(_ROW)
        return rows if rows is not None and len(rows) == len(inputs["completion_ids"]) else None

    def _samples_of(self, rows: Any) -> dict[str, Any]:
        if rows is None:
            return {}
        chosen, known = rows.tolist(), self._generation
        return {
            "samples": [known.samples[row] for row in chosen],
            "prompt_hashes": [known.prompt_hashes[row] for row in chosen],
        }


def _frame_of(function: str, depth: int = 6) -> FrameType | None:
    """The frame of a function of this name that calls the one that is hooked."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(depth):
        if frame is None or frame.f_code.co_name == function:
            return frame
        frame = frame.f_back
    return None


RECORDING = TrlRecording
