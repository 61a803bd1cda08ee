"""Whether the interpreter that would run `-m MODULE` can find it, asked of that interpreter; nothing is imported."""

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from shlex import quote

from rldbg.agent import STARTUP
from rldbg.core import Finding
from rldbg.frameworks import GENERIC
from rldbg.launch.command_line import is_interpreter
from rldbg.launch.findings import finding
from rldbg.launch.recognition import Command
from rldbg.launch.script import logical_lines, read_text

_LIMIT_S = 10
_ASK = """
import importlib.machinery, importlib.util, sys
top, *inner = sys.argv[1].split(".")
spec = importlib.util.find_spec(top)
for part in inner:
    if spec is None or spec.submodule_search_locations is None:
        spec = None
        break
    top += "." + part
    spec = importlib.machinery.PathFinder.find_spec(top, list(spec.submodule_search_locations))
print("found" if spec else "missing")
"""
# What a script does so that an interpreter, or a folder, has more than it has here.
_PROVIDES = re.compile(
    r"\bpip3?\s+install\b|\buv\s+(?:pip|sync|add|venv)\b|\b(?:poetry|pdm|pipenv)\s+install\b|\bactivate\b"
    r"|\bmodule\s+load\b|\bspack\s+load\b|\bgit\s+clone\b|(?:^|[;&|]\s*)(?:cd|pushd)\s|\bPYTHONPATH\+?="
)


def missing_modules(command: Command, place: str) -> list[Finding]:
    """An error where nothing explains that the module is missing; not checked in containers or on other hosts."""
    call, program = command.call, command.program
    if program.kind != "module" or command.via or program.name in call.there:
        return []
    found = shutil.which(interpreter_of(command), path=call.environment.get("PATH") or None)
    folders = call.environment.get("PYTHONPATH", "").split(os.pathsep)
    path = os.pathsep.join(folder for folder in folders if folder != STARTUP)
    if found is None or not Path(call.cwd).is_dir() or _finds(found, program.name, call.cwd, path):
        return []
    package, seen = program.name.partition(".")[0], f"{found}: No module named {program.name}"
    provided = next((line for line in logical_lines(read_text(call.file)) if _PROVIDES.search(line.text)), None)
    if provided is not None:
        why = f"perhaps it has it after line {provided.number} of the script: {provided.text[:80]}"
        return [finding("launch.not-installed", place, seen, why, program=package)]
    if command.profile.name != GENERIC:
        return [finding("launch.not-installed", place, seen, program=package)]
    name = program.name
    return [finding("launch.module-missing", place, seen, program=name, interpreter=found, package=quote(package))]


def interpreter_of(command: Command) -> str:
    """The Python that runs a program here; a launcher (torchrun) uses the one in its own folder."""
    program, first = command.program, command.call.argv[0]
    if not program.launchers or is_interpreter(first):
        return program.interpreter if not program.launchers else first
    if any(each.launcher.starts != "python" or each.launcher.place != "here" for each in program.launchers):
        return ""
    found = shutil.which(first, path=command.call.environment.get("PATH") or None)
    beside = Path(found).with_name("python") if found else None
    return str(beside) if beside is not None and beside.exists() else ""


@cache
def _finds(interpreter: str, module: str, cwd: str, path: str) -> bool:
    """Also true when it does not answer."""
    # Of the environment only what decides where modules are looked for: start-up hooks of an agent have no place here.
    environment = {"PYTHONPATH": path, "PATH": os.defpath}
    try:
        done = subprocess.run(
            [interpreter, "-c", _ASK, module],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return True
    return not done.stdout.rstrip().endswith("missing")
