"""The first optimizer step of a recorded step of verl again: one rank of verl's own worker, without Ray.

The batch is what the ranks recorded of their loss, in their order: tokens, masks, old and reference log probs,
advantages. The parameters are those that the step before left, as recorded or from verl's checkpoint, which has the
optimizer's state as well (else --record optimizer_state,... records it); the first step has the model's own.
"""

import json
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from rldbg.core import Environment, Run, SampleId
from rldbg.frameworks.recorded import process_hooks
from rldbg.frameworks.registry import find_framework
from rldbg.frameworks.rerun import (
    NotRecorded,
    RerunRequest,
    load_learning_rate,
    load_optimizer,
    parameters_after,
    refuse,
    stop_in,
    tell_source,
)
from rldbg.frameworks.verl.samples import PADDING, columns_of
from rldbg.recording import Record, Recording
from rldbg.recording import open as open_recording

_SHARDS = "model_world_size_*_rank_*.pt"
_OF_RESPONSES = {"response_mask": np.int64, "old_log_probs": np.float32, "advantages": np.float32}


@dataclass(frozen=True, slots=True)
class RerunRow:
    """One sample as the loss had it; what belongs to tokens of the response has its length."""

    sample: SampleId
    tokens: np.ndarray
    start: int
    of_response: Mapping[str, np.ndarray]


def recorded_rows(recording: Recording, step: int) -> list[RerunRow]:
    """The samples of the first optimizer step, in the order in which the ranks had them."""
    tokens: dict[SampleId, tuple[np.ndarray, np.ndarray]] = {}
    for record in recording.records("trajectory", step):
        for sample, *pair in zip(record.samples, record.rows("tokens"), record.rows("loss_mask"), strict=True):
            if sample in tokens:
                raise refuse(f"sample {sample} has several outputs in step {step}")
            tokens[sample] = pair[0], pair[1]
    losses = _of_first_update(recording, "is_loss_debug", step)
    if not losses:
        raise refuse(f"step {step} has no is_loss_debug records")
    references = {
        sample: row
        for record in _of_first_update(recording, "forward_data", step)
        if "ref_log_probs" in record.fields
        for sample, row in zip(record.samples, record.rows("ref_log_probs"), strict=True)
    }
    return [row for record in losses for row in _rows_of(record, tokens, references)]


def _of_first_update(recording: Recording, kind: str, step: int) -> list[Record]:
    found = [each for each in recording.records(kind, step) if each.key.epoch == each.key.mini_batch == 0]
    return sorted(found, key=lambda each: each.key)


def _rows_of(
    record: Record,
    tokens: Mapping[SampleId, tuple[np.ndarray, np.ndarray]],
    references: Mapping[SampleId, np.ndarray],
) -> Iterator[RerunRow]:
    columns = {"response_mask": "effective_valid", "old_log_probs": "old_log_probs", "advantages": "advantages"}
    used = zip(*(record.rows(field) for field in columns.values()), strict=True)
    for sample, values in zip(record.samples, used, strict=True):
        given = dict(zip(columns, values, strict=True))
        if sample in references:
            given["ref_log_prob"] = references[sample]
        if sample in tokens:
            ids, mask = tokens[sample]
        elif sample.group_id.startswith(PADDING):
            ids, mask = np.zeros(2, np.int64), np.zeros(2, np.int64)
        else:
            raise refuse(f"sample {sample} has no trajectory")
        start = _response_start(mask, given["response_mask"])
        yield RerunRow(sample, ids, start, {name: value[: len(ids) - start] for name, value in given.items()})


def _response_start(loss_mask: np.ndarray, response_mask: np.ndarray) -> int:
    """Where the response begins: its first trained token is in both masks. One that is not trained on has any."""
    trained, of_response = np.flatnonzero(loss_mask), np.flatnonzero(response_mask)
    if not len(trained):
        return len(loss_mask) - 1
    if not len(of_response):
        return int(trained[0])
    return int(trained[0] - of_response[0])


def batch_of(rows: list[RerunRow], settings: Any) -> Any:
    """verl's own form: jagged tensors, and what its driver says beside them."""
    import torch

    def jagged(values: list[np.ndarray]) -> Any:
        return torch.nested.as_nested_tensor([torch.from_numpy(np.array(row)) for row in values], layout=torch.jagged)

    names = dict.fromkeys(name for row in rows for name in row.of_response)
    columns: dict[str, Any] = {
        name: jagged([row.of_response[name].astype(_OF_RESPONSES.get(name, np.float32)) for row in rows])
        for name in names
    }
    columns["loss_mask"] = columns["response_mask"]
    columns["input_ids"] = jagged([row.tokens.astype(np.int64) for row in rows])
    columns["position_ids"] = jagged([np.arange(len(row.tokens)) for row in rows])
    columns["prompts"] = jagged([row.tokens[: row.start].astype(np.int64) for row in rows])
    columns["responses"] = jagged([row.tokens[row.start :].astype(np.int64) for row in rows])
    columns |= columns_of([row.sample for row in rows])
    actor = settings.actor
    about = {
        "calculate_entropy": bool(actor.calculate_entropy or actor.entropy_coeff != 0),
        "distillation_use_topk": False,
        "distillation_only": False,
        "global_batch_size": actor.ppo_mini_batch_size * settings.rollout.n,
        "mini_batch_size": len(rows),
        "epochs": 1,
        "seed": actor.data_loader_seed,
        "dataloader_kwargs": {"shuffle": False},
        "temperature": settings.rollout.temperature,
    }
    return import_module("verl.utils.tensordict_utils").get_tensordict(columns, about)


