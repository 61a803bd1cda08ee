"""Records of TRL's online trainers (GRPOTrainer, RLOOTrainer), and what any Trainer of transformers has: gradients,
parameters and metrics.

Steps are those of the algorithm: one generation, with its iterations as epochs and its optimizer steps as mini-batches.
B samples, R response tokens.
"""

from collections.abc import Mapping
from types import FrameType
from typing import Any

from rldbg.frameworks.recorded import Recorded, RecordedCall
from rldbg.frameworks.rerun import stop_in
from rldbg.frameworks.trl.generations import ROW, TrainerGenerations
from rldbg.frameworks.trl.loss_facts import loss_facts, loss_form, loss_terms
from rldbg.frameworks.trl.places import TrainerPlace, first_update, frame_of, place_of
from rldbg.frameworks.trl.rerun import prepare, without_engine
from rldbg.frameworks.trl.sequences import joined, samples_by_content


class TrlRecording(TrainerGenerations):
    """One trainer at a time: TRL has one per process."""

    def __init__(self, recorded: Recorded) -> None:
        super().__init__(recorded)
        self._frame: FrameType | None = None
        self._has_gradients = False

    def created(self, trainer: Any, *_: Any, **__: Any) -> RecordedCall:
        """`rldbg rerun`: the trainer is given a recorded step."""
        if self._rerun is not None:
            without_engine(trainer)
        yield
        if self._rerun is not None:
            prepare(trainer, self._rerun)
            self._first = first_update(trainer, self._rerun.step)

    def log_probs(self, trainer: Any, *_: Any, **__: Any) -> RecordedCall:
        self._frame = frame_of("_compute_loss")
        result = yield
        self._passes.append(result)

    def loss(self, trainer: Any, model: Any, inputs: Mapping[str, Any]) -> RecordedCall:
        """One micro-batch: what went into the loss, and what came out."""
        metrics = trainer._metrics["train"]
        had = {name: len(values) for name, values in metrics.items()}
        self._passes = []
        if self._rerun is not None and self._rerun.pdb and not self._micro:
            stop_in(type(trainer)._compute_loss)
        loss = yield
        # The variables of a returned function stay available in its frame while that is referenced.
        computed = {} if self._frame is None else dict(self._frame.f_locals)
        self._frame = None
        if not trainer.model.training:
            return
        self._own(trainer)
        place = self._place(trainer)
        self._micro += 1
        new = {name: values[-1] for name, values in metrics.items() if len(values) > had.get(name, 0)}
        self._record_pass(trainer, place, inputs, loss.detach(), new, computed)

    def compute_loss(self, trainer: Any, model: Any, inputs: Mapping[str, Any], *_: Any, **__: Any) -> RecordedCall:
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
        if of_tokens:
            facts["form"] = loss_form(trainer, facts["loss_type"], computed)
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

    def gradients(self, trainer: Any, model: Any) -> RecordedCall:
        """Before they are clipped."""
        self._own(trainer)
        self._record_gradients(trainer, model)
        yield

    def gradient_norm(self, trainer: Any, model: Any, grad_norm: Any = None) -> RecordedCall:
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

    def step_end(self, handler: Any, args: Any, state: Any, control: Any, **_: Any) -> RecordedCall:
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

    def _place_of_update(self, trainer: Any) -> TrainerPlace:
        return place_of(trainer, self._first + trainer.state.global_step, 0)

    def _rows_of(self, inputs: Mapping[str, Any]) -> Any:
        """Which rows of the generation a micro-batch has; None where TRL, or a class of the user's, dropped them."""
        rows = inputs.get(ROW)
        return rows if rows is not None and len(rows) == len(inputs["completion_ids"]) else None

    def _samples_of(self, rows: Any) -> dict[str, Any]:
        if rows is None:
            return {}
        chosen, known = rows.tolist(), self._generation
        return {
            "samples": [known.samples[row] for row in chosen],
            "prompt_hashes": [known.prompt_hashes[row] for row in chosen],
        }


RECORDING = TrlRecording
