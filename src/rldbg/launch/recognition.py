"""Which of the commands that a script starts is the training, and of which framework.

Preparation of data, conversion of checkpoints and checks of metrics are not. A framework is known by its programs,
else by its options; a program that no framework knows is judged by the words of its name.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from rldbg.agent import option_values
from rldbg.frameworks import GENERIC
from rldbg.launch.command_line import Program, understand
from rldbg.launch.configuration import configured_names
from rldbg.launch.dry_run.calls import ShellCall
from rldbg.launch.known_launchers import word_set
from rldbg.launch.profile import profile_named, profiles
from rldbg.launch.settings import LaunchProfile

CommandKind = Literal["training", "other"]

_NEVER = word_set(
    "prepare prep preprocess preprocessing download convert converter merge merger tokenize tokenizer dataset datasets "
    "upload install setup dump args arguments"
)
_NOT_FIRST = word_set(
    "check checks metric metrics eval evaluate evaluation validate test tests summary report compare "
    "results print diagnostics"
)
_TRAINS = word_set(
    "train trainer training ppo grpo gspo dapo sft dpo rm rlhf rloo reinforce finetune finetuning distill distillation "
    "sppo opo kto orpo gkd pretrain"
)
_SERVES = word_set(
    "data server serve client router gateway api benchmark bench plot kill wait health get fetch create build builder "
    "index generate generation inference collect export clean cleanup visualize analyze compute pytest pip "
    "ensurepip venv http worker launch_server utils util tool tools cli to"
)
_MAY_TRAIN = word_set("main run rl entry entrypoint launch experiment async")
_FEWEST_SIGNS = 2
_PREPARES = re.compile(r"(?:^|[/.])data_(?:preprocess|preparation|process)\w*[/.]")
_NOISE = word_set("hostname git nvidia-smi rm pkill killall fuser scontrol squeue sinfo sacct scancel sleep")


@dataclass(frozen=True, slots=True)
class Command:
    """One command that the script starts, judged."""

    call: ShellCall
    program: Program
    kind: CommandKind
    profile: LaunchProfile
    via: tuple[ShellCall, ...] = ()
    """The launchers that start this command (`srun`, `ssh`), outermost first."""

    @property
    def options(self) -> dict[str, str]:
        return option_values(self.program.arguments, self.profile.dialect)


def recognise(calls: Sequence[ShellCall], framework: str = "") -> list[Command]:
    """The commands worth telling of, in order. With `framework`, its profile is used for whatever trains."""
    found = _once([_judge(call, program, via, framework) for call, program, via in _outermost(calls)])
    if any(command.kind == "training" for command in found):
        return found
    undecided = [command for command in found if may_train(command.program)]
    if framework and not undecided:
        # The user says that it trains; a framework knows which of its programs do not.
        undecided = [
            command
            for command in found
            if command.program.kind in ("module", "script")
            and not any(map(command.profile.does_other, _named(command.program)))
        ]
    if len(undecided) == 1:
        # The only program of the script that is not known to do something else.
        only = undecided[0]
        return [replace(only, kind="training") if command is only else command for command in found]
    return found


def _once(commands: Sequence[Command]) -> list[Command]:
    """Without repetitions of what does not train: scripts that poll ask the same again and again."""
    seen: set[tuple[str, int, tuple[str, ...]]] = set()
    found = []
    for command in commands:
        words = (command.call.file, command.call.line, command.call.argv)
        if command.kind == "training" or words not in seen:
            found.append(command)
        seen.add(words)
    return found


def _outermost(calls: Sequence[ShellCall]) -> list[tuple[ShellCall, Program, tuple[ShellCall, ...]]]:
    """Each command once: as the script starts it when its program can be seen there, else as a launcher starts it."""
    by_id = {call.id: call for call in calls if call.id}
    seen_through: set[str] = set()
    found: list[tuple[ShellCall, Program, tuple[ShellCall, ...]]] = []
    parents = {call.via for call in calls if call.via}
    for call in calls:
        chain: list[ShellCall] = []
        above = by_id.get(call.via)
        while above is not None:
            chain.insert(0, above)
            above = by_id.get(above.via)
        if any(launcher.id in seen_through for launcher in chain):
            continue
        program = understand(call.argv)
        if program.kind in ("code", "stdin") or (not program.launchers and _base(program.name) in _NOISE):
            continue
        shell_behind = program.kind == "executable" and _base(program.name) in ("bash", "sh")
        if call.id in parents and (shell_behind or program.kind == "none"):
            continue
        seen_through.add(call.id)
        found.append((call, program, tuple(chain)))
    return found


def _base(name: str) -> str:
    return name.rsplit("/", 1)[-1]


def _judge(call: ShellCall, program: Program, via: tuple[ShellCall, ...], framework: str) -> Command:
    kind, profile = judge(program, Path(call.cwd))
    if framework:
        forced = profile_named(framework)
        if forced.trains(program):
            kind = "training"
        profile = forced if kind == "training" or profile.name == GENERIC else profile
    return Command(call, program, kind, profile, via)


def judge(program: Program, cwd: Path) -> tuple[CommandKind, LaunchProfile]:
    """Whether a program trains, and whose it is."""
    known = profiles()
    generic = known[GENERIC]
    candidates = [profile for profile in known.values() if profile is not generic]
    targets = _named(program)
    fits = {profile.name: max(map(profile.fit_as_other, targets)) for profile in candidates}
    if any(fits.values()):
        return "other", known[max(fits, key=lambda name: fits[name])]
    signs = _signs(candidates, program, cwd) if program.is_python else {}
    signed = max(signs, key=lambda name: signs[name], default="")
    trainers = [profile for profile in candidates if any(profile.trains(target) for target in targets)]
    if trainers:
        best = max(trainers, key=lambda profile: signs.get(profile.name, 0))
        # Frameworks name their programs alike (train_async.py); their options tell them apart.
        is_clear = signs.get(best.name, 0) > 0 or signs.get(signed, 0) < _FEWEST_SIGNS
        return "training", best if is_clear else known[signed]
    if not program.is_python:
        return "other", generic
    verdict = judge_by_name(program)
    if verdict != "other" and signs[signed] >= _FEWEST_SIGNS:
        return "training", known[signed]
    return ("training" if verdict == "training" else "other"), generic


def _signs(candidates: Sequence[LaunchProfile], program: Program, cwd: Path) -> dict[str, int]:
    """How much of each framework's own vocabulary is on the command line, else in its configuration file."""
    given = {
        profile.name: profile.signs_in(option_values(program.arguments, profile.dialect)) for profile in candidates
    }
    if max(given.values()) >= _FEWEST_SIGNS:
        return given
    configured = dict.fromkeys(configured_names(program, cwd), "")
    return {profile.name: given[profile.name] + profile.signs_in(configured) for profile in candidates}


