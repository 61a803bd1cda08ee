"""`rerun`: one recorded policy step executed again, in one process, on CPU, without Ray and without inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rldbg.core import IncompleteDataError, UsageError, call_under_pdb
from rldbg.recording import Recording
from rldbg.recording import open as open_recording
from rldbg.trainer.recipe import parse_recipe, recipe_from_data
from rldbg.trainer.rerun.capsule_reader import Capsule
from rldbg.trainer.rerun.execution import StepExecution
from rldbg.trainer.rerun.noise import measure_noise
from rldbg.trainer.rerun.partial import PartialExecution
from rldbg.trainer.rerun.stages import RerunReport, RerunStage, StageMeasured, StageTolerance, StageVerdict
from rldbg.trainer.settings import Recipe


def rerun(
    path: Path | str,
    step: int,
    *,
    rank: int | None = None,
    changes: Sequence[str] = (),
    debugger: bool = False,
) -> RerunReport:
    """Executes a recorded step again and compares every stage with the recording.

    `changes` are recipe overrides (`algorithm.entropy_coeff=0`): the report then shows what they would have done.
    `debugger` stops in pdb at the beginning of the step.
    """
    recording = open_recording(path)
    if step not in recording.steps():
        steps = recording.steps()
        raise IncompleteDataError(
            f"{recording.title} has no step {step}; it has {steps[0]} to {steps[-1]}"
            if steps
            else f"{recording.title} is empty",
            f"rldbg show {recording.title}",
        )
    changed = dict(_override(change) for change in changes)
    execution = _execution(recording, step, rank, changed)
    stages = call_under_pdb(execution.execute) if debugger else execution.execute()
    return RerunReport(recording.title, step, execution.ranks, tuple(stages), changed, {"loss": sum(execution.losses)})


def changed_recipe(data: Mapping[str, Any], changes: Sequence[str]) -> Recipe:
    """A capsule's recipe with overrides, as `algorithm.entropy_coeff=0`."""
    changed = dict(_override(change) for change in changes)
    return recipe_from_data(_changed(data, changed), source="capsule")


def _execution(
    recording: Recording, step: int, rank: int | None, changed: Mapping[str, Any]
) -> StepExecution | PartialExecution:
    if step in recording.steps("capsule"):
        capsule = Capsule(recording, step)
        recipe = recipe_from_data(_changed(capsule.recipe, changed), source=f"capsule of step {step}")
        return StepExecution(capsule, recipe, rank=rank)
    recipe = _recipe_of_run(recording, changed)
    return PartialExecution(recording, step, recipe, rank=rank)


def _recipe_of_run(recording: Recording, changed: Mapping[str, Any]) -> Recipe:
    """The recipe in run.json; a recording without one is assumed to use the defaults."""
    config = recording.run_facts().get("config") or {}
    recipe = parse_recipe(config, source="run.json").recipe if config else Recipe()
    return recipe_from_data(_changed(asdict(recipe), changed), source="run.json")


def _override(text: str) -> tuple[str, Any]:
    """`key=value`, the value as YAML."""
    import yaml

    key, separator, value = text.partition("=")
    if not separator or not key:
        raise UsageError(f"invalid change: {text!r}", "write --set key=value, for example algorithm.entropy_coeff=0")
    return key.lstrip("+"), yaml.safe_load(value)


def _changed(data: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of nested data with dotted keys replaced; unknown keys are found by the recipe's own check."""
    result = {key: dict(value) if isinstance(value, Mapping) else value for key, value in data.items()}
    for dotted, value in changed.items():
        *parents, last = dotted.split(".")
        block: Any = result
        for parent in parents:
            block = block.setdefault(parent, {})
            if not isinstance(block, dict):
                raise UsageError(f"{dotted}: {parent} is not a block", "see docs/train.md for the keys of a recipe")
        block[last] = value
    return result
