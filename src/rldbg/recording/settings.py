"""The blocks of a recipe that the recorded plane reads: `debug:` and `rollout_worker:`.

YAML, WEAVER_DEBUG_DUMP_*, RLDBG_RECORD_* and keywords all set the same `debug:` block. Unknown or mistyped keys
fail with the nearest valid name. Every other block of another framework's recipe is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from rldbg.core import Environment, SampleId, UsageError, setting, unknown_key, validated
from rldbg.recording.dump_options import DumpOptions, RemoteApiDumpOptions
from rldbg.recording.kinds import KINDS, Mode, kinds_of
from rldbg.recording.layouts.step_files import Format
from rldbg.recording.recorder.settings import RecorderSettings

_DUMP_DIR = "debug_dump"
_PAGE = "config.md"


@dataclass(frozen=True, slots=True)
class DebugBlock:
    """The `debug:` block of a recipe."""

    enable_data_dump: bool = False
    """Enable recording."""
    dump_dir: str | None = None
    """Folder of the recording; default: `recording` in the run folder, or debug_dump without a run."""
    dump_format: Format = "pt"
    """pt and jsonl are NexRL's files; safetensors is ours, smaller and faster."""
    dump_every_n_steps: int = setting(1, at_least=1)
    """Record every n-th step: those that n divides."""
    dump_options: DumpOptions = field(default_factory=DumpOptions)
    """Kinds of the self-hosted mode."""
    remote_api_dump_options: RemoteApiDumpOptions = field(default_factory=RemoteApiDumpOptions)
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
    gather_s: float = setting(10.0, at_least=0)
    """Micro-batches wait at most this long for others of their file."""
    threads: int = setting(2, at_least=1)
    """Number of writer threads."""
    buffer_bytes: int = setting(2048 * 2**20, at_least=2**20)
    """Host memory for records that are not yet written."""
    device_buffer_bytes: int = setting(2**30, at_least=0)
    """GPU memory for copies that have not left the device."""
    when_full: Literal["block", "drop"] = "block"
    """When the buffer is full: `block` makes the trainer wait, `drop` drops the record and counts it."""
    budget_bytes: int | None = setting(None, at_least=1)
    """Recording stops itself when it has written this much."""
    keep_last: int | None = setting(None, at_least=1)
    """Keep only the newest n recorded steps, and the pinned ones."""
    pinned_steps: tuple[int, ...] = ()
    """Steps that are never removed."""
    capsule: bool = False
    """Store a capsule: everything that `rldbg rerun` needs to execute a step again."""
    capsule_every_n_steps: int = setting(1, at_least=1)
    """Store a capsule at every n-th step."""

    def kinds(self) -> frozenset[str]:
        """Every kind that is switched on, in whichever mode."""
        chosen = asdict(self.dump_options) | asdict(self.remote_api_dump_options)
        return frozenset(name for name, on in chosen.items() if on) | frozenset(self.extra_kinds)

    def to_dict(self) -> dict[str, Any]:
        """The block as a recipe would have it."""
        return asdict(self) | {"dump_dir": self.dump_dir or _DUMP_DIR}


@dataclass(frozen=True, slots=True)
class RolloutWorkerBlock:
    """What we read of the `rollout_worker:` block; `type: mock` selects replay."""

    type: str = "generate"
    """mock replays recorded trajectories; anything else generates."""
    need_llm_inference: bool = True
    """Whether an inference server is started; false goes with mock."""
    trajectory_load_path: str | None = None
    """What to replay: a trajectory file, a folder of them, or a whole recording."""
    trajectory_format: Format | None = None
    """Format of that file; detected if absent."""
    resource: dict[str, Any] = field(default_factory=dict)
    """num_workers, agents_per_worker."""


# Keys of other frameworks' rollout workers that recipes may contain; they are accepted and ignored.
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
    parsed = validated(DebugBlock, _without_nulls(block), name="debug", source=source, page=_PAGE)
    try:
        re.compile(parsed.target_param_pattern)
    except re.error as error:
        raise UsageError(
            f"{source}: invalid debug.target_param_pattern: {parsed.target_param_pattern!r}",
            f"expected a regular expression ({error})",
        ) from error
    for sample in parsed.samples or ():
        try:
            SampleId.parse(sample)
        except ValueError as error:
            raise UsageError(f"{source}: invalid debug.samples: {error}", "expected GROUP/RUN, such as g0/3") from error
    return parsed


def _without_nulls(block: Any) -> Any:
    """YAML gives null for a key under which everything is commented out."""
    if not isinstance(block, Mapping):
        return block
    return {key: _without_nulls(value) for key, value in block.items() if value is not None}