def _named(program: Program) -> list[Program]:
    """The program under its name, and under its name with its first word (`my_rl grpo`)."""
    both = [Program(program.kind, _base(program.name) if program.kind == "executable" else program.name)]
    if program.arguments:
        both.append(Program(program.kind, f"{both[0].name} {program.arguments[0]}"))
    return both


def judge_by_name(program: Program) -> Literal["training", "other", "undecided"]:
    """Whether a program trains, by the words of its name."""
    last = program.name.rsplit(".", 1)[-1] if program.kind == "module" else _base(program.name)
    words = Program(program.kind, last).words
    if _PREPARES.search(program.name):
        return "other"  # a folder of such programs: data_preprocess/dapo.py
    if program.arguments and program.arguments[0] in _NEVER | _NOT_FIRST:
        return "other"  # a sub-command: `run.py prepare`
    if not words or _NEVER.intersection(words):
        return "other"
    if _NOT_FIRST.intersection(words) and words[0] not in _TRAINS:
        return "other"
    if _TRAINS.intersection(words):
        return "training"
    if _SERVES.intersection(words):
        return "other"
    return "training" if _MAY_TRAIN.intersection(words) else "undecided"


def may_train(program: Program) -> bool:
    """Whether a program is Python and nothing in its name says what it does."""
    return program.kind in ("module", "script") and judge_by_name(program) == "undecided"
