"""How each framework is started, read from its `launch.yaml`: one file per framework, one test per file.

    dialect: hydra            # how an option is written: hydra (++k=v), dotlist (k=v), flags (--k v)
    train: [my_rl.main, ...]              # programs that train, as patterns over module names and script paths
    other: [my_rl.convert*, ...]          # programs that do not
    signs: [rollout_group.*, ...]         # option names of the framework: two of them give it away
    marks: [runner.*, ...]                # option names of which one is enough
    name_keys / steps / epochs / checkpoints / record / watch / timeouts: lists of entries; in `watch`, {keep} is the
                                          # number of steps to keep
    record_kinds: {loss: debug.dump_options.loss, ...}   # switches of single kinds, where the framework has them
    records: [trajectory]                 # what its dumps hold, where it has no such switches
    laptop: entries that --laptop sets; {model} is the small model's folder
    laptop_environment: {NAME: value}     # variables that --laptop sets
    laptop_model: [--model]               # options that name the model
    laptop_server: true                   # whether its rollouts need a server
    environment: {NAME: value}            # variables that lengthen timeouts outside the options
    sizes: {nodes: [num-nodes], ...}      # for checks before a launch: options (without dashes) that state a size
    prompts_per_mini_batch: [...]         # of these, options that count prompts, where others count samples
    shares_gpus: [colocate]               # options by which trainer and engines share GPUs
    paths: [data.train_files, ...]        # options that name files of the job
    composes: [my_rl.main, ...]           # programs of Hydra: `--cfg job` composes their configuration and ends

An entry is a key, or a mapping with `key` and any of: `given` (only when the command line has it), `program` and
`not_program` (only for programs that match, or do not), `needs` (only where the program has this group of options),
`beside` and `not_beside` (only when an option of this pattern is, or none is, on the command
line: a framework renamed its options), `otherwise` (only when no other entry of the list applied), `kind` (only when
--record names this kind), `value`, `times` (multiply by the value of another option), `reason`.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Literal

from rldbg.core import UsageError
from rldbg.frameworks import GENERIC, Framework, find_framework, frameworks, lineage
from rldbg.launch.command_line import Program

Dialect = Literal["hydra", "dotlist", "flags"]
_DIALECTS = ("hydra", "dotlist", "flags")
_FILE = "launch.yaml"
_ENTRIES = ("name_keys", "steps", "epochs", "checkpoints", "record", "watch", "timeouts", "laptop")
_WORDS = (
    "train",
    "other",
    "signs",
    "marks",
    "records",
    "prompts_per_mini_batch",
    "shares_gpus",
    "paths",
    "laptop_model",
    "composes",
)
_WITHOUT_ROLLOUTS = frozenset({"sft", "rw", "rm", "dpo", "reward"})
_WILD = re.compile(r"\*|\?|\[[^\]]*\]")


@dataclass(frozen=True, slots=True)
class Entry:
    """One option of a framework, and when it is the right one."""

    key: str
    given: bool = False
    program: str = ""
    not_program: str = ""
    needs: str = ""
    beside: str = ""
    not_beside: str = ""
    otherwise: bool = False
    value: str = ""
    times: str = ""
    kind: str = ""
    reason: str = ""

    def applies(self, program: Program, given: Mapping[str, str], configured: Collection[str] = ()) -> bool:
        if self.otherwise or (self.given and self.key not in given):
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
class Profile:
    """What a framework calls its options."""

    name: str
    dialect: Dialect = "flags"
    train: tuple[str, ...] = ()
    other: tuple[str, ...] = ()
    signs: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    name_keys: tuple[Entry, ...] = ()
    steps: tuple[Entry, ...] = ()
    epochs: tuple[Entry, ...] = ()
    checkpoints: tuple[Entry, ...] = ()
    record: tuple[Entry, ...] = ()
    watch: tuple[Entry, ...] = ()
    record_kinds: tuple[tuple[str, str], ...] = ()
    records: tuple[str, ...] = ()
    timeouts: tuple[Entry, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    sizes: tuple[tuple[str, tuple[str, ...]], ...] = ()
    prompts_per_mini_batch: tuple[str, ...] = ()
    shares_gpus: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    laptop: tuple[Entry, ...] = ()
    laptop_environment: tuple[tuple[str, str], ...] = ()
    laptop_model: tuple[str, ...] = ()
    composes: tuple[str, ...] = ()
    laptop_server: bool = False

    def trains(self, program: Program) -> bool:
        return not self.does_other(program) and _matches(program.name, self.train)

    def does_other(self, program: Program) -> bool:
        return _matches(program.name, self.other)

    def signs_in(self, given: Mapping[str, str]) -> int:
        """How many of the framework's own options are on a command line; a mark counts twice."""
        return sum(_matches(key, self.signs) + 2 * _matches(key, self.marks) for key in given)


