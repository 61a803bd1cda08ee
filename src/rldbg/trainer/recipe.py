"""From a recipe file and overrides to a checked `Recipe` and what it records. Every key that is unknown is an error."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from rldbg.core import Environment, UsageError, load_recipe
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
    from pydantic import ValidationError

    from rldbg.recording import DebugBlock

# Blocks of the seeds' recipes that say nothing to this trainer.
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
        raise UsageError(f"{source}: rollout_worker.resource.num_workers is {workers!r}", "use a whole number above 0")
    return RolloutSettings(
        replay_from=worker.trajectory_load_path if replays else None,
        replay_format=worker.trajectory_format,
        allow_partial=allow_partial,
        workers=workers,
    )


def _check(recipe: Recipe, source: str) -> None:
    """What types cannot say."""
    positive = {
        "steps": recipe.steps,
        "threads": recipe.threads,
        "data.prompts_per_step": recipe.data.prompts_per_step,
        "data.samples_per_prompt": recipe.data.samples_per_prompt,
        "data.max_turns": recipe.data.max_turns,
        "policy.ranks": recipe.policy.ranks,
        "policy.micro_batch_size": recipe.policy.micro_batch_size,
        "policy.mini_batches": recipe.policy.mini_batches,
        "policy.epochs": recipe.policy.epochs,
        "inference.servers": recipe.inference.servers,
        "inference.max_new_tokens": recipe.inference.max_new_tokens,
    }
    for key, value in positive.items():
        if value < 1:
            hint = "the data has no prompts then" if key == "data.prompts_per_step" else "use 1 or more"
            raise UsageError(f"{source}: {key} is {value}", hint)
    if recipe.cluster.in_process and recipe.policy.fsdp:
        raise UsageError(
            f"{source}: FSDP shards over processes, and cluster.in_process leaves room for one",
            "set policy.fsdp=false or cluster.in_process=false",
        )
    if recipe.zoo.bug is not None and not recipe.cluster.in_process:
        raise UsageError(
            f"{source}: zoo.bug is built into one process, and this recipe starts several",
            "set cluster.in_process=true, or use the recipe zoo",
        )
    if recipe.inference.temperature <= 0:
        raise UsageError(f"{source}: inference.temperature is {recipe.inference.temperature}", "use a number above 0")


def _validate(data: Mapping[str, Any], source: str) -> Recipe:
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(Recipe).validate_python(dict(data))
    except ValidationError as error:
        raise _explain(error, source) from error


def _explain(error: ValidationError, source: str) -> UsageError:
    """The first problem in a user's words, with the nearest name for a key there is not."""
    problem = error.errors()[0]
    place = [str(part) for part in problem["loc"]]
    key = ".".join(place)
    if problem["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:
        valid = _names(place[:-1])
        near = get_close_matches(place[-1], valid, n=1)
        return UsageError(
            f"{source}: there is no {key!r}",
            f"did you mean {near[0]!r}?" if near else f"valid names: {', '.join(valid)}",
        )
    message = re.sub(r"^Input", "it", problem["msg"])
    return UsageError(f"{source}: {key} is {problem['input']!r}: {message}", f"see docs/train.md for {key}")


def _names(place: Sequence[str]) -> list[str]:
    """The keys a block may have."""
    block: Any = Recipe
    for part in place:
        block = get_type_hints(block).get(part)
    return [item.name for item in fields(block)] + (["debug"] if block is Recipe else []) if is_dataclass(block) else []
