"""A recorded step of GRPOTrainer again: its responses, rewards and parameters come from the recording (RLDBG_RERUN).

A step that cannot be run as it was recorded ends the process: nothing is made up.
"""

from typing import Any

import numpy as np

from rldbg.frameworks.rerun import Rerun, parameters_after, refuse
from rldbg.recording import Record, Recording
from rldbg.recording import open as open_recording


def prepare(trainer: Any, rerun: Rerun) -> None:
    """After the trainer was made, before it trains: one optimizer step, on the recorded responses."""
    if trainer.accelerator.num_processes != 1:
        raise refuse("a step is run again in one process: give the command of one rank")
    recording = open_recording(rerun.recording)
    records = list(recording.records("trajectory", rerun.step))
    if len(records) != 1:
        raise refuse(f"step {rerun.step} has {len(records)} trajectory records; one can be run again")
    _load_parameters(trainer, recording, rerun.step)
    _replace_rollout(trainer, records[0])
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


def _replace_rollout(trainer: Any, record: Record) -> None:
    import torch

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
    extra: Any = record.fields["extra_fields"]
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