def worker_of(settings: Any) -> Any:
    """verl's worker as the only rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    Environment().give(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    worker = import_module("verl.workers.engine_workers").ActorRolloutRefWorker(config=settings, role="actor")
    worker.init_model()
    return worker


def _load_parameters(worker: Any, recording: Recording, step: int, checkpoint: Path, *, recorded: bool) -> None:
    """What is recorded, if it is all of the model, else verl's own checkpoint."""
    import torch

    engine = worker.actor.engine
    named = dict(engine.module.named_parameters())
    latest: dict[str, Any] | None = None
    if recorded:
        try:
            latest = {
                name: torch.from_numpy(np.array(value))
                for name, value in parameters_after(recording, step, named).items()
            }
        except NotRecorded:
            if not any(checkpoint.glob(_SHARDS)):
                raise
    if latest is not None:
        source, continues = "the recording", load_optimizer(engine.optimizer, named, recording, step)
    elif (checkpoint / "model_world_size_1_rank_0.pt").is_file():
        worker.load_checkpoint(str(checkpoint))
        tell_source(f"checkpoint {checkpoint}", optimizer=(checkpoint / "optim_world_size_1_rank_0.pt").is_file())
        return
    else:
        source, continues, latest = f"checkpoint {checkpoint}", False, merged_shards(checkpoint)
    with torch.no_grad():
        for name, parameter in named.items():
            held = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            held.copy_(latest[name].to(held))
    tell_source(source, optimizer=continues)


def merged_shards(checkpoint: Path) -> dict[str, Any]:
    """The whole parameters of a checkpoint that several FSDP ranks saved, one file per rank."""
    import torch

    files = sorted(checkpoint.glob(_SHARDS), key=lambda file: int(file.stem.rpartition("_")[2]))
    if not files or f"_{len(files)}_rank_" not in files[0].name:
        raise refuse(f"{checkpoint} does not have the model_world_size_N_rank_R.pt of all its ranks")
    # verl's own files, which verl itself reads in this way.
    shards = [torch.load(file, map_location="cpu", weights_only=False) for file in files]
    return {name: _whole(name, [shard[name] for shard in shards]) for name in shards[0]}


def _whole(name: str, pieces: list[Any]) -> Any:
    import torch

    placements = getattr(pieces[0], "placements", None)
    if placements is None or placements[0].is_replicate():
        return getattr(pieces[0], "_local_tensor", pieces[0])
    if len(placements) != 1:
        raise refuse(f"{name} is divided along several axes of ranks: --record param,... is needed for it")
    return torch.cat([piece._local_tensor for piece in pieces], dim=placements[0].dim)


def _on_this_machine(settings: Any) -> None:
    """Without an accelerator: what `rldbg run --laptop` changes of every worker, but not the model."""
    import torch
    import yaml
    from omegaconf import OmegaConf

    if torch.accelerator.is_available():
        return
    profile = yaml.safe_load(Path(str(find_framework("verl").file("launch.yaml"))).read_text(encoding="utf-8"))
    Environment().give(**profile["laptop_environment"])
    for change in profile["laptop"]:
        group, _, key = change["key"].partition(".")
        if group == "actor_rollout_ref" and key != "model.path" and "beside" not in change:
            OmegaConf.update(settings, key, yaml.safe_load(str(change["value"])), force_add=True)


def main() -> None:
    rerun = RerunRequest.from_environment()
    if rerun is None:
        raise refuse("this is run by `rldbg rerun`")
    from omegaconf import OmegaConf

    recording = open_recording(rerun.recording)
    whole = OmegaConf.create(json.loads(json.dumps(Run(Path(rerun.recording)).read()["config"]["verl"])))
    correction = whole.algorithm.get("rollout_correction") or {}
    if correction.get("rollout_is"):
        raise refuse("weights of algorithm.rollout_correction.rollout_is are not recorded")
    settings = whole.actor_rollout_ref
    OmegaConf.set_struct(settings, False)
    rows = recorded_rows(recording, rerun.step)
    _on_this_machine(settings)
    hooks = process_hooks()
    if hooks is not None:
        hooks.recorded.proof.note(config={"verl": OmegaConf.to_container(whole)})
    worker = worker_of(settings)
    if rerun.step > 1:
        saved = Path(rerun.checkpoint or Path(whole.trainer.default_local_dir, f"global_step_{rerun.step - 1}"))
        actor = saved / "actor" if (saved / "actor").is_dir() else saved
        _load_parameters(worker, recording, rerun.step - 1, actor, recorded=not rerun.checkpoint)
    else:
        tell_source("the model of the command", optimizer=True)
    load_learning_rate(worker.actor.engine.optimizer, recording, "update_metrics", rerun.step)
    if rerun.pdb:
        stop_in(worker.loss_fn.func)
    worker.update_actor(batch_of(rows, settings))


if __name__ == "__main__":
    main()
