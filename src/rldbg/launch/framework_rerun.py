"""One recorded step of a framework's own trainer again: the recorded command, in one process, with what was recorded.

The step's hooks give the trainer the recorded responses and rewards, and the parameters that the step before left.
"""

import json
import subprocess
import sys
from pathlib import Path

from rldbg.core import IncompleteDataError, Run, UsageError
from rldbg.frameworks import find_framework, recorded_hooks

# Not param: the optimizer's moments are not recorded.
_KINDS = ("trajectory", "old_log_probs", "forward_data", "is_loss_debug", "loss", "gradient")


def framework_of(run: Path) -> str:
    """The framework whose hooks recorded a run; empty for a run of our own trainer, or of none."""
    config = Run(run).read().get("config") if (run / "run.json").is_file() else None
    names = {framework.name for framework, _ in recorded_hooks()}
    return next((name for name in config or {} if name in names), "")


def rerun_step(run: Path, step: int, *, debugger: bool) -> Path:
    """Runs the step and returns the folder of the new run; the command's own output passes through."""
    name = framework_of(run)
    framework = find_framework(name)
    able = {each.name: each.title for each, hook in recorded_hooks() if hook.handler == "created"}
    if name not in able:
        known = f"steps of {', '.join(able.values())} and of rldbg train can"
        raise UsageError(f"a step of {framework.title} cannot be run again yet", known)
    facts = Run(run).read()
    if not facts.get("command"):
        raise IncompleteDataError(f"{run / 'run.json'} does not say which command was run", "run it with rldbg run")
    again = _fresh(run / "rerun" / f"step_{step}")
    asked = json.dumps({"recording": str(run.absolute()), "step": step, "pdb": debugger})
    flags = ["--run", str(again), "--record", ",".join(_KINDS), "--full-length", "--name-suffix", "", "--no-doctor"]
    flags += ["--wait", "0", "--env", f"RLDBG_RERUN={asked}"]
    command = [sys.executable, "-m", "rldbg", "run", *flags, "--", *facts["command"]]
    done = subprocess.run(command, cwd=facts.get("cwd") or None)
    if done.returncode:
        raise IncompleteDataError(f"the command ended with exit code {done.returncode}", f"see {again}/logs")
    return again


def _fresh(folder: Path) -> Path:
    number = 1
    place = folder
    while place.exists():
        number += 1
        place = folder.with_name(f"{folder.name}.{number}")
    return place
