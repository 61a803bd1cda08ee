"""What a run records by hooks: one JSON text in RLDBG_RECORD_HOOKS, which every process of the run inherits."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from rldbg.core import Environment
from rldbg.frameworks.registry import recorded_hooks

HOOKS_FOLDER = "hooks"
"""Below the run folder: one file per process that says what was hooked and called."""
RECORDING_FOLDER = "recording"
"""Below the run folder: what its processes record."""


@dataclass(frozen=True, slots=True)
class RecordPlan:
    """Where to record, which kinds (all if none is named), and the modules that have hooks."""

    directory: str
    proof: str
    kinds: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    keep_last: int | None = None
    """Steps that stay on disk, besides pinned ones; all if not given."""

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> "RecordPlan":
        data = json.loads(text)
        kinds, modules = tuple(data["kinds"]), tuple(data["modules"])
        return cls(data["directory"], data["proof"], kinds, modules, data.get("keep_last"))

    @classmethod
    def from_environment(cls) -> "RecordPlan | None":
        """The plan of the run, or from RLDBG_RECORD_DIR without a launcher; None if nothing is to be recorded."""
        environment = Environment()
        text = environment.text("RLDBG_RECORD_HOOKS")
        if text:
            return cls.parse(text)
        directory = environment.text("RLDBG_RECORD_DIR")
        if not directory or not environment.flag("RLDBG_RECORD_ENABLED", default=True):
            return None
        proof = Path(directory).parent / HOOKS_FOLDER
        return cls(directory, str(proof), environment.names("RLDBG_RECORD_KINDS"), recorded_modules())


def plan_for(run_folder: Path, kinds: Iterable[str] = (), keep_last: int | None = None) -> RecordPlan:
    """The plan of an armed run: everything lies in its folder."""
    recording, proof = str(run_folder / RECORDING_FOLDER), str(run_folder / HOOKS_FOLDER)
    return RecordPlan(recording, proof, tuple(kinds), recorded_modules(), keep_last)


def recorded_modules() -> tuple[str, ...]:
    """The modules of all frameworks that have functions to record."""
    return tuple(dict.fromkeys(hook.module for _, hook in recorded_hooks()))
