"""Hazards in a script for the debugger, the machine or the results, reported before anything runs."""

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from rldbg.agent import STARTUP
from rldbg.core import Finding
from rldbg.frameworks import GENERIC, find_framework, frameworks
from rldbg.launch.command_line import understand
from rldbg.launch.configuration import missing_configuration
from rldbg.launch.dry_run.calls import ShellCall
from rldbg.launch.dry_run.execution import DryRun
from rldbg.launch.findings import finding
from rldbg.launch.modules import missing_modules
from rldbg.launch.reach import SENTINEL
from rldbg.launch.recognition import Command, may_train, recognise
from rldbg.launch.requirements import where_paths_come_from, why_it_ended
from rldbg.launch.script import ScriptLine, logical_lines, placeholders, read_commands, read_text

_RAY_VARIABLES = (
    "RAY_DEBUG",
    "RAY_DEBUG_POST_MORTEM",
    "RAY_ADDRESS",
    "RAY_AUTH_MODE",
    "RAY_AUTH_TOKEN",
    "RAY_RUNTIME_ENV_HOOK",
)
_SUSPICIOUS = re.compile(r"RAY_(?:DEBUG|POST)\w*")
_BATCH_HEADER = re.compile(r"(?:\s*(?:#.*)?\n)*?#SBATCH\b")
_STRAY = re.compile(r"-|\+{1,2}[\w.]+=|[\w]+\.[\w.]+=")
_TEE = re.compile(r"\|&?\s*tee\s+((?:-\w+\s+)*)([^\s;|&]+)")
_VARIABLE = re.compile(r"\$\{?(\w+)")
_ASSIGNMENT = re.compile(r"(?:^|[;&]\s*|\b(?:export|local|readonly|declare)\s+)(\w+)=(.*)")
# What differs from run to run in the name of a file.
_NEW_EACH_TIME = re.compile(r"\$\(\s*date\b|`\s*date\b|\$\$|\$\{?(?:RANDOM|EPOCHSECONDS|SLURM_JOB_ID)\b|\bmktemp\b")
_OUTPUT = re.compile(
    r"(?:^|[._-])(?:out|output|save|logs?|logging|checkpoints?|ckpts?|dumps?|exports?|results?|default_local)(?=$|[._-])"
)
_ELSEWHERE = ("cluster", "allocation", "batch", "container", "host")
_QUOTED_PIPE = re.compile(r"(['\"])(?:(?!\1).)*\|(?:(?!\1).)*\1")
_NO_SUCH_FILE = "No such file or directory"
_WORD = re.compile(r"[\w./-]+")


def script_hazards(script: Path, commands: Sequence[Command], *, in_slurm: bool) -> list[Finding]:
    """Hazards found in the text of the script."""
    text = script.read_text(encoding="utf-8", errors="replace")
    found: list[Finding] = []
    for line in logical_lines(text):
        match = _killers().search(line.text)
        if match:
            found.append(_kills(f"{script}:{line.number}", match[0], match[1]))
    if _BATCH_HEADER.match(text) and not in_slurm:
        found.append(finding("launch.batch-script", str(script), "it has #SBATCH lines", script=str(script)))
    for left in placeholders(script):
        if any(left.text in word for command in commands if command.kind == "training" for word in command.call.argv):
            found.append(finding("launch.placeholder", f"{script}:{left.number}", left.text, text=left.text))
    return _once(found)


@cache
def _killers() -> re.Pattern[str]:
    """Commands that end every process of a name that a training job, its cluster or its engines have."""
    names = "|".join(re.escape(framework.name) for framework in frameworks() if framework.name != GENERIC)
    return re.compile(rf"\b(?:pkill|killall)\b[^;&|\n]*\b(python\w*|ray|{names})\b")


def _kills(where: str, command: str, victim: str) -> Finding:
    id = "launch.kills-python" if victim.startswith("python") else "launch.kills-processes"
    return finding(id, where, command, victim=victim)


