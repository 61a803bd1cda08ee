"""Checkpoints: RUN/checkpoints/step_000010/, renamed into place once complete.

policy.pt    model and optimizer, full tensors, loadable with weights_only
state.json   {"step": the next step to train}

In remote_api mode the policy is the service's: there is no policy.pt, and state.json has the `remote` path of its
snapshot there.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rldbg.core import IncompleteDataError, UsageError, explained_as


class FoundCheckpoint(NamedTuple):
    """A complete checkpoint. `remote` names the snapshot of a training service that holds its policy."""

    folder: Path
    step: int
    remote: str | None


def save_checkpoint(folder: Path, model: Any, optimizer: Any, *, step: int, is_writer: bool) -> None:
    """A collective under FSDP; only one rank writes."""
    import torch
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights, moments = get_state_dict(model, optimizer, options=options)
    if not is_writer:
        return
    with _made_whole(folder, {"step": step}) as temporary:
        torch.save({"model": weights, "optimizer": moments}, temporary / "policy.pt")


def save_remote_checkpoint(folder: Path, snapshot: str, *, step: int) -> None:
    with _made_whole(folder, {"step": step, "remote": snapshot}):
        pass


@contextmanager
def _made_whole(folder: Path, state: dict[str, Any]) -> Iterator[Path]:
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    temporary.mkdir(parents=True)
    yield temporary
    (temporary / "state.json").write_text(json.dumps(state), encoding="utf-8")
    temporary.replace(folder)


def load_checkpoint(folder: Path, model: Any, optimizer: Any) -> None:
    import torch
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

    file = folder / "policy.pt"
    with explained_as(
        IncompleteDataError, OSError, f"cannot read the checkpoint {file}", "choose another for --resume"
    ):
        state = torch.load(file, map_location="cpu", weights_only=True)
    options = StateDictOptions(full_state_dict=True)
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"], options=options
    )


def find_checkpoint(path: Path, *, mode: str) -> FoundCheckpoint:
    """The checkpoint a user gives, directly or as a run folder (then the newest); it must be of this mode."""
    candidates = sorted((path / "checkpoints").glob("step_*")) if (path / "checkpoints").is_dir() else [path]
    for folder in reversed(candidates):
        file = folder / "state.json"
        state = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if "remote" not in state and not (folder / "policy.pt").is_file():
            continue
        theirs = "remote_api" if "remote" in state else "self_hosted"
        if theirs != mode:
            raise UsageError(f"{folder} is a checkpoint of {theirs} mode", f"resume it with mode={theirs}")
        return FoundCheckpoint(folder, int(state["step"]), state.get("remote"))
    raise IncompleteDataError(f"no checkpoint found in {path}", "train with checkpoint.every_n_steps=10 to write some")


def prune_checkpoints(parent: Path, keep_last: int) -> None:
    """Removes all but the newest."""
    for folder in sorted(parent.glob("step_*"))[: -max(keep_last, 1)]:
        shutil.rmtree(folder)