def parse_rollout_worker_block(
    block: Mapping[str, Any] | None, *, source: str = "rollout_worker"
) -> RolloutWorkerBlock:
    """The validated `rollout_worker:` block. Other workers' own keys are accepted; a misspelt key of ours is not."""
    ours = [item.name for item in fields(RolloutWorkerBlock)]
    for key in block or {}:
        if key in ours or key in _FOREIGN_ROLLOUT_KEYS:
            continue
        near = get_close_matches(str(key), [*ours, *_FOREIGN_ROLLOUT_KEYS], n=1, cutoff=0.75)
        is_replay = (block or {}).get("type", "mock") == "mock"
        if is_replay or (near and near[0] in ours):
            raise unknown_key(f"rollout_worker.{key}", near or ours, source)
    own = {key: value for key, value in block.items() if key in ours} if isinstance(block, Mapping) else block
    worker = validated(RolloutWorkerBlock, own, name="rollout_worker", source=source, page=_PAGE)
    if worker.type == "mock" and not worker.trajectory_load_path:
        raise UsageError(
            f"{source}: rollout_worker.type is mock, but trajectory_load_path is not set",
            "set rollout_worker.trajectory_load_path to a trajectory file or a recording",
        )
    return worker


def debug_block_from_environment(environment: Environment, base: DebugBlock | None = None) -> DebugBlock:
    """The block with what WEAVER_DEBUG_DUMP_* and then RLDBG_RECORD_* say laid over it."""
    for name, nearest in environment.near_misses().items():
        hint = f"did you mean {nearest}?" if nearest else "see `rldbg config show`"
        raise UsageError(f"{name} is set, but nothing reads it", hint)
    changes: dict[str, Any] = {} if base is None else asdict(base)
    is_weaver = environment.flag("WEAVER_DEBUG_DUMP_ENABLED")
    if is_weaver:
        named = environment.names("WEAVER_DEBUG_DUMP_OPTIONS")
        changes |= {
            "enable_data_dump": True,
            "dump_dir": environment.text("WEAVER_DEBUG_DUMP_DIR"),
            "dump_format": "pt",
            "dump_every_n_steps": environment.integer("WEAVER_DEBUG_DUMP_EVERY_N", 1),
            **(_switches(named, "WEAVER_DEBUG_DUMP_OPTIONS") if named else {}),
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
    block = parse_debug_block(changes, source="environment")
    if is_weaver and block.enable_data_dump and not block.kinds():
        raise UsageError(
            "WEAVER_DEBUG_DUMP_ENABLED is set, but no kind is named, so nothing would be recorded",
            "name kinds, for example WEAVER_DEBUG_DUMP_OPTIONS=forward_data,loss,is_loss_debug",
        )
    return block


def origins_of(block: DebugBlock, written: Mapping[str, Any] | None) -> dict[str, str]:
    """Where each value of a block comes from that was read from a recipe and had the environment laid over it."""
    recipe, before = _flat(_without_nulls(written or {})), _flat(parse_debug_block(written).to_dict())
    return {
        key: "environment" if value != before.get(key) else "recipe" if key in recipe else "default"
        for key, value in _flat(block.to_dict()).items()
    }


def _flat(block: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in block.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def named_kinds(kinds: Iterable[str], source: str) -> tuple[str, ...] | None:
    """Kinds by name, each of them declared; None where `all` is among them."""
    named = tuple(kinds)
    for kind in sorted(set(named) - {"all", *KINDS}):
        raise unknown_key(kind, KINDS, source)
    return None if "all" in named else named


def _switches(kinds: Iterable[str], source: str) -> dict[str, Any]:
    """Kinds by name as the block's switches; `all` is every kind that has one: some are of frameworks only."""
    named = named_kinds(kinds, source)
    chosen = {kind.name for kind in KINDS.values() if kind.modes} if named is None else set(named)
    remote = set(kinds_of(Mode.REMOTE_API))
    return {
        "dump_options": dict.fromkeys(chosen - remote, True),
        "remote_api_dump_options": dict.fromkeys(chosen & remote, True),
    }


def record_overrides(kinds: str) -> list[str]:
    """`--record KINDS` of a training as overrides of its recipe: kinds by name, comma separated, or `all`."""
    switches = _switches([kind.strip() for kind in kinds.split(",")], "--record")
    block = {"enable_data_dump": True, "capsule": True, **switches}
    return [f"++debug.{key}={str(value).lower()}" for key, value in _flat(block).items()]


def recorder_settings(block: DebugBlock, run_folder: Path | None = None) -> RecorderSettings:
    """The block as a recorder's settings. In a run it is RUN/recording unless `dump_dir` is given."""
    in_run = run_folder / "recording" if run_folder is not None else _DUMP_DIR
    shared = {item.name for item in fields(RecorderSettings)} & {item.name for item in fields(block)}
    return RecorderSettings.make(
        block.dump_dir or in_run,
        enabled=block.enable_data_dump,
        format=block.dump_format,
        every_n_steps=block.dump_every_n_steps,
        kinds=block.kinds(),
        parameter_patterns=(block.target_param_pattern,),
        parameter_mode=block.param_mode,
        **{name: getattr(block, name) for name in shared},
    )
