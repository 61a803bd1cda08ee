"""Records of verl: the driver has whole batches (trajectories, advantages, old log probs, metrics), each rank its
micro-batches, gradients and parameters. What both say of a sample is joined by its id.

Steps count from 1, as verl's. B samples, R response tokens; verl's own tensors are jagged.
"""

from collections.abc import Generator, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from rldbg.frameworks.recorded import FrameworkRecording, Recorded
from rldbg.frameworks.verl.samples import float_or_none, ids_of, loss_facts, padded, ranks_of, rows_of
from rldbg.frameworks.weight_recording import SentWeights
from rldbg.recording import Ragged

Call = Generator[None, Any, Any]


class VerlRecording(FrameworkRecording):
    """One process: the driver, or a rank that trains."""

    def __init__(self, recorded: Recorded) -> None:
        super().__init__(recorded)
        self._step = 0
        self._updates = 0
        self._updates_per_epoch = 1
        self._micro = 0
        self._is_training = False
        self._sent: SentWeights | None = None

    # The driver.

    def update_actor(self, trainer: Any, batch: Any, metrics: dict[str, Any]) -> Call:
        """Before the update the batch has everything: responses, rewards, old and reference log probs, advantages."""
        step = int(trainer.global_steps)
        if self._step == 0:
            self.configured(import_module("omegaconf").OmegaConf.to_container(trainer.config, resolve=True))
        self._step = step
        queue = import_module("transfer_queue")
        data = queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id)
        self._record_batch(step, data, batch.tags)
        yield
        numbers = {name: found for name, value in metrics.items() if (found := float_or_none(value)) is not None}
        recorder = self.recorded.recorder()
        recorder.record("training_metrics", step=step, metrics=numbers)
        recorder.end_step(step)

    def _record_batch(self, step: int, data: Any, tags: Sequence[Mapping[str, Any]]) -> None:
        kept = [row for row, tag in enumerate(tags) if not tag.get("is_padding")]
        samples = [ids_of(data)[row] for row in kept]
        prompts, responses, masks, scores = (
            [rows_of(data[name])[row] for row in kept]
            for name in ("prompts", "responses", "response_mask", "rm_scores")
        )
        pairs = list(zip(prompts, responses, strict=True))
        versions = [int(tags[row].get("min_global_steps", step - 1)) for row in kept]
        fields: dict[str, Any] = {
            "tokens": Ragged.from_rows([np.concatenate(pair) for pair in pairs], np.int64),
            "loss_mask": _sequences(prompts, masks, 0, np.int64),
            "reward": np.asarray([row.sum() for row in scores], dtype=np.float32),
            "policy_versions": _sequences(
                prompts,
                [np.where(mask != 0, version, -1) for mask, version in zip(masks, versions, strict=True)],
                -1,
                np.int64,
            ),
            "extra_fields": [{"group_id": sample.group_id, "run_id": sample.run_id} for sample in samples],
        }
        if "rollout_log_probs" in data.keys():  # noqa: SIM118 - a TensorDict is no mapping
            rollout = [rows_of(data["rollout_log_probs"])[row] for row in kept]
            fields["logprobs"] = _sequences(prompts, rollout, 0, np.float32)
        recorder = self.recorded.recorder()
        where: dict[str, Any] = {"step": step, "samples": samples, "policy_version": step - 1}
        recorder.record("trajectory", **where, **fields)
        if "advantages" in data.keys():  # noqa: SIM118
            advantages = [rows_of(data["advantages"])[row] for row in kept]
            recorder.record(
                "prepared_trajectories", **where, **fields, advantages=_sequences(prompts, advantages, 0, np.float32)
            )
        if "old_log_probs" in data.keys():  # noqa: SIM118
            old = padded(data["old_log_probs"]).cpu().numpy()[kept]
            recorder.record("old_log_probs", **where, old_log_probs=old)

    # A rank.

    def mini_batches(self, worker: Any, data: Any, *_: Any, **__: Any) -> Call:
        """The optimizer steps of one RL step: `epochs` passes over the rank's part of the batch."""
        size = _setting(data, "mini_batch_size")
        parts = int(worker.engine.get_data_parallel_size())
        self._updates, self._micro = 0, 0
        self._updates_per_epoch = max(1, int(data.shape[0]) // max(1, int(size) // parts)) if size else 1
        yield
        if self._step:
            self.recorded.recorder(worker.engine.module).end_step(self._step)

    def train_batch(self, worker: Any, data: Any, *_: Any, **__: Any) -> Call:
        self._is_training, self._micro = True, 0
        yield
        self._is_training = False
        self._updates += 1

    def forward_step(self, engine: Any, micro_batch: Any, loss_function: Any, forward_only: bool) -> Call:
        result = yield
        if forward_only or not self._is_training or "advantages" not in micro_batch.keys():  # noqa: SIM118
            return
        samples = ids_of(micro_batch)
        self._step = _step_of(micro_batch)
        where = self._place() | {"micro": self._micro, "samples": samples}
        self._micro += 1
        _, output = result
        model_output, ranks = output["model_output"], ranks_of(micro_batch)
        # Its share of the mini-batch's loss, as in a run with another number of ranks.
        loss = output["loss"] / ranks
        cut = import_module("verl.workers.utils.padding").no_padding_2_padding
        log_probs, entropy = cut(model_output["log_probs"], micro_batch), model_output.get("entropy")
        mask, old, advantages = (padded(micro_batch[name]) for name in ("response_mask", "old_log_probs", "advantages"))
        reference = padded(micro_batch["ref_log_prob"]) if "ref_log_prob" in micro_batch.keys() else None  # noqa: SIM118
        recorder = self.recorded.recorder(engine.module)
        recorder.record(
            "forward_data",
            **where,
            log_probs=log_probs,
            response_mask=mask,
            **({} if entropy is None else {"entropy": cut(entropy, micro_batch)}),
            **({} if reference is None else {"ref_log_probs": reference}),
        )
        recorder.record(
            "is_loss_debug",
            **where,
            log_probs=log_probs,
            old_log_probs=old,
            advantages=advantages,
            effective_valid=mask,
            loss=loss,
        )
        metrics = {
            name: found for name, value in output["metrics"].items() if (found := float_or_none(value)) is not None
        }
        terms = {"pg_loss": "actor/pg_loss", "entropy_loss": "actor/entropy_loss", "kl_loss": "kl_loss"}
        parts: dict[str, Any] = {name: metrics[key] / ranks for name, key in terms.items() if key in metrics}
        recorder.record(
            "loss",
            **where,
            loss=loss,
            **parts,
            metrics={name: value for name, value in metrics.items() if name not in terms.values()},
            extra_info=loss_facts(loss_function, micro_batch),
        )

    def optimizer_step(self, engine: Any) -> Call:
        """Gradients before they are clipped, parameters after the step."""
        if not self._is_training or not self._step:
            yield
            return
        recorder = self.recorded.recorder(engine.module)
        recorder.record_gradients(model=engine.module, **self._place())
        rate = float(engine.optimizer.param_groups[0]["lr"])
        norm = yield
        recorder.record_parameters(model=engine.module, **self._place())
        recorder.record_optimizer(model=engine.module, optimizer=engine.optimizer, **self._place())
        metrics = {"grad_norm": float(norm), "learning_rate": rate}
        recorder.record("update_metrics", **self._place(), metrics=metrics)

    def update_weights(self, worker: Any, global_steps: int | None = None, *_: Any, **__: Any) -> Call:
        """All ranks gather the same tensors; the first one looks at them, in the engine's dtype."""
        recorder = self.recorded.recorder()
        version = int(global_steps or 0)
        if recorder.identity.rank == 0 and recorder.wants("weights", version):
            self._sent = SentWeights(self.recorded, version, _engine_dtype(worker))
        yield
        sent, self._sent = self._sent, None
        if sent is not None:
            sent.record()
            # The last thing of a step; Ray kills the process soon after that of the last one.
            recorder.end_step(version)

    def sent_weights(self, engine: Any, *_: Any, **__: Any) -> Call:
        module = getattr(engine, "module", None)
        model = getattr(module, "_fsdp_wrapped_module", module)
        if self._sent is not None and hasattr(model, "peft_config"):
            self._sent.adapted(model)
        pairs, adapter = yield
        # An adapter alone is no model: an engine holds it beside its weights.
        if self._sent is not None and adapter is None:
            return self._sent.passing(pairs), adapter
        return None

    def _place(self) -> dict[str, Any]:
        epoch, mini_batch = divmod(self._updates, self._updates_per_epoch)
        return {"step": self._step, "epoch": epoch, "mini_batch": mini_batch}


def _engine_dtype(worker: Any) -> Any:
    """What an engine makes of floating-point weights; without an accelerator it takes them as they come."""
    torch = import_module("torch")
    name = str(worker.config.rollout.get("dtype") or "")
    return getattr(torch, name, None) if torch.accelerator.is_available() else None


def _sequences(prompts: Sequence[np.ndarray], responses: Sequence[np.ndarray], before: int, dtype: Any) -> Ragged:
    """Values of responses on the axis of whole sequences: `before` on the prompt."""
    pairs = zip(prompts, responses, strict=True)
    rows = [np.concatenate([np.full(len(prompt), before, dtype), row.astype(dtype)]) for prompt, row in pairs]
    return Ragged.from_rows(rows, dtype)


def _setting(data: Any, name: str) -> Any:
    return import_module("verl.utils.tensordict_utils").get(data, key=name, default=None)


def _step_of(micro_batch: Any) -> int:
    found = micro_batch["global_steps"]
    first = found.tolist() if hasattr(found, "tolist") else found
    while isinstance(first, list | tuple):
        first = first[0]
    return int(first)


RECORDING = VerlRecording