def run_hazards(
    dry_run: DryRun, commands: Sequence[Command], script: Path | None, lacks: Sequence[str] = (), arguments: int = 0
) -> list[Finding]:
    """Hazards found by the dry run; `lacks` is what to try if the script ends early."""
    found = [*_ended(dry_run, commands, lacks), *_isolation(dry_run, script)]
    for call in dry_run.calls:
        base = call.argv[0].rsplit("/", 1)[-1]
        words = " ".join(call.argv)
        if base in ("pkill", "killall") and (match := _killers().search(words)):
            found.append(_kills(_place(call), words, match[1]))
        if base == "ray" and call.argv[1:2] == ("stop",):
            found.append(finding("launch.stops-ray", _place(call), words))
        if base == "rm" and (removed := _removed_folders(call, commands)):
            found.append(finding("launch.removes-folder", _place(call), words[:160], folders=", ".join(removed)))
        if _STRAY.match(call.argv[0]):
            found.append(finding("launch.stray-options", _place(call), words[:120]))
    for command in commands:
        if command.kind == "training":
            found += [*training_hazards(command), *_unmounted(command, dry_run.calls)]
    return _once([_with_origin(each, dry_run, script, arguments) for each in found])


def _with_origin(found: Finding, dry_run: DryRun, script: Path | None, arguments: int) -> Finding:
    """A path that does not exist may be made of variables without a value."""
    steps = where_paths_come_from(found.where, dry_run, script, arguments)
    return replace(found, fix=steps) if steps and found.id == "launch.program-missing" else found


def training_hazards(command: Command) -> list[Finding]:
    return [
        *_lost_status(command),
        *_detached(command),
        *variable_hazards(command.call.environment, _place(command.call)),
        *_missing(command),
        *missing_modules(command, _place(command.call)),
        *_shared_logs(command),
    ]


def _lost_status(command: Command) -> list[Finding]:
    call = command.call
    if call.pipefail:
        return []
    text = next((line.text for line in logical_lines(read_text(call.file)) if line.number == call.line), "")
    program = _piped_to(text, command)
    seen = f"| {program}, without `set -o pipefail`"
    return [finding("launch.exit-status-lost", _place(call), seen, program=program)] if program else []


def _piped_to(text: str, command: Command) -> str:
    """What reads the output of the training; not what the training itself reads (`yes | python train.py`)."""
    words = {command.program.name, command.call.argv[0].rsplit("/", 1)[-1]}
    values = (match[0] for match in _QUOTED_PIPE.finditer(text))
    for value in [value for value in values if not any(word in value for word in words)]:
        text = text.replace(value, "")
    stages = re.split(r"\|&?", text.replace("||", ""))
    own = next((at for at, stage in enumerate(stages) if any(word in stage for word in words)), 0)
    after = stages[own + 1].split() if own + 1 < len(stages) else []
    return after[0] if after and _WORD.fullmatch(after[0]) else ""


def _detached(command: Command) -> list[Finding]:
    why = detached_by(command)
    return [finding("launch.detached", _place(command.call), why)] if why else []


def detached_by(command: Command) -> str:
    """What returns before the training has ended, perhaps before it has begun; empty if nothing does."""
    heads = [word for peeled in command.program.launchers for word in peeled.head]
    names = {peeled.launcher.name for peeled in command.program.launchers} | {
        call.argv[0].rsplit("/", 1)[-1] for call in command.via
    }
    return "`ray job submit --no-wait`" if "--no-wait" in heads else "`sbatch`" if "sbatch" in names else ""


def variable_hazards(environment: Mapping[str, str], where: str) -> list[Finding]:
    """Values of Ray's variables that switch breakpoints off or to another debugger, and names that are nearly right."""
    found = []
    value = environment.get("RAY_DEBUG")
    if value is not None and value not in ("1", "legacy"):
        found.append(finding("launch.breakpoints-off", where, f"RAY_DEBUG={value}"))
    if value == "legacy":
        found.append(finding("launch.legacy-debugger", where, "RAY_DEBUG=legacy"))
    for name in environment:
        near = get_close_matches(name, _RAY_VARIABLES, n=1, cutoff=0.85)
        if name not in _RAY_VARIABLES and near and _SUSPICIOUS.match(name):
            value = environment[name]
            found.append(
                finding("launch.misspelt-variable", where, f"{name}={value}", name=name, right=near[0], value=value)
            )
    return found


def _missing(command: Command) -> list[Finding]:
    call, program = command.call, command.call.argv[0]
    if "/" not in program and not shutil.which(program, path=call.environment.get("PATH") or None):
        return [finding("launch.not-installed", _place(call), f"{program}: not on PATH", program=program)]
    programs = [
        finding("launch.program-missing", _place(call), f"{name}: no such file below {call.cwd}", program=name)
        for name in missing_files(command)
    ]
    return programs or _missing_configuration(command)


def _missing_configuration(command: Command) -> list[Finding]:
    call = command.call
    if _is_elsewhere(command):
        return []
    file = missing_configuration(command.program, Path(call.cwd), call.there)
    return [finding("launch.config-missing", _place(call), f"{file}: no such file", file=file)] if file else []


