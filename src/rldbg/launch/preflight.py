"""Checks before a run is started, each with its fix, for the interpreter that will train."""

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from rldbg.core import Finding, Severity
from rldbg.launch.explanation import Explained, LaunchExplanation
from rldbg.launch.findings import finding
from rldbg.launch.hazards import variable_hazards
from rldbg.launch.modules import interpreter_of
from rldbg.launch.recognition import Command
from rldbg.launch.request import Request

_LIMIT_S = 60.0
_REFUSED = re.compile(
    r"(?m)^.*(?:ConfigKeyError|ConfigAttributeError|ConfigCompositionException|ConfigValueError|ConfigTypeError"
    r"|Could not (?:override|append|delete)|is not in struct|mismatched input|Key '[^']+' not in).*$"
)


OLDEST_RAY = (2, 9, 1)
OLDEST_DEBUGPY = (1, 8, 0)
_DASHBOARD_PORT = 8265
_ASK = "import json, sys; print(json.dumps([list(sys.version_info[:2]), sys.path]))"
_DASHBOARD_PARTS = ("aiohttp", "aiohttp_cors", "prometheus_client")


@dataclass(frozen=True, slots=True)
class Interpreter:
    """What the training's interpreter has installed."""

    python: tuple[int, ...] = ()
    ray: str = ""
    debugpy: str = ""
    has_dashboard: bool = True


@dataclass(frozen=True, slots=True)
class Preflight:
    """Findings of severity error keep the run from starting."""

    findings: tuple[Finding, ...] = field(default=())

    @property
    def forbids(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity is Severity.ERROR]


def preflight(explanation: LaunchExplanation, request: Request) -> Preflight:
    found = list(variable_hazards(request.environment, "your environment"))
    for explained in explanation.trainings:
        interpreter = ask_interpreter(explained.command)
        if interpreter is not None:
            found += judge_interpreter(interpreter, " ".join(explained.command.call.argv[:3]), request.ray_breakpoints)
        break
    # Importing the framework takes a while; the options of --laptop are ours and known to fit.
    for explained in () if request.laptop else explanation.trainings:
        refused = refused_options(explained, dict(request.environment) | request.added_environment)
        found += [refused] if refused is not None else []
    found += _dashboard_port(explanation)
    return Preflight(tuple({(finding.id, finding.where): finding for finding in found}.values()))


def ask_interpreter(command: Command) -> Interpreter | None:
    """What the interpreter of a training has installed; None if it is not available here."""
    program = command.program.interpreter
    path = command.call.environment.get("PATH")
    place = any(peeled.launcher.place != "here" for peeled in command.program.launchers)
    if not program or place or any(peeled.launcher.starts == "uv" for peeled in command.program.launchers):
        return None
    if any(peeled.launcher.starts == "python" for peeled in command.program.launchers):
        program = "python3"
    found = shutil.which(program, path=path)
    if found is None:
        return None
    asked = _environment_of(Path(found)) or _asked(found, _existing(command.call.cwd))
    return _installed(*asked) if asked else None


def _environment_of(interpreter: Path) -> tuple[tuple[int, ...], list[Path]] | None:
    """Version and packages of a virtual or conda environment, by its folders; None where only Python itself knows."""
    prefix = interpreter.parent.parent
    folders = list(prefix.glob("lib/python3.*/site-packages"))
    shared = prefix / "pyvenv.cfg"
    if len(folders) != 1 or (shared.is_file() and "system-site-packages = true" in shared.read_text()):
        return None
    return (3, int(folders[0].parent.name.removeprefix("python3."))), folders


def _asked(interpreter: str, cwd: str) -> tuple[tuple[int, ...], list[Path]] | None:
    try:
        answer = subprocess.run(
            [interpreter, "-I", "-c", _ASK], capture_output=True, text=True, timeout=10, check=True, cwd=cwd
        )
        version, folders = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return tuple(version), [Path(folder) for folder in folders]


def _installed(python: tuple[int, ...], folders: Sequence[Path]) -> Interpreter:
    """What is there, from the names of the folders alone: this is looked at before every run."""
    found: dict[str, str] = {}
    for name in (file.name for folder in folders if folder.is_dir() for file in folder.iterdir()):
        package, _, rest = name.partition("-")
        version = rest.rpartition(".")[0] if rest.endswith((".dist-info", ".egg-info")) else ""
        found[package.lower()] = version or found.get(package.lower(), "")
    has_dashboard = all(part in found for part in _DASHBOARD_PARTS)
    return Interpreter(python, found.get("ray", ""), found.get("debugpy", ""), has_dashboard)


