"""A recorded step of GRPOTrainer again: its responses, rewards and parameters come from the recording (RLDBG_RERUN).

A step that cannot be run as it was recorded ends the process: nothing is made up.
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from rldbg.frameworks.rerun import RerunRequest, load_learning_rate, load_optimizer, parameters_after, refuse
from rldbg.recording import Record, Recording
from rldbg.recording import open as open_recording


def prepare(trainer: Any, rerun: RerunRequest) -> None:
    """After the trainer was made, before it trains: one optimizer step, on the recorded responses."""
    recording = open_recording(rerun.recording)
    records = sorted(recording.records("trajectory", rerun.step), key=lambda record: record.key)
    ranks = trainer.accelerator.num_processes
    if [record.key.rank for record in records] != list(range(ranks)):
        known = f"step {rerun.step} has {len(records)} trajectory records"
        raise refuse(f"{known}, and the command has {ranks} ranks: one record per rank can be run again")
    _load_parameters(trainer, recording, rerun.step)
    _replace_rollout(trainer, records)
    trainer.add_callback(_with_optimizer(trainer, recording, rerun.step))
    trainer.args.max_steps = 1
    trainer.args.save_strategy = "no"


def _load_parameters(trainer: Any, recording: Recording, step: int) -> None:
    """Those after the last optimizer step of the step before; step 0 has the command's own."""
    import torch

    if step == 0:
        return
    latest = parameters_after(recording, step - 1, (name for name, _ in trainer.model.named_parameters()))
    with torch.no_grad():
        for name, parameter in trainer.model.named_parameters():
            parameter.copy_(torch.from_numpy(np.array(latest[name])).to(parameter))


def _with_optimizer(trainer: Any, recording: Recording, step: int) -> Any:
    """The optimizer is made when training begins: then it gets its recorded state and learning rate."""
    from transformers import TrainerCallback

    class WithOptimizer(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            if step:
                load_optimizer(trainer.optimizer, dict(trainer.model.named_parameters()), recording, step - 1)
            load_learning_rate(trainer.optimizer, recording, "training_metrics", step)

    return WithOptimizer()


def _replace_rollout(trainer: Any, records: Sequence[Record]) -> None:
    """This rank's responses, and the rewards of all ranks, as TRL gathers them."""
    import torch

    record = records[trainer.accelerator.process_index]
    tokens, masks = list(record.rows("tokens")), list(record.rows("loss_mask"))
    starts = [int(np.flatnonzero(mask)[0]) if mask.any() else len(mask) for mask in map(np.asarray, masks)]
    prompts = [np.asarray(row)[:start].tolist() for row, start in zip(tokens, starts, strict=True)]
    responses = [np.asarray(row)[start:].tolist() for row, start in zip(tokens, starts, strict=True)]
    drawn = [np.asarray(mask)[start:].astype(int).tolist() for mask, start in zip(masks, starts, strict=True)]
    texts = trainer.processing_class.batch_decode(responses, skip_special_tokens=True)
    log_probs = None
    if "logprobs" in record.fields:
        rows = zip(record.rows("logprobs"), starts, strict=True)
        log_probs = [np.asarray(row)[start:].tolist() for row, start in rows]
    has_tools = any(0 in row for row in drawn)
    extra: list[Any] = [row for each in records for row in cast("list[Any]", each.fields["extra_fields"])]
    names = trainer.reward_func_names
    rewards = torch.tensor(
        [[np.nan if row["rewards"][name] is None else row["rewards"][name] for name in names] for row in extra]
    )

    def generate(given: Any) -> tuple[Any, ...]:
        if len(given) != len(prompts):
            raise refuse(f"the step has {len(prompts)} samples, the command generates {len(given)}")
        return prompts, responses, drawn if has_tools else None, texts, log_probs, {}, None, None

    trainer._generate = generate
    trainer._calculate_rewards = lambda *_, **__: rewards.to(trainer.accelerator.device)
