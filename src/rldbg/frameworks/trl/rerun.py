"""A recorded step of GRPOTrainer again: its responses, rewards and parameters come from the recording (RLDBG_RERUN).

A step that cannot be run as it was recorded ends the process: nothing is made up.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from rldbg.frameworks.hook_findings import read_hooks
from rldbg.frameworks.rerun import (
    NotRecorded,
    RerunRequest,
    load_learning_rate,
    load_optimizer,
    parameters_after,
    refuse,
    tell_source,
)
from rldbg.frameworks.trl.places import first_update
from rldbg.frameworks.trl.sequences import distinct
from rldbg.recording import Record, Recording
from rldbg.recording import open as open_recording


class _NoEngine:
    """Instead of TRL's vLLM engine: responses are recorded, so that none is asked or sent weights."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.vllm_client = self

    def get_server_info(self) -> dict[str, Any]:
        return {"model_config": {"logprobs_mode": "processed_logprobs"}}

    def sync_weights(self) -> None: ...


def without_engine(trainer: Any) -> None:
    """Before the trainer is made: it would wait for its server, which is long gone, or load the model a second time."""
    for kind in type(trainer).__mro__:
        module = sys.modules[kind.__module__]
        if hasattr(module, "VLLMGeneration"):
            module.VLLMGeneration = _NoEngine  # type: ignore[attr-defined]


def prepare(trainer: Any, rerun: RerunRequest) -> None:
    """After the trainer was made, before it trains: one optimizer step, on the recorded responses."""
    recording = open_recording(rerun.recording)
    records = sorted(recording.records("trajectory", rerun.step), key=lambda record: record.key)
    ranks = trainer.accelerator.num_processes
    if [record.key.rank for record in records] != list(range(ranks)):
        known = f"step {rerun.step} has {len(records)} trajectory records"
        raise refuse(f"{known}, and the command has {ranks} ranks: one record per rank can be run again")
    checkpoint = _load_parameters(trainer, recording, rerun)
    _replace_rollout(trainer, records)
    trainer.add_callback(_with_optimizer(trainer, recording, rerun.step, checkpoint))
    trainer.args.max_steps = 1
    trainer.args.save_strategy = "no"


def _load_parameters(trainer: Any, recording: Recording, rerun: RerunRequest) -> Path | None:
    """Loads the parameters after the last optimizer step of the previous step: as recorded, else from the checkpoint,
    whose folder is returned. Step 0 has the command's own."""
    import torch

    if rerun.step == 0:
        return None
    named = dict(trainer.model.named_parameters())
    if not rerun.checkpoint:
        try:
            latest = parameters_after(recording, rerun.step - 1, named)
        except NotRecorded:
            checkpoint = _saved(Path(rerun.recording), first_update(trainer, rerun.step))
            if checkpoint is None:
                raise
        else:
            with torch.no_grad():
                for name, parameter in named.items():
                    parameter.copy_(torch.from_numpy(np.array(latest[name])).to(parameter))
            return None
    else:
        checkpoint = Path(rerun.checkpoint)
    trainer._load_from_checkpoint(str(checkpoint))
    return checkpoint


def _saved(run: Path, updates: int) -> Path | None:
    """The checkpoint that the recorded run saved after that many optimizer steps."""
    folders = (
        Path(proof["checkpoints"], f"checkpoint-{updates}") for proof in read_hooks(run) if "checkpoints" in proof
    )
    return next((folder for folder in folders if folder.is_dir()), None)


def _with_optimizer(trainer: Any, recording: Recording, step: int, checkpoint: Path | None) -> Any:
    """The optimizer is made when training begins: then it gets its state and learning rate."""
    from transformers import TrainerCallback

    class WithOptimizer(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            source, continues = "the model of the command", True
            if checkpoint is not None:
                source, continues = f"checkpoint {checkpoint}", (checkpoint / "optimizer.pt").is_file()
                trainer._load_optimizer_and_scheduler(str(checkpoint))
            elif step:
                named = dict(trainer.model.named_parameters())
                source, continues = "the recording", load_optimizer(trainer.optimizer, named, recording, step - 1)
            load_learning_rate(trainer.optimizer, recording, "training_metrics", step)
            tell_source(source, optimizer=continues)

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
    names = distinct(trainer.reward_func_names)
    rewards = torch.tensor(
        [[np.nan if row["rewards"][name] is None else row["rewards"][name] for name in names] for row in extra]
    )

    def generate(given: Any) -> tuple[Any, ...]:
        if len(given) != len(prompts):
            raise refuse(f"the step has {len(prompts)} samples, the command generates {len(given)}")
        if any(kind.__name__ == "RLOOTrainer" for kind in type(trainer).__mro__):
            return prompts, responses, texts
        return prompts, responses, drawn if has_tools else None, texts, log_probs, {}, None, None

    trainer._generate = generate
    trainer._calculate_rewards = lambda *_, **__: rewards.to(trainer.accelerator.device)