def _existing(cwd: str) -> str:
    return cwd if Path(cwd).is_dir() else "/"


def judge_interpreter(interpreter: Interpreter, where: str, ray_breakpoints: bool) -> list[Finding]:
    found = []
    if interpreter.ray and _version(interpreter.ray) < OLDEST_RAY:
        found.append(finding("launch.ray-too-old", where, f"ray {interpreter.ray}"))
    if interpreter.ray and not interpreter.has_dashboard:
        found.append(finding("launch.no-dashboard", where, "ray without [default]"))
    if ray_breakpoints:
        found += _ray_s_debugpy(interpreter, where)
    return found


def _ray_s_debugpy(interpreter: Interpreter, where: str) -> list[Finding]:
    """Ray's own breakpoints use the debugpy of the training's environment; ours bring their own."""
    if interpreter.debugpy and _version(interpreter.debugpy) >= OLDEST_DEBUGPY:
        python = ".".join(map(str, interpreter.python))
        return [finding("launch.ray-post-mortem", where, f"Python {python}")] if interpreter.python >= (3, 12) else []
    return [finding("launch.debugpy-missing", where, f"debugpy {interpreter.debugpy or 'is not installed'}")]


def _dashboard_port(explanation: LaunchExplanation) -> list[Finding]:
    """A script that needs a fixed dashboard port that is already in use."""
    wanted = _wanted_ports([explained.command for explained in explanation.commands])
    seen = "`ray start` asks for port {}, which is already in use on this machine"
    taken = [port for port in sorted(wanted) if _is_taken(port)]
    return [finding("launch.dashboard-port-taken", f"port {port}", seen.format(port)) for port in taken]


def _wanted_ports(commands: Sequence[Command]) -> set[int]:
    ports = set()
    for command in commands:
        words = command.call.argv
        if words[0].rsplit("/", 1)[-1] == "ray" and words[1:2] == ("start",) and "--head" in words:
            text = " ".join(words)
            match = re.search(r"--dashboard-port[= ](\d+)", text)
            ports.add(int(match[1]) if match else _DASHBOARD_PORT)
    return ports


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.3)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def refused_options(explained: Explained, environment: Mapping[str, str]) -> Finding | None:
    """What the program says against its armed options, or that it said nothing in time; None when it takes them or
    cannot be asked here.

    Programs built on Hydra print their configuration and end when they are given `--cfg job`; others are ended once
    the function that composes their configuration has returned. Options refused there would be refused in the run.
    """
    command = explained.command
    words = _composing(explained)
    if not words:
        return None
    where = f"{command.call.file}:{command.call.line}" if command.call.line else " ".join(command.call.argv[:3])
    try:
        done = subprocess.run(
            words,
            cwd=command.call.cwd,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return finding("launch.options-not-checked", where, seconds=f"{_LIMIT_S:g}")
    except OSError:
        return None
    lines = _REFUSED.findall(done.stderr + done.stdout) if done.returncode else []
    said = [line for line in lines if not line.startswith(" ")] or lines  # others are code that a traceback shows
    return finding("launch.options-refused", where, *(line.strip()[:200] for line in said[:2])) if said else None


def _composing(explained: Explained) -> list[str]:
    """The command that composes a program's configuration and ends; none when it cannot be asked here."""
    command, program = explained.command, explained.command.program
    interpreter = interpreter_of(command)
    if program.kind not in ("module", "script") or command.via or not interpreter:
        return []
    given = list(explained.armed_arguments)
    if any(fnmatchcase(program.name, pattern) for pattern in command.profile.composes):
        module = ["-m"] if program.kind == "module" else []
        return [interpreter, *module, program.name, *given, "--cfg", "job"]
    if not command.profile.composes_in:
        return []
    # `python -m FRAMEWORK.launcher.local TRAIN.py ...` starts the program behind it with the same arguments.
    file, *rest = [program.name, *given] if program.kind == "script" else given or [""]
    only = str(Path(__file__).with_name("compose_only.py"))
    return [interpreter, only, command.profile.composes_in, file, *rest] if file.endswith(".py") else []
