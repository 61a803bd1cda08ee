"""What every framework's rerun of a recorded step has in common: what is asked for, the parameters, the debugger.

A step that cannot be run as it was recorded ends the process: nothing is made up.
"""

import inspect
import json
import pdb
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rldbg.core import Environment
from rldbg.frameworks.recorded import process_hooks
from rldbg.recording import CannotAssemble, Record, Recording, assemble


@dataclass(frozen=True, slots=True)
class RerunRequest:
    """What `rldbg rerun` asks for (RLDBG_RERUN)."""

    recording: str
    step: int
    pdb: bool
    checkpoint: str = ""
    """The framework's own checkpoint of the step before; that of the recorded run if it is empty."""

    @classmethod
    def from_environment(cls) -> "RerunRequest | None":
        text = Environment().text("RLDBG_RERUN")
        return cls(**json.loads(text)) if text else None


def refuse(text: str) -> SystemExit:
    return SystemExit(f"rldbg: {text}")


class NotRecorded(SystemExit):
    """Parameters that a step needs and the recording does not have."""


def tell_source(parameters: str, *, optimizer: bool) -> None:
    """Where the parameters come from, and whether the optimizer continues: for `rldbg rerun`, which reads it."""
    hooks = process_hooks()
    if hooks is not None:
        hooks.recorded.proof.note(rerun={"parameters": parameters, "optimizer": optimizer})


def parameters_after(recording: Recording, step: int, names: Iterable[str]) -> dict[str, np.ndarray]:
    """The values that the last optimizer step of a step left."""
    found = _left_by(recording, "param", step)
    missing = next((name for name in names if name not in found), None)
    if missing is not None:
        words = f"not all parameters of step {step} are recorded ({missing}), and there is no checkpoint of it"
        raise NotRecorded(f"rldbg: {words}; use --record param,..., save one per step, or name one: --model FOLDER")
    return found


def load_optimizer(optimizer: Any, named: Mapping[str, Any], recording: Recording, step: int) -> bool:
    """The state after the last optimizer step of a step, if it is recorded; else the optimizer starts without state."""
    import torch

    recorded = _left_by(recording, "optimizer_state", step)
    for name, array in recorded.items():
        parameter, _, key = name.rpartition(":")
        value = torch.from_numpy(np.array(array))
        if value.dim():
            made = torch.zeros_like(named[parameter])
            (made.to_local() if hasattr(made, "to_local") else made).copy_(value)
            value = made
        optimizer.state[named[parameter]][key] = value
    return bool(recorded)


def load_learning_rate(optimizer: Any, recording: Recording, kind: str, step: int) -> None:
    """That of the step's first update: a schedule that is run for one step may have another."""
    for record in recording.records(kind, step):
        metrics: Any = record.fields["metrics"]
        if record.key.epoch == record.key.mini_batch == 0 and "learning_rate" in metrics:
            for group in optimizer.param_groups:
                group["lr"] = float(metrics["learning_rate"])


def _left_by(recording: Recording, kind: str, step: int) -> dict[str, np.ndarray]:
    """Tensors after the last optimizer step of a step, by name: pieces of several ranks are put together."""
    pieces: dict[str, dict[tuple[int, int], list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in recording.records(kind, step):
        if kind in record.fields:
            pieces[str(record.fields["param_name"])][record.key.epoch, record.key.mini_batch].append(record)
    found = {}
    for name, by_update in pieces.items():
        try:
            found[name] = assemble(by_update[max(by_update)])[0].array(kind)
        except CannotAssemble as error:
            raise refuse(f"{kind} {name} of step {step} cannot be put together: {error}") from error
    return found


def stop_in(function: Any) -> None:
    """pdb at the first line of a function, whenever it is called: the framework's own loss."""
    code = inspect.unwrap(function).__code__
    first = next(line for *_, line in code.co_lines() if line and line > code.co_firstlineno)
    debugger = pdb.Pdb(nosigint=True)
    debugger.reset()
    debugger.set_break(code.co_filename, first)
    debugger.botframe = sys._getframe()
    debugger.set_continue()
    sys.settrace(debugger.trace_dispatch)
