"""What arming changes in a training command: each change with its value, its reason, and the way it gets there."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from rldbg.agent import digest, edit_value, edited, written
from rldbg.core import UsageError
from rldbg.frameworks import GENERIC, recorded_hooks
from rldbg.launch.configuration import configured_names, configured_source
from rldbg.launch.laptop import laptop_model
from rldbg.launch.reach import Reach
from rldbg.launch.recognition import Command
from rldbg.launch.request import Request
from rldbg.launch.settings import OptionEntry, applicable
from rldbg.tripwire import WATCHED_KINDS

_PLAIN = re.compile(r"[\w./@%+|?-]*(?:\$\{[\w.]+\}[\w./@%+|?-]*)*")
"""What Hydra reads as one text without quotes."""
_LARGE_KINDS = ("param", "gradient")
"""Kinds that must be asked for by name."""


@dataclass(frozen=True, slots=True)
class LaunchChange:
    """One thing that is different from what the user wrote."""

    what: str
    value: str
    method: str
    reason: str

    def to_dict(self) -> dict[str, str]:
        return {"what": self.what, "value": self.value, "method": self.method, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Unreached:
    """Something that should be armed and cannot be, with the reason."""

    what: str
    reason: str

    def to_dict(self) -> dict[str, str]:
        return {"what": self.what, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of one option, as the start-up hook applies it (see rldbg.agent.arguments)."""

    key: str
    reason: str
    value: str | None = None
    suffix: str | None = None
    base: str | None = None
    extension: str | None = None
    """What the suffix goes before."""

    def to_rule(self) -> dict[str, str]:
        fields = {"key": self.key, "value": self.value, "suffix": self.suffix, "base": self.base}
        fields["extension"] = self.extension
        return {name: text for name, text in fields.items() if text is not None}


def option_edits(command: Command, request: Request, recording: Path) -> tuple[list[Edit], list[Unreached]]:
    """The edits of the training command's own options, in the framework's syntax."""
    edits: list[Edit] = []
    missing: list[Unreached] = []
    _edit_name(command, request, edits, missing)
    _edit_length(command, request, edits, missing)
    if request.record:
        _edit_recording(command, request, recording, edits, missing)
    edits += _fixed(
        command, command.profile.timeouts, "the other ranks must not time out while one is stopped", recording
    )
    if request.laptop:
        model = str(laptop_model(request, recording.parent))
        edits += [
            replace(edit, value=(edit.value or "").replace("{model}", model))
            for edit in _fixed(command, command.profile.laptop, "this machine has no accelerator", recording)
        ]
    return _with_own(edits, request), missing


def _edit_name(command: Command, request: Request, edits: list[Edit], missing: list[Unreached]) -> None:
    if not request.name_suffix:
        return
    given = command.options
    asks = any(entry.configured for entry in (*command.profile.name_keys, *command.profile.checkpoints))
    named = configured_names(command.program, Path(command.call.cwd)) if asks else ()
    entries = applicable(command.profile.name_keys, command.program, given, named)
    folders = applicable(command.profile.checkpoints, command.program, given, named)
    for entry in (*entries, *folders):
        is_name = entry in entries
        key, configured = configured_source(command.program, Path(command.call.cwd), entry.key)
        key, base = (entry.key, given[entry.key]) if given.get(entry.key) else (key, configured)
        if not base and entry.key in given:
            continue  # it is given as empty: there is no such folder, or no such name
        if not base:
            what = "name" if is_name else "checkpoint folder"
            where = "neither on the command line nor in a readable configuration file"
            missing.append(Unreached(entry.key, f"the {what} is {where}: use --set"))
            continue
        usual = (
            "keep the debug run apart from the real one"
            if is_name
            else "do not resume from or overwrite the checkpoints of the real run"
        )
        own = None if key in given else _as_value(base, command.profile.dialect)
        extension = PurePath(base).suffix if entry.file else None
        edits.append(
            Edit(key, entry.reason or usual, suffix=request.name_suffix, base=own, extension=extension or None)
        )
    if not entries and command.profile.name != GENERIC:
        missing.append(Unreached("experiment name", "no option of the command names the run: use --set"))


def _as_value(text: str, dialect: str) -> str:
    """What a configuration file names, as a value on the command line."""
    if dialect != "hydra" or _PLAIN.fullmatch(text):
        return text
    escaped = text.replace("'", "\\'")
    return f"'{escaped}'"


def _edit_length(command: Command, request: Request, edits: list[Edit], missing: list[Unreached]) -> None:
    length, unit = (request.steps, "step") if request.steps is not None else (request.epochs, "epoch")
    if length is None:
        return
    entries = applicable(
        command.profile.steps if unit == "step" else command.profile.epochs, command.program, command.options
    )
    for entry in entries:
        value = _scaled(length, entry, command)
        if value is None:
            missing.append(
                Unreached(entry.key, f"its value is in units of {entry.times}, which the command does not set")
            )
            continue
        plural = "" if length == 1 else "s"
        reason = f"{length} {unit}{plural} {'is' if length == 1 else 'are'} enough to debug"
        edits.append(Edit(entry.key, f"{reason}; {entry.reason}" if entry.reason else reason, value=str(value)))
    # The options of other programs are unknown; report only changes that the user requested.
    is_default = command.profile.name == GENERIC and (length, unit) == (1, "epoch")
    if not entries and not is_default:
        missing.append(
            Unreached(f"length in {unit}s", f"no option of {command.profile.name} sets it here: try --steps or --set")
        )