def applicable(
    entries: Sequence[Entry], program: Program, given: Mapping[str, str], configured: Collection[str] = ()
) -> list[Entry]:
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


@cache
def profiles() -> dict[str, Profile]:
    """The profiles of all frameworks that have one, by name; the generic one last."""
    known = sorted(frameworks(), key=lambda framework: (framework.name == GENERIC, framework.name))
    files = ((framework, framework.file(_FILE)) for framework in known)
    return {framework.name: _load(framework, file) for framework, file in files if file is not None}


def profile_named(name: str) -> Profile:
    """The profile of a framework, or of the one that it is a fork of."""
    framework = find_framework(name)
    known = profiles()
    for each in lineage(framework):
        if each.name in known:
            return known[each.name]
    raise UsageError(f"{framework.title} has no launch profile", f"choose one of: {', '.join(known)}")


def commands() -> set[str]:
    """Programs of frameworks that are started by a name of their own and a sub-command (`my_rl grpo`)."""
    return {pattern.split()[0] for profile in profiles().values() for pattern in profile.train if " " in pattern}


def _matches(name: str, patterns: Sequence[str]) -> bool:
    # A pattern whose plain text is not in the name is not even compiled: there are hundreds of them.
    return any(
        fnmatchcase(name, pattern) or fnmatchcase(name, f"*/{pattern}")
        for pattern in patterns
        if max(_WILD.split(pattern), key=len) in name
    )


def _load(framework: Framework, file: Path) -> Profile:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    data: dict[str, Any] = yaml.load(file.read_text(encoding="utf-8"), Loader=loader)
    known = {field.name for field in fields(Profile)} - {"name"}
    unknown = sorted(set(data) - known)
    if unknown or data.get("dialect") not in _DIALECTS:
        raise UsageError(f"invalid launch profile: {file}: {', '.join(unknown) or 'dialect'}", "fix the file")
    lists: dict[str, Any] = {name: tuple(data.get(name, ())) for name in _WORDS}
    lists |= {name: tuple(_entry(item, file) for item in data.get(name, ())) for name in _ENTRIES}
    return Profile(
        name=framework.name,
        dialect=data["dialect"],
        sizes=tuple((name, tuple(keys)) for name, keys in data.get("sizes", {}).items()),
        laptop_server=bool(data.get("laptop_server")),
        record_kinds=tuple((kind, str(key)) for kind, key in data.get("record_kinds", {}).items()),
        environment=tuple((name, str(value)) for name, value in data.get("environment", {}).items()),
        laptop_environment=tuple((name, str(value)) for name, value in data.get("laptop_environment", {}).items()),
        **lists,
    )


def _entry(item: str | dict[str, Any], file: Path) -> Entry:
    if isinstance(item, str):
        return Entry(item)
    unknown = sorted(set(item) - {field.name for field in fields(Entry)})
    if unknown or "key" not in item:
        raise UsageError(f"invalid entry in {file}: {item}", "fix the file")
    return Entry(**(item | {"value": str(item.get("value", ""))}))
