"""One recorded step of a framework's own trainer again, in one process, with what was recorded.

The recorded command runs again and its hooks give the trainer the step's responses, rewards and parameters; or a
program of the framework's folder makes the framework's own worker and gives it the step's batch.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from rldbg.core import IncompleteDataError, Run, UsageError
from rldbg.frameworks import Framework, find_framework, frameworks, read_hooks, recorded_hooks

_OF_UPDATE = ("forward_data", "is_loss_debug", "loss", "gradient", "param")
_OF_ROLLOUT = ("trajectory", "old_log_probs")


class FrameworkRerun(NamedTuple):
    """The new run, and the kinds that were made again."""

    folder: Path
    kinds: tuple[str, ...]
    source: str
    """Where the parameters came from."""


def framework_of(run: Path) -> str:
    """The framework whose hooks recorded a run; empty for a run of our own trainer, or of none."""
    config = Run(run).read().get("config") if (run / "run.json").is_file() else None
    names = {framework.name for framework, _ in recorded_hooks()}
    return next((name for name in config or {} if name in names), "")


def rerun_step(run: Path, step: int, *, debugger: bool, checkpoint: Path | None = None) -> FrameworkRerun:
    """Runs the step; what the framework prints passes through. `checkpoint` is the framework's own, of the step before;
    without one the recorded parameters are taken, or, where they are not all of the model, the run's own checkpoint."""
    if checkpoint is not None and not checkpoint.is_dir():
        raise UsageError(f"there is no checkpoint folder {checkpoint}", "name the folder that the framework saved")
    framework = find_framework(framework_of(run))
    if not framework.rerun:
        able = ", ".join(each.title for each in frameworks() if each.rerun)
        known = f"supported: steps of {able} and of rldbg train"
        raise UsageError(f"a step of {framework.title} cannot be run again yet", known)
    facts = Run(run).read()
    made = _OF_UPDATE if framework.rerun == "program" else (*_OF_ROLLOUT, *_OF_UPDATE)
    kinds = tuple(kind for kind in made if (run / "recording" / kind).is_dir())
    again = _fresh(run / "rerun" / f"step_{step}")
    saved = "" if checkpoint is None else str(checkpoint.absolute())
    asked = json.dumps({"recording": str(run.absolute()), "step": step, "pdb": debugger, "checkpoint": saved})
    flags = ["--run", str(again.absolute()), "--record", ",".join(kinds), "--full-length", "--name-suffix", ""]
    flags += ["--no-doctor", "--wait", "0", "--env", f"RLDBG_RERUN={asked}"]
    command = [sys.executable, "-m", "rldbg", "run", *flags, "--", *_command(run, facts, framework)]
    done = subprocess.run(command, cwd=facts.get("cwd") or None)
    if done.returncode:
        raise IncompleteDataError(f"the command ended with exit code {done.returncode}", f"see {again}/logs")
    told = next(
        (proof["rerun"] for proof in read_hooks(again) if "rerun" in proof), {"parameters": "", "optimizer": False}
    )
    if not told["optimizer"]:
        # What the optimizer makes of the gradients depends on its state.
        kinds = tuple(kind for kind in kinds if kind != "param")
    continues = (
        "continues" if told["optimizer"] else "starts without its state: parameters after the step are not compared"
    )
    return FrameworkRerun(again, kinds, f"parameters: {told['parameters']}; the optimizer {continues}")


def _command(run: Path, facts: dict[str, Any], framework: Framework) -> list[str]:
    if framework.rerun == "command":
        if not facts.get("command"):
            raise IncompleteDataError(f"{run / 'run.json'} does not contain the command", "run it with rldbg run")
        return [*facts["command"]]
    pythons = (str(proof.get("python", "")) for proof in read_hooks(run) if framework.name in proof.get("config", {}))
    python = next(pythons, "")
    if not Path(python).is_file():
        named = f"there is no {python} here" if python else f"{run / 'hooks'} does not contain the interpreter"
        raise IncompleteDataError(f"{framework.title} cannot be started: {named}", "rerun where it was recorded")
    return [python, "-m", f"{framework.package}.rerun"]


def _fresh(folder: Path) -> Path:
    number = 1
    place = folder
    while place.exists():
        number += 1
        place = folder.with_name(f"{folder.name}.{number}")
    return place
