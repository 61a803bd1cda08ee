"""The seeds' configuration blocks as typed models: one model behind YAML,
WEAVER_DEBUG_DUMP_*, RLDBG_RECORD_* and keywords.

`debug:` and `rollout_worker:` are ours: unknown or mistyped keys fail with the nearest valid name. Every other block
of a foreign recipe is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from rldbg.core import Environment, SampleId, UsageError
from rldbg.recording.kinds import KINDS, Mode, kinds_of
from rldbg.recording.recorder.settings import RecorderSettings

Format = Literal["pt", "jsonl", "safetensors"]
M = TypeVar("M", bound=BaseModel)


class Block(BaseModel):
    """A block we own: its keys are a closed set."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DumpOptions(Block):
    """Which kinds a self-hosted trainer records; an absent entry means off."""

    trajectory: bool = False
    """Rollout trajectories."""
    old_log_probs: bool = False
    """Log probs of the policy before the update."""
    forward_data: bool = False
    """Log probs and entropy of each forward pass."""
    loss: bool = False
    """Loss values."""
    param: bool = False
    """Parameters that match target_param_pattern, after the optimizer step."""
    gradient: bool = False
    """Gradients of the same parameters, before the optimizer step."""
    is_loss_debug: bool = False
    """The importance-sampling loss element by element (trainer service)."""
    batch_inputs: bool = False
    """What went into the model (trainer service)."""


class RemoteApiDumpOptions(Block):
    """Which kinds a trainer records that uses a remote training API."""

    prepared_trajectories: bool = False
    """Trajectories with their advantages."""
    datums: bool = False
    """What was sent to the training service."""
    training_metrics: bool = False
    """What the training service answered."""


