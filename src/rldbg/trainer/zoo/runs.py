"""Runs of the zoo: clean ones and those with a bug, from one recipe, into neutral folders.

All runs that share seed and precision start from the same warm-started weights, which are computed once.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from rldbg.core import Run
from rldbg.trainer.warm_start import StartingWeights, start_key
from rldbg.trainer.zoo.bug import replaced

WARM_START = "rldbg.trainer.policy.warm_start"


@dataclass(frozen=True, slots=True)
class ZooRun:
    """A finished run: the path of its recording, and a hash of its parameters."""

    recording: Path
    parameters: str


class ZooRunner:
    """Makes runs in one folder. Nothing in the path of a recording reveals its bug."""

    def __init__(self, recipe: Path, folder: Path) -> None:
        self._recipe = recipe
        self._folder = folder

    def run(self, number: int, overrides: Sequence[str] = ()) -> ZooRun:
        """One run; the number is its name. A run that already finished successfully is not repeated."""
        from rldbg.trainer.recipe import read_recipe
        from rldbg.trainer.training import train

        place, recording = self._places(number)
        if self.has_made(number):
            return ZooRun(recording, parameter_hash(recording))
        self.delete(number)
        loaded = read_recipe(self._recipe, [*overrides, f"++debug.dump_dir={recording}"])
        with replaced(WARM_START, self._remembered):
            train(loaded, Run.create(name="zoo", path=place))
        return ZooRun(recording, parameter_hash(recording))

    def has_made(self, number: int) -> bool:
        """Whether a run exists and finished successfully."""
        place, recording = self._places(number)
        return _ended_well(place) and recording.is_dir()

    def delete(self, number: int) -> None:
        """Frees what a run that is no longer needed takes on the disk."""
        for place in self._places(number):
            shutil.rmtree(place, ignore_errors=True)

    def _places(self, number: int) -> tuple[Path, Path]:
        """The run folder, and the recording, whose path reveals nothing about the run."""
        return self._folder / f"run-{number}", self._folder / "recordings" / f"{number}"

    def _remembered(self, original: Any, model: Any, tokenizer: Any, problems: Any, settings: Any, *, seed: int) -> Any:
        """The same weights as the warm start gives, from the first time it ran."""
        kept = StartingWeights(self._folder, self._folder)
        key = start_key(model, problems, settings, seed=seed)
        known = kept.load(model, key)
        if known is None:
            known = original(model, tokenizer, problems, settings, seed=seed)
            kept.save(model, key, *known)
        return known


def _ended_well(place: Path) -> bool:
    file = place / "run.json"
    return file.is_file() and json.loads(file.read_text(encoding="utf-8")).get("exit_code") == 0


def parameter_hash(recording: Path) -> str:
    """Of all parameters after the last optimizer step, in order of rank and name; of nothing where there are none."""
    from rldbg.recording import open as open_recording

    opened = open_recording(recording)
    digest = sha256()
    last = max(opened.steps("param"), default=0)
    for record in sorted(opened.records("param", last), key=lambda item: (item.key, str(item.fields["param_name"]))):
        digest.update(record.array("param").tobytes())
    return digest.hexdigest()[:16]
