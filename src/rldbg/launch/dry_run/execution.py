"""Runs a script with stubs for its commands, in a sandbox, and returns the commands it would have started."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Any

from rldbg.core import Environment
from rldbg.launch.dry_run.calls import PREFIX, ShellCall, read_calls
from rldbg.launch.dry_run.stillness import Effort, Stillness
from rldbg.launch.dry_run.stub import ALWAYS, LENIENT, PIP, PIP_QUESTIONS, RECORDED, SILENT
from rldbg.launch.profile import commands
from rldbg.launch.script import first_line

METHODS = ("namespaces", "landlock", "unprivileged")
_PRELUDE = Path(__file__).parent / "shell" / "prelude.sh"
_STUB = Path(__file__).parent / "shell" / "stub.sh"
_PACKAGES = str(Path(__file__).parents[3])
_SLEEPS_UNTIL_WAITING = 100
_SYSTEM_FOLDERS = ("/usr/bin", "/bin", "/usr/sbin", "/sbin", "/usr/local/sbin", "")
_CAP_SYS_RESOURCE = 24
_TAIL_BYTES = 20_000
_VERSIONED_PYTHON = re.compile(r"python3\.\d+")


@dataclass(frozen=True, slots=True)
class DryRun:
    """What happened. `isolation` is `none` when the machine allows no sandbox: then nothing was started."""

    isolation: str
    failures: Mapping[str, str]
    calls: tuple[ShellCall, ...] = ()
    exit_code: int = 0
    output: str = ""
    last: str = ""
    """The place of the last command of the script itself, FILE:LINE."""
    last_command: str = ""
    """Its text, as the shell has it."""
    condition: str = ""
    """The place of the last condition that the script itself asked for."""
    empty: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Per place, the variables that its commands use and that have no value, and the script's arguments (1, #)."""
    passed: tuple[str, ...] = ()
    """Places where the script wanted to stop, when it was carried past them."""
    ended: str = "by itself"
    """`by itself`, `waiting` (it slept for something that never came in a dry run) or `too long`."""


def execute(
    argv: Sequence[str],
    *,
    cwd: Path,
    script: Path,
    environment: Mapping[str, str],
    limit_s: float = 20.0,
    methods: Sequence[str] = METHODS,
    insist: bool = False,
) -> DryRun:
    """Runs `argv` (bash and a script) to its end, or for `limit_s` of processor time: a busy machine takes longer for
    the same script. Nothing outside a throw-away folder changes. With `insist` it is carried past its own checks, to
    see what it would start if they were met."""
    with tempfile.TemporaryDirectory(prefix="rldbg-dry-", ignore_cleanup_errors=True) as folder:
        scratch = Path(folder)
        scratch.chmod(0o755)
        (scratch / "layers").mkdir()
        results = scratch / "results"
        (results / "calls").mkdir(parents=True)
        bin_folder = scratch / "bin"
        programs = _programs(environment.get("PATH", os.defpath))
        _write_stubs(bin_folder, programs)
        inside = _environment(environment, bin_folder, results, programs)
        specification = {
            "argv": list(argv),
            "cwd": str(cwd),
            "environment": inside | ({f"{PREFIX}_INSIST": "1"} if insist else {}),
            "scratch": folder,
            "methods": list(methods),
            "script": str(script),
        }
        return _execute(specification, scratch, limit_s)


def _execute(words: dict[str, Any], scratch: Path, limit_s: float) -> DryRun:
    reading, writing = os.pipe()
    specification = scratch / "specification.json"
    specification.write_text(json.dumps(words | {"status_fd": writing}), encoding="utf-8")
    results = scratch / "results"
    with (results / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "rldbg.launch.dry_run.inside", str(specification)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(writing,),
            start_new_session=True,
            env=Environment().everything() | {"PYTHONPATH": _PACKAGES},
        )
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            status = json.loads(pipe.readline() or b'{"isolation": "none", "failures": {"start": "it did not start"}}')
        ended = _wait(process, results, limit_s)
    last, last_command, condition = (*_words(results / "last"), "", "", "")[:3]
    if last.startswith(":"):  # the shell in front of the command
        last, last_command = "", ""
    return DryRun(
        isolation=status["isolation"],
        failures=status["failures"],
        calls=tuple(_without_stubs(_where_it_begins(call), scratch / "bin") for call in read_calls(results / "calls")),
        exit_code=process.returncode,
        output=_text(results / "output"),
        last=_first(last),
        last_command=last_command,
        condition=_first(condition),
        empty=_by_place(_words(results / "empty")),
        passed=tuple(map(_first, _text(results / "passed").split("\n")[:-1])),
        ended=ended,
    )


