"""From a recipe file and overrides to a checked `Recipe` and what it records. An unknown key is an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rldbg.core import Environment, UsageError, load_recipe, validated
from rldbg.recording import (
    debug_block_from_environment,
    parse_debug_block,
    parse_rollout_worker_block,
    recorder_settings,
)
from rldbg.trainer.capsule import CAPSULE_KINDS
from rldbg.trainer.observer import RecordingPlan
from rldbg.trainer.settings import Recipe, RolloutSettings
from rldbg.trainer.warm_start import StartingWeights

if TYPE_CHECKING:
    from rldbg.recording import DebugBlock

# Blocks of other frameworks' recipes that this trainer ignores.
_FOREIGN_BLOCKS = frozenset({"hydra"})


@dataclass(frozen=True, slots=True)
class LoadedRecipe:
    """A recipe as it will be run, its `debug:` block, and the plain data both were read from."""

    recipe: Recipe
    debug: DebugBlock
    data: dict[str, Any]

    def recording_plan(self, run_folder: Path, code: Mapping[str, Any]) -> RecordingPlan:
        """Where and what the run records; relative places are in its folder."""
        records = recorder_settings(self.debug, run_folder)
        if records.kinds is not None and {"param", "gradient"} & records.kinds and not any(records.parameter_patterns):
            records = replace(records, parameter_patterns=(".",))
        capsules = replace(
            records,
            enabled=self.debug.capsule,
            kinds=frozenset(CAPSULE_KINDS),
            every_n_steps=self.debug.capsule_every_n_steps,
            ranks=None,
            roles=None,
        )
        replayed = self.recipe.rollout_worker.replay_from
        return RecordingPlan(
            records,
            capsules,
            code,
            StartingWeights(run_folder.absolute(), Path(replayed).absolute() if replayed else None),
        )


def read_recipe(path: Path | str, overrides: Sequence[str] = (), *, allow_partial: bool = False) -> LoadedRecipe:
    """Reads, composes, overrides and checks a recipe."""
    data = load_recipe(path, overrides)
    return parse_recipe(data, source=str(path), allow_partial=allow_partial)


def parse_recipe(data: Mapping[str, Any], *, source: str, allow_partial: bool = False) -> LoadedRecipe:
    own = {key: value for key, value in data.items() if key not in {"debug", "rollout_worker", *_FOREIGN_BLOCKS}}
    debug = debug_block_from_environment(Environment(), parse_debug_block(data.get("debug"), source=source))
    recipe = replace(_validate(own, source), rollout_worker=_rollout(data.get("rollout_worker"), source, allow_partial))
    _check(recipe, source)
    return LoadedRecipe(recipe, debug, dict(data))


def recipe_from_data(data: Mapping[str, Any], *, source: str) -> Recipe:
    """The inverse of `dataclasses.asdict`: a recipe as a capsule stores it."""
    own = {key: value for key, value in data.items() if key != "rollout_worker"}
    return replace(_validate(own, source), rollout_worker=RolloutSettings(**data.get("rollout_worker", {})))


def _rollout(block: Mapping[str, Any] | None, source: str, allow_partial: bool) -> RolloutSettings:
    worker = parse_rollout_worker_block(block, source=source)
    replays = worker.type == "mock"
    if not replays and worker.trajectory_load_path:
        raise UsageError(
            f"{source}: rollout_worker has a trajectory_load_path, but its type is {worker.type!r}",
            "set rollout_worker.type=mock to replay it",
        )
    workers = worker.resource.get("num_workers", RolloutSettings().workers)
    if not isinstance(workers, int) or workers < 1:
        raise UsageError(f"{source}: rollout_worker.resource.num_workers is {workers!r}", "use an integer above 0")
    return RolloutSettings(
        replay_from=worker.trajectory_load_path if replays else None,
        replay_format=worker.trajectory_format,
        allow_partial=allow_partial,
        workers=workers,
    )


def _check(recipe: Recipe, source: str) -> None:
    """Checks that involve more than one setting."""
    if recipe.cluster.in_process and recipe.policy.fsdp:
        raise UsageError(
            f"{source}: FSDP needs several processes, but cluster.in_process starts only one",
            "set policy.fsdp=false or cluster.in_process=false",
        )
    if recipe.zoo.bug is not None and not recipe.cluster.in_process:
        raise UsageError(
            f"{source}: zoo.bug works in one process only, but this recipe starts several",
            "set cluster.in_process=true, or use the recipe zoo",
        )


def _validate(data: Mapping[str, Any], source: str) -> Recipe:
    return validated(Recipe, data, source=source, page="train.md", others=["debug"])