class DebugBlock(Block):
    """The `debug:` block of a recipe."""

    enable_data_dump: bool = False
    """Master switch of recording."""
    dump_dir: str = "debug_dump"
    """Where the recording goes; inside a run folder a relative path is taken from there."""
    dump_format: Format = "pt"
    """pt and jsonl are the seeds' files; safetensors is ours, smaller and faster."""
    dump_every_n_steps: int = Field(1, ge=1)
    """Record the steps that n divides."""
    dump_options: DumpOptions = DumpOptions()
    """Kinds of the self-hosted mode."""
    remote_api_dump_options: RemoteApiDumpOptions = RemoteApiDumpOptions()
    """Kinds of the remote API mode."""
    target_param_pattern: str = ""
    """Regular expression over parameter names, for param and gradient; every match is recorded."""
    param_mode: Literal["full", "hash"] = "full"
    """Whole parameters, or only their hash and statistics."""
    extra_kinds: tuple[str, ...] = ()
    """Kinds of your own to record."""
    ranks: tuple[int, ...] | None = None
    """Only these ranks record; all when absent."""
    roles: tuple[str, ...] | None = None
    """Only these roles record; all when absent."""
    samples: tuple[str, ...] | None = None
    """Only the rows of these samples, each `group_id/run_id`; all when absent."""
    gather_shards: bool = False
    """Record whole sharded parameters, gathered by a collective that all ranks take part in, not each rank's shard."""
    gather_s: float = Field(10.0, ge=0)
    """Micro-batches wait at most this long for others of their file."""
    threads: int = Field(2, ge=1)
    """Threads that write."""
    buffer_bytes: int = Field(2048 * 2**20, ge=2**20)
    """Memory for what is not yet written."""
    device_buffer_bytes: int = Field(2**30, ge=0)
    """GPU memory for copies that have not left the device."""
    when_full: Literal["block", "drop"] = "block"
    """What happens when the buffer is full: the trainer waits, or the record is dropped and counted."""
    budget_bytes: int | None = Field(None, ge=1)
    """Recording stops itself when it has written this much."""
    keep_last: int | None = Field(None, ge=1)
    """Keep only the newest n recorded steps, and the pinned ones."""
    pinned_steps: tuple[int, ...] = ()
    """Steps that are never removed."""
    capsule: bool = False
    """Store all that a step needs to be re-executed by `rldbg rerun`."""
    capsule_every_n_steps: int = Field(1, ge=1)
    """Store a capsule at the steps that n divides."""

    @field_validator("target_param_pattern")
    @classmethod
    def _pattern_compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
        return pattern

    @field_validator("samples")
    @classmethod
    def _samples_are_named(cls, samples: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for sample in samples or ():
            SampleId.parse(sample)
        return samples

    def kinds(self) -> frozenset[str]:
        """Every kind that is switched on, in whichever mode."""
        chosen = self.dump_options.model_dump() | self.remote_api_dump_options.model_dump()
        return frozenset(name for name, on in chosen.items() if on) | frozenset(self.extra_kinds)


class RolloutWorkerBlock(BaseModel):
    """What we read of the `rollout_worker:` block; `type: mock` selects replay."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: str = "generate"
    """mock replays recorded trajectories; anything else generates."""
    need_llm_inference: bool = True
    """Whether an inference server is started; false goes with mock."""
    trajectory_load_path: str | None = None
    """What to replay: a trajectory file, a folder of them, or a whole recording."""
    trajectory_format: Format | None = None
    """Format of that file; found by the file when absent."""
    resource: dict[str, Any] = Field(default_factory=dict)
    """num_workers, agents_per_worker."""


# Keys of foreign rollout workers that recipes carry beside ours; they are the framework's and pass through.
_FOREIGN_ROLLOUT_KEYS = frozenset(
    {
        "num_workers",
        "temperature",
        "top_p",
        "top_k",
        "agent_cls",
        "agent",
        "max_prompt_length",
        "max_response_length",
        "max_sequence_length",
        "tokenizer",
        "nexau_agent_config_path",
        "nexau_agent_workspace",
        "evaluator_module_path",
        "task_name",
        "model_tag",
        "identifier",
        "custom_rollout_worker_module_path",
        "custom_rollout_worker_class_name",
        "use_distillation_clipping",
        "distillation_cliprange",
        "distillation_cliprange_low",
    }
)


def parse_debug_block(block: Mapping[str, Any] | None, *, source: str = "debug") -> DebugBlock:
    """The validated `debug:` block; an absent one means recording is off, and a key without a value is absent."""
    return _validate(DebugBlock, _without_nulls(block), name="debug", source=source)


def _without_nulls(block: Any) -> Any:
    """YAML gives null for a key under which everything is commented out."""
    if not isinstance(block, Mapping):
        return block
    return {key: _without_nulls(value) for key, value in block.items() if value is not None}


def parse_rollout_worker_block(
    block: Mapping[str, Any] | None, *, source: str = "rollout_worker"
) -> RolloutWorkerBlock:
    """The validated `rollout_worker:` block. A foreign worker's own keys pass; a misspelt key of ours does not."""
    ours = list(RolloutWorkerBlock.model_fields)
    for key in block or {}:
        if key in ours or key in _FOREIGN_ROLLOUT_KEYS:
            continue
        near = get_close_matches(str(key), [*ours, *_FOREIGN_ROLLOUT_KEYS], n=1, cutoff=0.75)
        is_replay = (block or {}).get("type", "mock") == "mock"
        if is_replay or (near and near[0] in ours):
            raise _unknown_key(f"rollout_worker.{key}", near or ours, source)
    worker = _validate(RolloutWorkerBlock, block, name="rollout_worker", source=source)
    if worker.type == "mock" and not worker.trajectory_load_path:
        raise UsageError(
            f"{source}: rollout_worker.type is mock, but trajectory_load_path says not what to replay",
            "set rollout_worker.trajectory_load_path to a trajectory file or a recording",
        )
    return worker


def debug_block_from_environment(environment: Environment, base: DebugBlock | None = None) -> DebugBlock:
    """The block with what WEAVER_DEBUG_DUMP_* and then RLDBG_RECORD_* say laid over it."""
    for name, nearest in environment.near_misses().items():
        hint = f"did you mean {nearest}?" if nearest else "see `rldbg config show`"
        raise UsageError(f"{name} is set, but nothing reads it", hint)
    changes: dict[str, Any] = {} if base is None else base.model_dump(exclude_unset=True)
    if environment.flag("WEAVER_DEBUG_DUMP_ENABLED"):
        changes |= {
            "enable_data_dump": True,
            "dump_dir": environment.text("WEAVER_DEBUG_DUMP_DIR"),
            "dump_format": "pt",
            "dump_every_n_steps": environment.integer("WEAVER_DEBUG_DUMP_EVERY_N", 1),
            **_switches(environment.names("WEAVER_DEBUG_DUMP_OPTIONS"), "WEAVER_DEBUG_DUMP_OPTIONS"),
        }
    if environment.is_set("RLDBG_RECORD_ENABLED"):
        changes["enable_data_dump"] = environment.flag("RLDBG_RECORD_ENABLED")
    for variable, key in (("RLDBG_RECORD_DIR", "dump_dir"), ("RLDBG_RECORD_FORMAT", "dump_format")):
        if environment.is_set(variable):
            changes[key] = environment.text(variable)
    if environment.is_set("RLDBG_RECORD_EVERY_N_STEPS"):
        changes["dump_every_n_steps"] = environment.integer("RLDBG_RECORD_EVERY_N_STEPS", 1)
    if environment.is_set("RLDBG_RECORD_KINDS"):
        changes |= _switches(environment.names("RLDBG_RECORD_KINDS"), "RLDBG_RECORD_KINDS")
    return parse_debug_block(changes, source="environment")


def origins_of(block: DebugBlock, written: Mapping[str, Any] | None) -> dict[str, str]:
    """Where each value of a block comes from that was read from a recipe and had the environment laid over it."""
    recipe, before = _flat(_without_nulls(written or {})), _flat(parse_debug_block(written).model_dump(mode="json"))
    return {
        key: "environment" if value != before.get(key) else "recipe" if key in recipe else "default"
        for key, value in _flat(block.model_dump(mode="json")).items()
    }


def _flat(block: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in block.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _switches(kinds: Iterable[str], source: str) -> dict[str, Any]:
    """Kinds by name as the block's switches; `all` is every declared kind."""
    chosen = set(kinds)
    if "all" in chosen:
        chosen = set(KINDS)
    for kind in sorted(chosen - set(KINDS)):
        raise _unknown_key(kind, get_close_matches(kind, KINDS, n=1) or list(KINDS), source)
    remote = set(kinds_of(Mode.REMOTE_API))
    return {
        "dump_options": dict.fromkeys(chosen - remote, True),
        "remote_api_dump_options": dict.fromkeys(chosen & remote, True),
    }


def recorder_settings(block: DebugBlock, run_folder: Path | None = None) -> RecorderSettings:
    """The block as a recorder's settings. In a run it is RUN/recording unless `dump_dir` is given."""
    in_run = run_folder is not None and "dump_dir" not in block.model_fields_set
    return RecorderSettings.make(
        run_folder / "recording" if run_folder is not None and in_run else block.dump_dir,
        enabled=block.enable_data_dump,
        format=block.dump_format,
        every_n_steps=block.dump_every_n_steps,
        kinds=block.kinds(),
        ranks=block.ranks,
        roles=block.roles,
        samples=block.samples,
        gather_shards=block.gather_shards,
        gather_s=block.gather_s,
        threads=block.threads,
        parameter_patterns=(block.target_param_pattern,),
        parameter_mode=block.param_mode,
        buffer_bytes=block.buffer_bytes,
        device_buffer_bytes=block.device_buffer_bytes,
        when_full=block.when_full,
        budget_bytes=block.budget_bytes,
        keep_last=block.keep_last,
        pinned_steps=block.pinned_steps,
    )


def _validate(model: type[M], block: Mapping[str, Any] | None, *, name: str, source: str) -> M:
    if block is not None and not isinstance(block, Mapping):
        raise UsageError(f"{source}: {name} is not a mapping", f"write `{name}:` with keys under it")
    try:
        return model.model_validate(dict(block or {}))
    except ValidationError as error:
        raise _explain(error, model, name, source) from error


def _explain(error: ValidationError, model: type[BaseModel], name: str, source: str) -> UsageError:
    """The first problem of a block in a user's words."""
    problem = error.errors()[0]
    place = [str(part) for part in problem["loc"]]
    full_key = ".".join([name, *place])
    if problem["type"] == "extra_forbidden":
        valid = list(_model_at(model, place[:-1]).model_fields)
        return _unknown_key(full_key, get_close_matches(place[-1], valid, n=1) or valid, source)
    message = problem["msg"].removeprefix("Value error, ")
    return UsageError(f"{source}: {full_key} = {problem['input']!r}: {message}", f"see docs/config.md for {full_key}")


def _model_at(model: type[BaseModel], place: Iterable[str]) -> type[BaseModel]:
    for part in place:
        annotation = model.model_fields[part].annotation
        assert isinstance(annotation, type) and issubclass(annotation, BaseModel)
        model = annotation
    return model


def _unknown_key(key: str, candidates: list[str], source: str) -> UsageError:
    if len(candidates) == 1:
        return UsageError(f"{source}: there is no {key!r}", f"did you mean {candidates[0]!r}?")
    return UsageError(f"{source}: there is no {key!r}", "valid names: " + ", ".join(candidates))