def _where_it_begins(call: ShellCall) -> ShellCall:
    return replace(call, line=first_line(call.file, call.line)) if call.line else call


def _first(place: str) -> str:
    file, _, number = place.rpartition(":")
    return f"{file}:{first_line(file, int(number))}" if file and number.isdigit() else place


def _without_stubs(call: ShellCall, bin_folder: Path) -> ShellCall:
    """`$(which python)` found a stub; the path of the real program is reported instead."""
    if not any(str(bin_folder) in word for word in call.argv):
        return call
    path = os.pathsep.join(
        folder for folder in call.environment.get("PATH", "").split(os.pathsep) if folder != str(bin_folder)
    )

    def real(match: re.Match[str]) -> str:
        found = shutil.which(match[1] or "python3", path=path)
        return match[1] if found is None else found if match[1] else str(Path(found).parent)

    pattern = re.compile(re.escape(str(bin_folder)) + r"(?:/([\w.-]+))?")
    return replace(call, argv=tuple(pattern.sub(real, word) for word in call.argv))


def _text(file: Path) -> str:
    """The end of a file that may not exist."""
    try:
        with file.open("rb") as handle:
            handle.seek(max(0, file.stat().st_size - _TAIL_BYTES))
            return handle.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def _words(file: Path) -> list[str]:
    """Words that end with NUL."""
    try:
        return file.read_bytes().decode("utf-8", "replace").split("\0")[:-1]
    except FileNotFoundError:
        return []


def _by_place(words: Sequence[str]) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for place, name in zip(words[::2], words[1::2], strict=False):
        found.setdefault(_first(place), set()).add(name)
    return {place: frozenset(names) for place, names in found.items()}


def _wait(process: subprocess.Popen[bytes], results: Path, limit_s: float) -> str:
    ended = "by itself"
    stillness = Stillness(process.pid, results)
    effort = Effort(process.pid, limit_s)
    while process.poll() is None:
        if effort.is_spent():
            ended = "too long"
        elif stillness.is_reached():
            ended = "waiting"
        if ended != "by itself":
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            break
        try:
            process.wait(timeout=0.02)
        except subprocess.TimeoutExpired:
            continue
    return ended


