"""Records of verl: the driver has whole batches (trajectories, advantages, old log probs, metrics), each rank its
micro-batches, gradients and parameters. What both say of a sample is joined by its id.

Steps count from 1, as verl's. B samples, R response tokens; verl's own tensors are jagged.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from rldbg.core import Environment
from rldbg.frameworks.recorded import Recorded, RecordedCall
from rldbg.frameworks.verl.samples import extras_of, ids_of, loss_facts, numbers_of, padded, ranks_of, rows_of
from rldbg.frameworks.verl.turns import AgentTurns, versions_of
from rldbg.frameworks.weight_recording import SentWeights
from rldbg.recording import OTHER_MODEL, Ragged

_OF_BATCH = frozenset(
    {"prompts", "responses", "response_mask", "rm_scores", "token_level_rewards", "rollout_log_probs", "advantages"}
    | {"old_log_probs", "values", "returns"}
)


class VerlRecording(AgentTurns):
    """One process: the driver, an agent loop, or a rank that trains."""

    def __init__(self, recorded: Recorded) -> None:
        super().__init__(recorded)
        self._step = 0
        self._updates = 0
        self._updates_per_epoch = 1
        self._micro = 0
        self._is_training = False
        self._critics: dict[int, tuple[Any, Any]] = {}
        self._sent: SentWeights | None = None

    # The driver.

    def advantage(self, trainer: Any, *_: Any, **__: Any) -> RecordedCall:
        """Once it has advantages, the batch is complete: responses, rewards, old and reference log probs, values."""
        batch = yield
        step = int(trainer.global_steps)
        if self._step == 0:
            self.configured(import_module("omegaconf").OmegaConf.to_container(trainer.config, resolve=True))
        self._step = step
        queue = import_module("transfer_queue")
        data = queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id)
        self._record_batch(step, data, batch.tags)

    def step(self, trainer: Any, metrics: dict[str, Any], *_: Any, **__: Any) -> RecordedCall:
        step = int(trainer.global_steps)
        yield
        recorder = self.recorded.recorder()
        recorder.record("training_metrics", step=step, metrics=numbers_of(metrics))
        recorder.end_step(step)

    def _record_batch(self, step: int, data: Any, tags: Sequence[Mapping[str, Any]]) -> None:
        kept = [row for row, tag in enumerate(tags) if not tag.get("is_padding")]
        samples = [ids_of(data)[row] for row in kept]
        found = _OF_BATCH.intersection(data.keys())
        columns = {name: [rows[row] for row in kept] for name in found for rows in [rows_of(data[name])]}
        prompts, responses, masks = (columns[name] for name in ("prompts", "responses", "response_mask"))
        pairs = list(zip(prompts, responses, strict=True))
        versions = [int(tags[row].get("min_global_steps", step - 1)) for row in kept]
        fields: dict[str, Any] = {
            "tokens": Ragged.from_rows([np.concatenate(pair) for pair in pairs], np.int64),
            "loss_mask": _sequences(prompts, masks, 0, np.int64),
            "reward": _totals(columns.get("token_level_rewards", columns["rm_scores"])),
            "extra_fields": [
                {"group_id": sample.group_id, "run_id": sample.run_id} | extras_of(data, row)
                for sample, row in zip(samples, kept, strict=True)
            ],
        }
        fields["policy_versions"] = Ragged.from_rows(
            [
                _versions(extra.get("turns"), pair, mask, version)
                for extra, pair, mask, version in zip(fields["extra_fields"], pairs, masks, versions, strict=True)
            ],
            np.int64,
        )
        if "token_level_rewards" in columns:
            # Less the divergence from the reference; what the reward function said is beside it.
            for extra, score in zip(fields["extra_fields"], _totals(columns["rm_scores"]), strict=True):
                extra["score"] = float(score)
        if "rollout_log_probs" in columns:
            fields["logprobs"] = _sequences(prompts, columns["rollout_log_probs"], 0, np.float32)
        recorder = self.recorded.recorder()
        where: dict[str, Any] = {"step": step, "samples": samples, "policy_version": step - 1}
        recorder.record("trajectory", **where, **fields)
        # Without a critic, returns are the advantages again.
        learned = ("advantages", "values", "returns") if "values" in columns else ("advantages",)
        estimates: dict[str, Any] = {name: _sequences(prompts, columns[name], 0, np.float32) for name in learned}
        recorder.record("prepared_trajectories", **where, **fields, **estimates)
        if "old_log_probs" in columns:
            recorder.record(
                "old_log_probs", **where, old_log_probs=Ragged.from_rows(columns["old_log_probs"], np.float32)
            )

    # A rank.

    def mini_batches(self, worker: Any, data: Any, *_: Any, **__: Any) -> RecordedCall:
        """The optimizer steps of one RL step: `epochs` passes over the rank's part of the batch."""
        size = _setting(data, "mini_batch_size")
        parts = int(worker.engine.get_data_parallel_size())
        self._updates, self._micro = 0, 0
        self._updates_per_epoch = max(1, int(data.shape[0]) // max(1, int(size) // parts)) if size else 1
        yield
        if self._step and id(worker.engine) not in self._critics:
            self.recorded.recorder(worker.engine.module).end_step(self._step)

    def train_batch(self, worker: Any, data: Any, *_: Any, **__: Any) -> RecordedCall:
        self._is_training, self._micro = True, 0
        yield
        self._is_training = False
        self._updates += 1

    def forward_step(self, engine: Any, micro_batch: Any, loss_function: Any, forward_only: bool) -> RecordedCall:
        result = yield
        if forward_only or not self._is_training or "advantages" not in micro_batch.keys():  # noqa: SIM118
            return
        self._step = _step_of(micro_batch)
        where = self._place() | {"micro": self._micro, "samples": ids_of(micro_batch)}
        self._micro += 1
        _, output = result
        facts = loss_facts(loss_function, micro_batch)
        if "values" in output["model_output"]:
            self._value_loss(engine, micro_batch, output, where, facts)
        else:
            self._policy_loss(engine, micro_batch, output, where, facts)

    def _value_loss(self, engine: Any, micro_batch: Any, output: Any, where: dict[str, Any], facts: Any) -> None:
        """A critic's micro-batch. Its parameters are named after it: the policy's have the same names."""
        if id(engine) not in self._critics:
            named = import_module("torch").nn.ModuleDict({"critic": engine.module})
            self._critics[id(engine)] = (engine, named)  # kept alive, or its id would be given to another engine
        cut = import_module("verl.workers.utils.padding").no_padding_2_padding
        self.recorded.recorder(self._critics[id(engine)][1]).record(
            "value_loss",
            **where,
            values=cut(output["model_output"]["values"], micro_batch),
            old_values=padded(micro_batch["values"]),
            returns=padded(micro_batch["returns"]),
            response_mask=padded(micro_batch["response_mask"]),
            loss=output["loss"] / ranks_of(micro_batch),
            metrics=numbers_of(output["metrics"]),
            extra_info=facts,
        )

    def _policy_loss(self, engine: Any, micro_batch: Any, output: Any, where: dict[str, Any], facts: Any) -> None:
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
        metrics = numbers_of(output["metrics"])
        terms = {"pg_loss": "actor/pg_loss", "entropy_loss": "actor/entropy_loss", "kl_loss": "kl_loss"}
        parts: dict[str, Any] = {name: metrics[key] / ranks for name, key in terms.items() if key in metrics}
        recorder.record(
            "loss",
            **where,
            loss=loss,
            **parts,
            metrics={name: value for name, value in metrics.items() if name not in terms.values()},
            extra_info=facts,
        )

    def optimizer_step(self, engine: Any) -> RecordedCall:
        """Gradients before they are clipped, parameters after the step."""
        if not self._is_training or not self._step:
            yield
            return
        _, critic = self._critics.get(id(engine), (None, None))
        model, first = (engine.module, 0) if critic is None else (critic, OTHER_MODEL)
        recorder = self.recorded.recorder(model)
        recorder.record_gradients(model=model, first=first, **self._place())
        rate = float(engine.optimizer.param_groups[0]["lr"])
        norm = yield
        recorder.record_parameters(model=model, first=first, **self._place())
        if critic is None:
            # What the driver says of a critic's update is in its metrics.
            recorder.record_optimizer(model=model, optimizer=engine.optimizer, **self._place())
            metrics = {"grad_norm": float(norm), "learning_rate": rate}
            recorder.record("update_metrics", **self._place(), metrics=metrics)

    def update_weights(self, worker: Any, global_steps: int | None = None, *_: Any, **__: Any) -> RecordedCall:
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

    def sent_weights(self, engine: Any, *_: Any, **__: Any) -> RecordedCall:
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
    """What an engine makes of floating-point weights: by its setting, or by the server that stands in for it, since
    verl sends weights with merged adapters in a dtype of their own. Else, without an accelerator, it takes them as they
    come."""
    torch = import_module("torch")
    if address := Environment().text("RLDBG_LAPTOP_SERVER"):
        post = import_module("rldbg.frameworks.verl.cpu_rollout").post
        return getattr(torch, post(address, "/server_info", None)["dtype"])
    name = str(worker.config.rollout.get("dtype") or "")
    return getattr(torch, name, None) if torch.accelerator.is_available() else None


def _sequences(prompts: Sequence[np.ndarray], responses: Sequence[np.ndarray], before: int, dtype: Any) -> Ragged:
    """Values of responses on the axis of whole sequences: `before` on the prompt."""
    pairs = zip(prompts, responses, strict=True)
    rows = [np.concatenate([np.full(len(prompt), before, dtype), row.astype(dtype)]) for prompt, row in pairs]
    return Ragged.from_rows(rows, dtype)


def _versions(turns: Any, pair: tuple[np.ndarray, np.ndarray], mask: np.ndarray, version: int) -> np.ndarray:
    """Which weights made each token: as the engine's answers say, else all that is trained on by one version."""
    known = versions_of(turns, np.concatenate(pair)) if turns else None
    if known is not None:
        return known
    return np.concatenate([np.full(len(pair[0]), -1, np.int64), np.where(mask != 0, version, -1)])


def _totals(rows: Sequence[np.ndarray]) -> np.ndarray:
    return np.asarray([row.sum() for row in rows], dtype=np.float32)


def _setting(data: Any, name: str) -> Any:
    return import_module("verl.utils.tensordict_utils").get(data, key=name, default=None)


def _step_of(micro_batch: Any) -> int:
    found = micro_batch["global_steps"]
    first = found.tolist() if hasattr(found, "tolist") else found
    while isinstance(first, list | tuple):
        first = first[0]
    return int(first)


RECORDING = VerlRecording