def _edit_recording(
    command: Command, request: Request, recording: Path, edits: list[Edit], missing: list[Unreached]
) -> None:
    """Enables the framework's own dumps; with KINDS only those, as far as it distinguishes them."""
    profile = command.profile
    hooked = {kind for framework, hook in recorded_hooks() if framework.name == profile.name for kind in hook.records}
    if not profile.record and not hooked and profile.name != GENERIC:
        missing.append(Unreached("recording", f"{profile.name} has neither hooks nor a known option for dumps"))
    if not profile.record:
        return
    entries = [entry for entry in profile.record if not entry.kind or entry.kind in request.record_kinds]
    edits += _fixed(command, entries, "the framework's own dumps go into the run folder", recording)
    if request.watch is not None:
        kept = _fixed(command, profile.watch, "only the last steps and those around an event are kept", recording)
        edits += [replace(edit, value=(edit.value or "").replace("{keep}", str(request.watch.keep))) for edit in kept]
    small = tuple(kind for kind, _ in profile.record_kinds if kind not in _LARGE_KINDS)
    wanted = request.record_kinds or (WATCHED_KINDS if request.watch is not None else small)
    for kind, key in profile.record_kinds:
        if kind in wanted:
            edits.append(Edit(key, "set by --record", value="true"))
        elif request.record_kinds and kind not in _LARGE_KINDS:
            edits.append(Edit(key, "not among the kinds of --record", value="false"))
    can = [kind for kind, _ in profile.record_kinds] or profile.records
    can = [*can, *dict.fromkeys(entry.kind for entry in profile.record if entry.kind)]
    for kind in request.record_kinds:
        if kind not in can and kind not in hooked:
            held = ", ".join(can) or "what its documentation lists"
            missing.append(Unreached(f"recording of {kind}", f"the dumps of {profile.name} contain {held}"))


def _scaled(length: int, entry: OptionEntry, command: Command) -> int | None:
    if not entry.times:
        return length
    unit = command.options.get(entry.times, "")
    return length * int(unit) if unit.isdigit() else None


def _fixed(command: Command, entries: Sequence[OptionEntry], reason: str, recording: Path) -> list[Edit]:
    asks = any(entry.needs for entry in entries)
    configured = configured_names(command.program, Path(command.call.cwd)) if asks else ()
    return [
        Edit(entry.key, entry.reason or reason, value=entry.value.replace("{recording}", str(recording)))
        for entry in applicable(entries, command.program, command.options, configured)
    ]


def _with_own(edits: list[Edit], request: Request) -> list[Edit]:
    """Each option once, as it is edited last; and the user's `--set`, which wins on the same option. Two values for one
    option are an error."""
    own: dict[str, str] = {}
    for key, value in request.set_options:
        if own.setdefault(key, value) != value:
            raise UsageError(f"conflicting values for --set {key}: {own[key]} and {value}", "give it once")
    last = {edit.key: edit for edit in edits}
    return [edit for edit in last.values() if edit.key not in own] + [
        Edit(key, "set by --set", value=value) for key, value in own.items()
    ]


def changes_of(command: Command, edits: Sequence[Edit], reach: Reach) -> list[LaunchChange]:
    """The edits that change something, as they will be written."""
    changes = []
    given = command.options
    for edit in edits:
        value = edit_value(edit.to_rule(), given)
        if value is not None:
            given[edit.key] = value
            changes.append(LaunchChange(edit.key, value, reach.options, edit.reason))
    return changes


def armed_arguments(command: Command, edits: Sequence[Edit]) -> list[str]:
    """What the program will find in sys.argv[1:]."""
    return edited(command.program.arguments, [edit.to_rule() for edit in edits], command.profile.dialect)


def rule_of(command: Command, edits: Sequence[Edit]) -> dict[str, Any]:
    """The command's rule for the start-up hook."""
    kind = "script" if command.program.kind == "executable" else command.program.kind
    return {
        "kind": kind,
        "name": command.program.name,
        "arguments": [digest(word) for word in command.program.arguments],
        "dialect": command.profile.dialect,
        "edits": [edit.to_rule() for edit in edits],
    }


def as_words(command: Command, edits: Sequence[Edit]) -> list[str]:
    """The changes as words for a command line."""
    words: list[str] = []
    given = command.options
    for edit in edits:
        value = edit_value(edit.to_rule(), given)
        if value is not None:
            words += written(edit.key, value, command.profile.dialect)
    return words