def may_raise_limits() -> bool:
    """Whether `ulimit` may exceed the hard limits: by CAP_SYS_RESOURCE, which no sandbox can pass on."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> _CAP_SYS_RESOURCE & 1)
    return False


def _environment(
    environment: Mapping[str, str], bin_folder: Path, results: Path, programs: Mapping[str, str]
) -> dict[str, str]:
    more = {
        f"{PREFIX}_BIN": str(bin_folder),
        f"{PREFIX}_RESULTS": str(results),
        f"{PREFIX}_PRELUDE": str(_PRELUDE),
        f"{PREFIX}_PYTHON": sys.executable,
        f"{PREFIX}_PACKAGES": _PACKAGES,
        f"{PREFIX}_BASH_ENV": environment.get("BASH_ENV", ""),
        f"{PREFIX}_NAMES": " ".join([*RECORDED, *commands(), *_python_names(programs)]),
        f"{PREFIX}_PIP_QUESTIONS": " ".join(PIP_QUESTIONS),
        f"{PREFIX}_ADDRESSES": _addresses(),
        f"{PREFIX}_RAISES_LIMITS": "1" if may_raise_limits() else "",
        "BASH_ENV": str(_PRELUDE),
        "PATH": f"{bin_folder}{os.pathsep}{environment.get('PATH', os.defpath)}",
    }
    return dict(environment) | more


def _addresses() -> str:
    """What `hostname -I` says here: asked outside, because the sandbox has no network."""
    tool = shutil.which("hostname")
    if tool is None:
        return "127.0.0.1"
    try:
        answer = subprocess.run([tool, "-I"], capture_output=True, text=True, timeout=2, check=False)
    except (OSError, subprocess.SubprocessError):
        return "127.0.0.1"
    return answer.stdout.strip() or "127.0.0.1"


def _programs(path: str) -> dict[str, str]:
    """Every file on PATH by its name, where it is found first; each folder is read once."""
    found: dict[str, str] = {}
    for folder in path.split(os.pathsep):
        # PATH may name folders that are not there or not readable.
        with contextlib.suppress(OSError), os.scandir(folder or ".") as files:
            for file in files:
                found.setdefault(file.name, file.path)
    return found


def _python_names(programs: Mapping[str, str]) -> set[str]:
    """python3.11, python3.12 ... as the machine has them."""
    return {name for name in programs if _VERSIONED_PYTHON.fullmatch(name)}


def _console_scripts(programs: Mapping[str, str]) -> set[str]:
    """Programs written in Python: they would start for real. System folders hold none that train."""
    beside_python = {
        folder
        for folder in {os.path.dirname(file) for file in programs.values()} - set(_SYSTEM_FOLDERS)  # noqa: PTH120
        if any(os.access(f"{folder}/{name}", os.X_OK) for name in ("python", "python3"))
    }
    return {
        name
        for name, file in programs.items()
        if file.rpartition("/")[0] in beside_python and _is_python_script(Path(file))
    }


def _is_python_script(file: Path) -> bool:
    try:
        if file.is_dir() or not os.access(file, os.X_OK):
            return False
        with file.open("rb") as handle:
            opening = handle.read(200)
    except OSError:
        return False
    return opening.startswith(b"#!") and (b"python" in opening.splitlines()[0] or b"exec' " in opening)


def _write_stubs(folder: Path, programs: Mapping[str, str]) -> None:
    folder.mkdir()
    bash = programs.get("bash", "/bin/bash")
    # -p keeps bash from reading the dry run's own prelude here.
    _write(folder / ".unknown", f"#!{bash} -p\n{_STUB.read_text(encoding='utf-8')}")
    for name in (
        {*RECORDED, *commands(), *_python_names(programs), *_console_scripts(programs)} - SILENT - LENIENT - PIP
    ):
        if name in ALWAYS or name in programs:
            _link(folder / name, ".unknown")
    _write(folder / ".silent", "#!/bin/sh\nexit 0\n")
    for name in SILENT & programs.keys():
        _link(folder / name, ".silent")
    for name in PIP & programs.keys():
        questions = "|".join(sorted(PIP_QUESTIONS))
        really = f'PIP_DISABLE_PIP_VERSION_CHECK=1 exec timeout 10 {quote(programs[name])} "$@"'
        _write(folder / name, f"#!/bin/sh\ncase $1 in {questions}) {really} ;; esac\nexit 0\n")
    for name in LENIENT & programs.keys():
        _write(folder / name, f'#!/bin/sh\n{quote(programs[name])} "$@" 2>/dev/null\nexit 0\n')
    _write(folder / "sh", f'#!{bash} -p\nexec {quote(bash)} "$@"\n')
    (folder / "sleep").unlink()
    _write(folder / "sleep", f"#!{bash} -p{_SLEEP}")


_SLEEP = f"""
# Little time passes in a dry run, so that others get on meanwhile; who sleeps for ever waits for something that will
# not come. Each shell counts for itself: a script may have background processes that poll once per minute.
# The script may have put other folders in front of this one, and this one in there again.
PATH=:$PATH:
PATH=${{PATH//":${{0%/*}}:"/:}}
printf . >> "${PREFIX}_RESULTS/sleeps.$PPID"
slept=$(<"${PREFIX}_RESULTS/sleeps.$PPID")
if [[ ${{1-}} == infinity ]] || ((${{#slept}} > {_SLEEPS_UNTIL_WAITING})); then
  : > "${PREFIX}_RESULTS/waiting"
  while :; do command sleep 60; done
fi
[[ ${{1-}} =~ ^[0-9]+$ ]] && (($1 >= 30)) && short=0.3 || short=0.02
command sleep $short
"""


def _write(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
    file.chmod(0o755)


def _link(file: Path, target: str) -> None:
    file.symlink_to(target)
