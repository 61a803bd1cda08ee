"""How the interpreter of a training command is really called, when its name leads to a wrapper."""

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

from rldbg.launch.command_line import is_interpreter
from rldbg.launch.dry_run.calls import Call

_ELF = b"\x7fELF"


def through_wrapper(call: Call) -> Call:
    """The call as the interpreter sees it: pyenv and its like are shell scripts that start it under another name."""
    program = call.argv[0]
    if not is_interpreter(program):
        return call
    found = shutil.which(program, path=call.environment.get("PATH"))
    if found is None or _is_binary(Path(found)):
        return call
    try:
        answer = subprocess.run(
            [found, "-c", "import json, sys; print(json.dumps(sys.orig_argv[0]))"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
            cwd=call.cwd if os.path.isdir(call.cwd) else None,  # noqa: PTH112 - never raises
        )
        name = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return call  # what the wrapper does cannot be known without running it
    return replace(call, argv=(str(name), *call.argv[1:]))


def _is_binary(file: Path) -> bool:
    try:
        with file.open("rb") as handle:
            return handle.read(4) == _ELF
    except OSError:
        return True
