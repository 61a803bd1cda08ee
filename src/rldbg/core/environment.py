"""Every environment variable rldbg reads, declared once and read nowhere else.

`docs/environment.md` is generated from VARIABLES. Options of the command line are also read from
RLDBG_<VERB>_<OPTION>; those names follow from the verbs and are listed by `rldbg config show`.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from rldbg.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Variable:
    name: str
    group: str
    meaning: str
    default: str = ""


VARIABLES: tuple[Variable, ...] = (
    Variable("NO_COLOR", "terminal", "any value disables colours"),
    Variable("RLDBG_RUN", "run", "the run that this process belongs to; set by `rldbg run`"),
    Variable("RLDBG_HOME", "run", "folder for run folders and registries", ".rldbg"),
    Variable("RLDBG_CACHE", "run", "folder for copies of remote recordings", "~/.cache/rldbg/remote"),
    Variable("RLDBG_CONFIG", "run", "the project file, instead of the nearest rldbg.toml"),
    Variable("RLDBG_PASS_EXCEPTIONS", "agent", "exceptions that never hold a process, comma separated"),
    Variable("RLDBG_BROKER_WAIT_S", "agent", "seconds that a stopped process waits for a new broker", "60"),
    Variable("RLDBG_POST_MORTEM", "agent", "seconds to hold a crashed process for inspection"),
    Variable("RLDBG_RAY_BREAKPOINTS", "agent", "1 leaves breakpoint() in Ray processes to Ray's own debugger"),
    Variable("RLDBG_REDACT", "agent", "0 writes secrets into crash files unchanged", "1"),
    Variable("RLDBG_COLLECTIVE_TIMEOUT_S", "agent", "minimum timeout of process groups, so that a pause aborts none"),
    Variable("RLDBG_DEBUGPY", "agent", "the debugpy to use where none is installed"),
    Variable("RLDBG_NEXT_RAY_HOOK", "agent", "the user's own RAY_RUNTIME_ENV_HOOK, which still runs"),
    Variable("RAY_ADDRESS", "cluster", "the Ray cluster that live verbs use if no run has a broker"),
    Variable("NRL_NSYS_WORKER_PATTERNS", "profile", "workers to run under nsys: shell patterns, comma separated"),
    Variable("NRL_NSYS_PROFILE_STEP_RANGE", "profile", "steps to profile, start:stop, 1-based, stop exclusive"),
    Variable("NRL_NSYS_EXTRA_OPTIONS", "profile", "a JSON object of nsys options, which override the defaults"),
    Variable("RAY_LOG_SYNC_FREQUENCY", "profile", "seconds; when set, reports are copied to the job's log folder"),
    Variable("SLURM_JOB_ID", "profile", "the job whose log folder is meant: $SLURM_JOB_ID-logs/ray"),
    Variable("SLURM_SUBMIT_DIR", "profile", "parent of that log folder, instead of the working directory"),
    Variable("RLDBG_PROFILING", "profile", "set by `rldbg profile`: the file with the plan of what is profiled"),
    Variable("RLDBG_PROFILING_PLAN", "profile", "set by `rldbg profile`: its contents, for nodes without that file"),
    Variable("RLDBG_PROFILE_WORKER", "profile", "set for a worker that is profiled: its name and the pattern"),
    Variable("RLDBG_UNDER_NSYS", "profile", "set for a worker under nsys: how its window is opened"),
    Variable("RLDBG_KNOWLEDGE", "doctor", "folders with further failure entries, separated by colons"),
    Variable("RAY_TMPDIR", "cluster", "where Ray keeps its sessions, instead of /tmp/ray"),
    Variable("RAY_AUTH_MODE", "cluster", "Ray's token authentication: token or disabled"),
    Variable("RAY_AUTH_TOKEN", "cluster", "the token of a Ray cluster"),
    Variable("RAY_AUTH_TOKEN_PATH", "cluster", "the file with that token, instead of ~/.ray/auth_token"),
    Variable("RAY_USE_TLS", "cluster", "1 when the Ray cluster is reached through TLS"),
    Variable("RLDBG_ARM_ARGUMENTS", "agent", "set by `rldbg run`: what is added to the training's arguments"),
    Variable("RLDBG_HAND_DOWN", "agent", "set by `rldbg run`: further variables for Ray workers, comma separated"),
    Variable("HF_HOME", "inference", "folder of Hugging Face's cache, in which models are found by their hub ids"),
    Variable("HF_HUB_CACHE", "inference", "folder of the cached models, instead of HF_HOME/hub"),
    Variable("AREAL_LLM_SERVER_ADDRS", "inference", "servers of a rollout, host:port separated by commas"),
    Variable("PYTHONBREAKPOINT", "debugger", "the debugger that breakpoint() opens; if set, it is left alone"),
    Variable("RLDBG_ROLE", "identity", "role of this process in records and in `rldbg ps`"),
    Variable("RLDBG_COORDINATES", "identity", "parallel coordinates of this process, for example dp=0,tp=1"),
    Variable("RANK", "identity", "rank of this process, as set by torchrun"),
    Variable("WORLD_SIZE", "identity", "number of processes, as set by torchrun"),
    Variable("LOCAL_RANK", "identity", "rank of this process on its host, as set by torchrun: the GPU it takes"),
    Variable("LOCAL_WORLD_SIZE", "identity", "number of processes on this host, as set by torchrun"),
    Variable("SLURM_PROCID", "identity", "rank of this process when RANK is not set"),
    Variable("SLURM_NTASKS", "identity", "number of processes when WORLD_SIZE is not set"),
    Variable("WEAVER_DEBUG_DUMP_ENABLED", "recording", "1 enables recording (trainer service mode)"),
    Variable("WEAVER_DEBUG_DUMP_DIR", "recording", "where the trainer service records", "debug_dump"),
    Variable("WEAVER_DEBUG_DUMP_EVERY_N", "recording", "record every n-th step", "1"),
    Variable("WEAVER_DEBUG_DUMP_OPTIONS", "recording", "kinds to record, comma separated"),
    Variable("RLDBG_RECORD_ENABLED", "recording", "1 enables recording, 0 disables it"),
    Variable("RLDBG_RECORD_DIR", "recording", "where to record (the block's dump_dir)"),
    Variable("RLDBG_RECORD_FORMAT", "recording", "safetensors, pt or jsonl"),
    Variable("RLDBG_RECORD_EVERY_N_STEPS", "recording", "record every n-th step"),
    Variable("RLDBG_RECORD_KINDS", "recording", "kinds to record, comma separated"),
    Variable("RLDBG_LAPTOP_SERVER", "run", "set by `rldbg run --laptop`: the server that generates"),
    Variable("RLDBG_RERUN", "run", "set by `rldbg rerun`: the recorded step that a trainer runs again (JSON)"),
    Variable("RLDBG_RECORD_HOOKS", "recording", "set by `rldbg run --record`: modules to record, and where to (JSON)"),
)

_BY_NAME = {variable.name: variable for variable in VARIABLES}
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})


class Environment:
    """A read-only view of a process environment that only answers for declared variables."""

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = os.environ if values is None else values

    def text(self, name: str, default: str | None = None) -> str:
        declared = _BY_NAME[name]
        value = self._values.get(name)
        if value is not None:
            return value
        return declared.default if default is None else default

    def is_set(self, name: str) -> bool:
        return _BY_NAME[name].name in self._values

    def integer(self, name: str, default: int) -> int:
        value = self.text(name, "").strip()
        if not value:
            return default
        try:
            return int(value)
        except ValueError:
            raise UsageError(f"{name}={value!r} is not an integer", f"unset {name} or give it a number") from None

    def flag(self, name: str, default: bool = False) -> bool:
        if not self.is_set(name):
            return default
        value = self.text(name).strip().lower()
        if value in _TRUE:
            return True
        if value in _FALSE:
            return False
        raise UsageError(f"{name}={value!r} is not a boolean", f"use {name}=1 or {name}=0")

    def names(self, name: str) -> tuple[str, ...]:
        """A comma separated list; white space and empty items are ignored."""
        return tuple(item.strip() for item in self.text(name, "").split(",") if item.strip())

    def option(self, name: str) -> str | None:
        """The variable behind a command-line option, RLDBG_<VERB>_<OPTION>; None when it is not set."""
        assert name.startswith("RLDBG_")
        return self._values.get(name)

    def everything(self) -> dict[str, str]:
        """The whole environment, for run.json; redact before writing it."""
        return dict(self._values)

    def export(self, name: str, value: str) -> None:
        """Sets a variable for this process and its children, unless it is set already."""
        if name not in self._values:
            os.environ[name] = value

    def give(self, **values: str) -> None:
        """Sets variables for this process and its children, whatever they were."""
        os.environ.update(values)

    def put_back(self, name: str, value: str) -> None:
        """Gives a variable the value it had before another library changed it; none for an empty one."""
        if value:
            os.environ[name] = value
        else:
            os.environ.pop(name, None)

    def near_misses(self) -> dict[str, str]:
        """Set variables that look like ours but are not declared, with the nearest declared name."""
        misses = {}
        for name in self._values:
            if name in _BY_NAME or not name.startswith(("WEAVER_DEBUG_", "RLDBG_RECORD_")):
                continue
            nearest = get_close_matches(name, _BY_NAME, n=1)
            misses[name] = nearest[0] if nearest else ""
        return misses
