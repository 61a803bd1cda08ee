"""Checkpoints: RUN/checkpoints/step_000010/, made under a temporary name, so that one with its name is whole.

policy.pt    model and optimizer, full tensors, loadable with weights_only
state.json   {"step": the next step to train}
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from rldbg.core import IncompleteDataError


def save_checkpoint(folder: Path, model: Any, optimizer: Any, *, step: int, is_writer: bool) -> None:
    """A collective under FSDP; only one rank writes."""
    import torch
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights, moments = get_state_dict(model, optimizer, options=options)
    if not is_writer:
        return
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    temporary.mkdir(parents=True)
    torch.save({"model": weights, "optimizer": moments}, temporary / "policy.pt")
    (temporary / "state.json").write_text(json.dumps({"step": step}), encoding="utf-8")
    temporary.replace(folder)


def load_checkpoint(folder: Path, model: Any, optimizer: Any) -> None:
    import torch
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

    file = folder / "policy.pt"
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise IncompleteDataError(
            f"cannot read the checkpoint {file}: {error.strerror}", "give --resume another"
        ) from error
    options = StateDictOptions(full_state_dict=True)
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"], options=options
    )


def find_checkpoint(path: Path) -> tuple[Path, int]:
    """The checkpoint a user names, itself or by its run folder (then the newest), and the step it goes on with."""
    candidates = sorted((path / "checkpoints").glob("step_*")) if (path / "checkpoints").is_dir() else [path]
    for folder in reversed(candidates):
        file = folder / "state.json"
        if file.is_file() and (folder / "policy.pt").is_file():
            return folder, int(json.loads(file.read_text(encoding="utf-8"))["step"])
    raise IncompleteDataError(
        f"there is no checkpoint in {path}", "train with checkpoint.every_n_steps=10 to have some"
    )


def prune_checkpoints(parent: Path, keep_last: int) -> None:
    """Removes all but the newest."""
    for folder in sorted(parent.glob("step_*"))[: -max(keep_last, 1)]:
        shutil.rmtree(folder)
