"""What a framework may provide: a folder whose files are its parts, each of them optional.

    __init__.py     FRAMEWORK, the object below
    launch.yaml     how its command lines are recognised and which of its options help to debug (read by rldbg.launch)
    layout.py       LAYOUT, how its dumps are read (an rldbg.recording.Layout)
    hooks.py        HOOKS, its functions that are phases, steps or recorded (a tuple of rldbg.agent.profiling.Hook)
    recording.py    RECORDING, the class whose methods record them (an rldbg.frameworks.recorded.FrameworkRecording)
    rerun.py        a recorded step again (see `rerun` below)
    loss.py         LOSS, how it calls its losses (an rldbg.frameworks.loss_form.LossForm)
    knowledge.yaml  failures peculiar to it (read by rldbg.doctor)
    README.md       exact commands, one page

Parts are loaded on request; creating the object loads nothing.
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

# Kinds of records that hooks of most frameworks make together.
BATCH_KINDS = ("trajectory", "prepared_trajectories", "old_log_probs")
LOSS_KINDS = ("forward_data", "is_loss_debug", "loss")
UPDATE_KINDS = ("gradient", "param", "update_metrics")
WEIGHT_KINDS = ("weights", "weight_values")


@dataclass(frozen=True, slots=True)
class Framework:
    """One framework: how it is called, how it is found in an environment, and where its parts are."""

    name: str
    """The name of its folder, of its launch profile (`--framework`) and of its layout (`--layout`)."""
    title: str
    """As its users write it."""
    package: str
    """The package that holds the parts: `__name__` where the object is made."""
    modules: tuple[str, ...] = ()
    """Its top-level packages, as a program imports them."""
    distributions: tuple[str, ...] = ()
    """What it is called where it is installed, if it differs from `modules`."""
    programs: tuple[str, ...] = ()
    """Its commands and scripts, by the names under which they report errors of their command line."""
    classes: str = ""
    """The names of its classes that say whose they are, as a regular expression."""
    based_on: str = ""
    """The framework that this one is a fork of, whose parts hold for it where it has none of its own."""
    replay: str = ""
    """How it trains on recorded trajectories, if it can."""
    rerun: Literal["", "command", "program"] = ""
    """How a recorded step runs again: by the recorded command, or by a program of the folder (rerun.py)."""
    is_engine: bool = False
    """Whether it generates, and does not train."""
    tested: str = ""
    """What its recording was tested with: real runs, real modules, or a stub of the shape of its source."""
    only_from: str = ""
    """Its repository (owner/name), if another project has its name on the public index."""

    @property
    def distribution(self) -> str:
        """What it is called where it is installed."""
        return (self.distributions or self.modules or (self.name,))[0]

    def file(self, name: str) -> Path | None:
        """A file of the folder, if it is there."""
        path = Path(str(import_module(self.package).__file__)).parent / name
        return path if path.is_file() else None

    def part(self, module: str) -> Any:
        """The object that a module of the folder defines under its own name in capitals; None if there is no such
        module."""
        if self.file(f"{module}.py") is None:
            return None
        return getattr(import_module(f"{self.package}.{module}"), module.upper())
