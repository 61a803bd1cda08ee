"""What was really armed: the notes of the start-up hook in the run folder, compared with the dry run."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rldbg.agent import choose_rule, program_of
from rldbg.core import Finding, Run, redact
from rldbg.frameworks import nothing_hooked, recorded_config, recording_findings
from rldbg.launch.changes import rule_of
from rldbg.launch.explanation import Explained, LaunchExplanation
from rldbg.launch.findings import finding
from rldbg.launch.hazards import detached_by
from rldbg.launch.request import Request
from rldbg.tripwire import WATCHED_KINDS


@dataclass(frozen=True, slots=True)
class Armed:
    """One process in which the start-up hook changed the arguments."""

    orig_argv: tuple[str, ...]
    argv: tuple[str, ...]


def armed_processes(run: Path) -> list[Armed]:
    found = []
    for file in sorted((run / "armed").glob("*.json")):
        body: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        found.append(Armed(tuple(body["orig_argv"]), tuple(body["argv"])))
    return found


def judge_arming(
    trainings: Sequence[Explained], armed: Sequence[Armed], *, redacted: bool = True, is_complete: bool = True
) -> list[Finding]:
    """Training commands that ran without their changes, or with different ones; of a run that was not ended before
    they could begin."""
    findings = []
    rules = [rule_of(explained.command, explained.edits) for explained in trainings]
    for explained, rule in zip(trainings, rules, strict=True):
        call = explained.command.call
        where = f"{call.file}:{call.line}" if call.line else " ".join(call.argv[:3])
        mine = [process for process in armed if _is_mine(process, rule, rules)]
        if not mine and (not is_complete or detached_by(explained.command)):
            # It may not have begun yet.
            continue
        if not mine:
            name = explained.command.program.name
            findings.append(finding("launch.not-armed", where, f"no process of {name} reported changed arguments"))
            continue
        promised = tuple(redact(explained.armed_arguments) if redacted else explained.armed_arguments)
        if not any(process.argv[1:] == promised for process in mine):
            findings.append(finding("launch.armed-otherwise", where, *_difference(mine[0].argv[1:], promised)))
    return findings


def judge_recording(run: Run, explanation: LaunchExplanation, request: Request) -> list[Finding]:
    """What of the recording is missing; the framework's own configuration becomes part of run.json."""
    watched = WATCHED_KINDS if request.watch is not None and not request.record_kinds else ()
    findings = recording_findings(run.path, request.record_kinds, among=watched)
    config = recorded_config(run.path)
    if config:
        run.update(config=config)
    by_options = any(explained.command.profile.record for explained in explanation.trainings)
    nothing = None if by_options else nothing_hooked(run.path)
    return [*findings, *([nothing] if nothing is not None else [])]


def _is_mine(process: Armed, rule: dict[str, Any], rules: Sequence[dict[str, Any]]) -> bool:
    kind, name, _ = program_of(process.orig_argv)
    return choose_rule(rules, kind, name, process.argv[1:]) is rule


def _difference(found: Sequence[str], promised: Sequence[str]) -> list[str]:
    more, fewer = [word for word in found if word not in promised], [word for word in promised if word not in found]
    return [*(f"only in the run: {word}" for word in more[:4]), *(f"only in the dry run: {word}" for word in fewer[:4])]