def _is_elsewhere(command: Command) -> bool:
    """In a container or on another host."""
    return bool(command.via) or any(peeled.launcher.place in _ELSEWHERE for peeled in command.program.launchers)


def missing_files(command: Command) -> list[str]:
    """Programs that do not exist; not checked in containers or on other hosts."""
    if _is_elsewhere(command):
        return []
    named = [command.call.argv[0]] if "/" in command.call.argv[0] else []
    named += [command.program.name] if command.program.kind == "script" else []
    if command.program.kind == "module" and ".launcher" in command.program.name:
        named += [word for word in command.program.arguments[:1] if word.endswith(".py")]
    # What the script itself has written was there when it was called.
    return [name for name in named if name not in command.call.there and not (Path(command.call.cwd) / name).exists()]


def _unmounted(command: Command, calls: Sequence[ShellCall]) -> Iterable[Finding]:
    """Slurm passes the environment into a container, but not the folders that it names; a later step may join a
    container that an earlier one has made with its mounts."""
    steps = [call.argv for call in (*command.via, command.call) if call.argv[0].rsplit("/", 1)[-1] == "srun"]
    if not any(word.startswith(("--container-image", "--container-name")) for words in steps for word in words):
        return
    mounts = [
        mount.split(":")
        for call in calls
        for word in call.argv
        if word.startswith("--container-mounts=")
        for mount in word.partition("=")[2].split(",")
    ]
    same = [Path(parts[0]) for parts in mounts if parts[0] and parts[0] == (parts[1:2] or parts)[0]]
    package = str(Path(STARTUP).parents[1])
    needed = [package, command.call.environment.get(SENTINEL, package)]
    missing = [each for each in dict.fromkeys(needed) if not any(Path(each).is_relative_to(top) for top in same)]
    if missing:
        folders = ",".join(f"{each}:{each}" for each in missing)
        yield finding(
            "launch.not-mounted", _place(command.call), f"not in --container-mounts: {folders}", mounts=folders
        )


def _shared_logs(command: Command) -> list[Finding]:
    """`| tee FILE`: the debug run writes into the log of the real one."""
    call = command.call
    lines = logical_lines(read_text(call.file))
    text = next((line.text for line in lines if line.number == call.line), "")
    match = _TEE.search(text)
    if match is None or _NEW_EACH_TIME.search(_with_values(match[2], lines)):
        return []
    appends = "-a" in match[1].split()
    how = "is appended to" if appends else "is overwritten"
    return [finding("launch.shared-log", _place(call), f"| tee {match[1].strip()} {match[2]}", file=match[2], how=how)]


def _with_values(text: str, lines: Sequence[ScriptLine]) -> str:
    """A word of the script, followed by what the script assigns to the variables in it, and to those in that."""
    assigned = [match.groups() for line in lines for match in _ASSIGNMENT.finditer(line.text)]
    seen: set[str] = set()
    while names := set(_VARIABLE.findall(text)) - seen:
        seen |= names
        text = " ".join([text, *(value for name, value in assigned if name in names)])
    return text


def _ended(dry_run: DryRun, commands: Sequence[Command], lacks: Sequence[str]) -> Iterable[Finding]:
    if dry_run.passed:
        last = [line for line in dry_run.output.splitlines() if line.strip()]
        early = finding("launch.stops-early", dry_run.passed[0], *last[-2:], *why_it_ended(dry_run))
        yield replace(early, fix=tuple(lacks)) if lacks else early
    if dry_run.ended == "too long":
        yield finding("launch.dry-run-unfinished", dry_run.last)
    if dry_run.ended == "waiting" and not any(command.kind == "training" for command in commands):
        seen = "it waits for something that does not happen in a dry run"
        fix = ("give the training command itself: rldbg run -- COMMAND",)
        yield replace(finding("launch.dry-run-unfinished", dry_run.last, seen), fix=fix)


