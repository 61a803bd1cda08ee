"""The keys of a framework's `launch.yaml`: how it is started, and which of its options help to debug."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from rldbg.launch.command_line import Program

_WITHOUT_ROLLOUTS = frozenset({"sft", "rw", "rm", "dpo", "reward"})
_WILD = re.compile(r"\*|\?|\[[^\]]*\]")


@dataclass(frozen=True, slots=True)
class OptionEntry:
    """One option of a framework, and when it applies; a string alone is its `key`."""

    key: str
    """Name of the option."""
    given: bool = False
    """Only when the command line has it."""
    configured: bool = False
    """With `given`: also when the file of `--config` has it, which the command line overrides."""
    program: str = ""
    """Only for programs that match one of these patterns."""
    not_program: str = ""
    """Not for programs that match one of these patterns."""
    needs: str = ""
    """Only for programs that have this group of options."""
    beside: str = ""
    """Only when an option of this pattern is on the command line: a framework renamed its options."""
    not_beside: str = ""
    """Only when no option of this pattern is on the command line."""
    same_as: str = ""
    """Only when its value is that of this option."""
    otherwise: bool = False
    """Only when no other entry of the list applied."""
    value: str = ""
    """The value to set."""
    times: str = ""
    """Another option whose value it is multiplied by."""
    file: bool = False
    """Its value is a file: `-Debug` goes before the extension."""
    kind: str = ""
    """Only when `--record` names this kind."""
    reason: str = ""
    """Why it is changed, shown to the user."""

    def applies(self, program: Program, given: Mapping[str, str], configured: Collection[str] = ()) -> bool:
        is_given = self.key in given or (self.configured and self.key.lstrip("-") in configured)
        if self.otherwise or (self.given and not is_given):
            return False
        if self.same_as and given.get(self.key, "").rstrip("/") != given.get(self.same_as, "").rstrip("/"):
            return False
        if self.needs and not _has_group(self.needs, program, given, configured):
            return False
        if any(fnmatchcase(name, pattern) for name in _names_of(program) for pattern in self.not_program.split()):
            return False
        if self.beside and not any(fnmatchcase(key, self.beside) for key in given):
            return False
        if self.not_beside and any(fnmatchcase(key, self.not_beside) for key in given):
            return False
        return not self.program or any(fnmatchcase(program.name, pattern) for pattern in self.program.split())


@dataclass(frozen=True, slots=True)
class LaunchProfile:
    """How a framework's command lines are recognised and changed. An entry is the name of an option, or a mapping with
    the keys below."""

    name: str
    """The framework's own name; not a key of the file."""
    dialect: Literal["hydra", "dotlist", "flags"]
    """How an option is written: hydra (++k=v), dotlist (k=v), flags (--k v)."""
    train: tuple[str, ...] = ()
    """Programs that train, as patterns over module names and script paths."""
    other: tuple[str, ...] = ()
    """Programs that do not train."""
    signs: tuple[str, ...] = ()
    """Patterns of option names of the framework: two of them on a command line identify it."""
    marks: tuple[str, ...] = ()
    """Patterns of option names of which one is enough."""
    name_keys: tuple[OptionEntry, ...] = ()
    """Entries: names of experiments and folders of checkpoints that get `-Debug`."""
    steps: tuple[OptionEntry, ...] = ()
    """Entries: the number of steps."""
    epochs: tuple[OptionEntry, ...] = ()
    """Entries: the number of epochs."""
    checkpoints: tuple[OptionEntry, ...] = ()
    """Entries: how often a checkpoint is written."""
    record: tuple[OptionEntry, ...] = ()
    """Entries: the framework's own dumps; {recording} is the folder."""
    watch: tuple[OptionEntry, ...] = ()
    """Entries for `--watch`; {keep} is the number of steps to keep."""
    record_kinds: tuple[tuple[str, str], ...] = ()
    """A mapping: the option that enables each kind, where the framework has one per kind."""
    records: tuple[str, ...] = ()
    """The kinds that its dumps contain, if it has no such options."""
    timeouts: tuple[OptionEntry, ...] = ()
    """Entries: timeouts that a stopped process would exceed."""
    environment: tuple[tuple[str, str], ...] = ()
    """A mapping: variables that lengthen timeouts."""
    sizes: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """A mapping, for checks before a launch: options (without dashes) that state a size."""
    prompts_per_mini_batch: tuple[str, ...] = ()
    """Those of `sizes` that count prompts instead of samples."""
    shares_gpus: tuple[str, ...] = ()
    """Options by which trainer and engines share GPUs."""
    paths: tuple[str, ...] = ()
    """Options that name files of the job."""
    laptop: tuple[OptionEntry, ...] = ()
    """Entries that `--laptop` sets; {model} is the small model's folder."""
    laptop_environment: tuple[tuple[str, str], ...] = ()
    """A mapping: variables that `--laptop` sets."""
    laptop_model: tuple[str, ...] = ()
    """Options that name the model."""
    laptop_server: bool = False
    """Whether its rollouts need a server."""
    composes: tuple[str, ...] = ()
    """Hydra programs: `--cfg job` prints their configuration and exits."""
    composes_in: str = ""
    """For other programs: the function (dotted) that composes their configuration."""

    def trains(self, program: Program) -> bool:
        return not self.does_other(program) and _matches(program.name, self.train)

    def does_other(self, program: Program) -> bool:
        return _matches(program.name, self.other)

    def fit_as_other(self, program: Program) -> int:
        """0 if it may train, else the more the closer its name fits what does not: `*_eval.py` fits less than
        `run_eval*.py`."""
        return max((len(pattern) for pattern in self.other if _matches(program.name, [pattern])), default=0)

    def signs_in(self, given: Mapping[str, str]) -> int:
        """How many of the framework's own options are on a command line; a mark counts twice."""
        return sum(_matches(key, self.signs) + 2 * _matches(key, self.marks) for key in given)


def applicable(
    entries: Sequence[OptionEntry], program: Program, given: Mapping[str, str], configured: Collection[str] = ()
) -> list[OptionEntry]:
    """The entries of a list that hold for this program; those marked `otherwise` when no other does.

    `configured` are the names that the command's configuration file sets, where it can be read.
    """
    return [entry for entry in entries if entry.applies(program, given, configured)] or [
        entry for entry in entries if entry.otherwise
    ]


def _names_of(program: Program) -> tuple[str, ...]:
    """Its own name, and that of the script which a launcher module is given first."""
    return (program.name, *program.arguments[:1])


def _has_group(group: str, program: Program, given: Mapping[str, str], configured: Collection[str]) -> bool:
    """Whether the program has a group of options: it is set somewhere, or nothing can be read and its name does not
    say that it trains without one."""
    if any(key == group or key.startswith(f"{group}.") for key in (*given, *configured)):
        return True
    words = {word for name in _names_of(program) for word in Program("script", name).words}
    return not configured and not words & _WITHOUT_ROLLOUTS


def _matches(name: str, patterns: Sequence[str]) -> bool:
    # A pattern whose plain text is not in the name is not even compiled: there are hundreds of them.
    return any(
        fnmatchcase(name, pattern) or fnmatchcase(name, f"*/{pattern}")
        for pattern in patterns
        if max(_WILD.split(pattern), key=len) in name
    )
