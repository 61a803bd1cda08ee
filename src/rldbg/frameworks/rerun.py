"""What every framework's rerun of a recorded step has in common: what is asked for, the parameters, the debugger.

A step that cannot be run as it was recorded ends the process: nothing is made up.
"""

import inspect
import json
import pdb
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rldbg.core import Environment
from rldbg.recording import CannotAssemble, Record, Recording, assemble


@dataclass(frozen=True, slots=True)
class Rerun:
    """What `rldbg rerun` asks for (RLDBG_RERUN)."""

    recording: str
    step: int
    pdb: bool

    @classmethod
    def from_environment(cls) -> "Rerun | None":
        text = Environment().text("RLDBG_RERUN")
        return cls(**json.loads(text)) if text else None


def refuse(text: str) -> SystemExit:
    return SystemExit(f"rldbg: {text}")


class NotRecorded(SystemExit):
    """Parameters that a step needs and the recording does not have."""


def parameters_after(recording: Recording, step: int, names: Iterable[str]) -> dict[str, np.ndarray]:
    """The values that the last optimizer step of a step left: pieces of several ranks are put together."""
    pieces: dict[str, dict[tuple[int, int], list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in recording.records("param", step):
        pieces[str(record.fields["param_name"])][record.key.epoch, record.key.mini_batch].append(record)
    found = {}
    for name in names:
        last = pieces[name][max(pieces[name])] if name in pieces else []
        if not last or any("param" not in record.fields for record in last):
            raise NotRecorded(f"rldbg: not all parameters of step {step} are recorded: {name}; use --record param,...")
        try:
            found[name] = assemble(last)[0].array("param")
        except CannotAssemble as error:
            raise refuse(f"parameter {name} of step {step} cannot be put together: {error}") from error
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