def never_reached(
    script: Path, dry_run: DryRun, commands: Sequence[Command], lacks: Sequence[str] = ()
) -> list[Finding]:
    """Why no training was seen: those that the text of the script holds, where it ended, and what it said last."""
    said = [line.strip() for line in dry_run.output.splitlines() if line.strip()]
    how = f"it ends at {dry_run.last or 'once'} with {dry_run.exit_code}"
    if dry_run.ended != "by itself":
        how = f"it waits at {dry_run.last} for something that does not happen in a dry run"
    held = [command.call for command in recognise(read_commands(script)) if command.kind == "training"]
    known = any(command.kind == "other" and command.profile.name != GENERIC for command in commands)
    if known:
        # A program that the script names by a variable: `python $PROGRAM` was one that is known not to train.
        held = [call for call in held if "$" not in understand(call.argv).name]
    places: list[tuple[str, tuple[str, ...]]] = [
        (f"{script}:{call.line}", (" ".join(call.argv)[:120],)) for call in held
    ]
    ran = known or any(may_train(command.program) for command in commands)
    if not places and not ran and (dry_run.exit_code or dry_run.ended != "by itself"):
        places = [(dry_run.last or str(script), ())]
    last = [f"its output: {line[:160]}" for line in _telling(said)]
    seen = (how, *why_it_ended(dry_run), *last)
    found = [finding("launch.training-not-reached", where, *words, *seen) for where, words in places]
    return [replace(each, fix=tuple(lacks)) if lacks else each for each in found]


def no_training(script: Path | None, commands: Sequence[Command], dry_run: DryRun | None = None) -> Finding:
    """No command is known to train: which programs it starts instead, and the last output if the dry run failed."""
    programs = [command for command in commands if command.program.kind in ("module", "script")]
    started = [f"it starts {command.program.name}: {_not_training(command)}" for command in programs]
    said = [line.strip() for line in dry_run.output.splitlines() if line.strip()] if dry_run is not None else []
    failed = dry_run is not None and dry_run.ended == "by itself" and dry_run.exit_code
    telling = _telling(said) if failed else [line for line in said if _NO_SUCH_FILE in line][:2]
    last = [f"its output: {line[:160]}" for line in telling]
    return finding("launch.no-training", str(script or "the command"), *dict.fromkeys(started), *last)


def _telling(said: Sequence[str]) -> list[str]:
    """The last lines of a script's output, and the first that a file is missing: it may have gone on without it."""
    missing = next((line for line in said if _NO_SUCH_FILE in line), "")
    return [line for line in dict.fromkeys([missing, *said[-2:]]) if line]


def _not_training(command: Command) -> str:
    if command.profile.name == GENERIC:
        return "its name does not say that it trains"
    return f"a program of {find_framework(command.profile.name).title} that does not train"


def _isolation(dry_run: DryRun, script: Path | None) -> Iterable[Finding]:
    if dry_run.isolation == "namespaces" or script is None:
        return
    why = "; ".join(f"{name}: {reason}" for name, reason in dry_run.failures.items())
    what = {
        "none": "this machine does not allow a sandbox, so the script was only read: variables are not expanded",
        "landlock": "the script could not write files: commands whose output goes to a file are missing",
        "unprivileged": "the script ran as user nobody; it could still write to world-writable folders",
    }[dry_run.isolation]
    yield finding("launch.weak-sandbox", str(script), why, what=what)


def _place(call: ShellCall) -> str:
    return f"{call.file}:{call.line}" if call.line else call.file or "the command line"


def _once(findings: Sequence[Finding]) -> list[Finding]:
    """Reports the same finding at the same place once."""
    return list({(finding.id, finding.where): finding for finding in findings}.values())


def _removed_folders(call: ShellCall, commands: Sequence[Command]) -> list[str]:
    """What `rm -r` takes away, as far as it exists here or holds what a training writes; of folders in /tmp that exist,
    only those below the script's own folder."""
    options = [word for word in call.argv[1:] if word.startswith("-")]
    if not any(word == "--recursive" or (not word.startswith("--") and re.search("[rR]", word)) for word in options):
        return []
    own, outputs = Path(call.cwd).resolve(), list(_outputs(commands))
    folders = [Path(call.cwd) / word for word in call.argv[1:] if not word.startswith("-")]
    return [str(each) for each in folders if _is_there(each, own) or any(_holds(each, output) for output in outputs)]


def _is_there(folder: Path, own: Path) -> bool:
    return folder.is_dir() and (not folder.is_relative_to("/tmp") or folder.resolve().is_relative_to(own))


def _holds(folder: Path, output: Path) -> bool:
    return folder.is_relative_to(output) or output.is_relative_to(folder)


def _outputs(commands: Sequence[Command]) -> Iterator[Path]:
    """The folders that training commands are told to write into."""
    for command in commands:
        if command.kind != "training":
            continue
        named = {entry.key for entry in command.profile.checkpoints}
        for key, value in command.options.items():
            if key in named or (_OUTPUT.search(key) and "/" in value):
                yield Path(command.call.cwd) / value
