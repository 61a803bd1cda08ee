"""The framework's own configuration, composed with the armed options before anything starts.

Programs built on Hydra print their configuration and end when they are given `--cfg job`: whatever they refuse then,
they would refuse in the run. What they cannot say within a minute, or without being installed here, is not asked again.
"""

import re
import subprocess
from collections.abc import Mapping
from fnmatch import fnmatchcase

from rldbg.core import Finding
from rldbg.launch.explanation import Explained
from rldbg.launch.findings import finding

_LIMIT_S = 60.0
_REFUSED = re.compile(
    r"(?m)^.*(?:ConfigKeyError|ConfigAttributeError|ConfigCompositionException|ConfigValueError|ConfigTypeError"
    r"|Could not (?:override|append|delete)|is not in struct|mismatched input|Key '[^']+' not in).*$"
)


def refused_options(explained: Explained, environment: Mapping[str, str]) -> Finding | None:
    """What the program says against its armed options; None when it takes them or cannot be asked here."""
    command = explained.command
    program = command.program
    known = any(fnmatchcase(program.name, pattern) for pattern in command.profile.composes)
    is_plain = program.kind in ("module", "script") and not program.launchers and not command.via
    if not known or not is_plain or not program.interpreter:
        return None
    words = [program.interpreter, *(["-m"] if program.kind == "module" else []), program.name]
    try:
        done = subprocess.run(
            [*words, *explained.armed_arguments, "--cfg", "job"],
            cwd=command.call.cwd,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = _REFUSED.findall(done.stderr + done.stdout) if done.returncode else []
    where = f"{command.call.file}:{command.call.line}" if command.call.line else " ".join(command.call.argv[:3])
    return finding("launch.options-refused", where, *(line.strip()[:200] for line in said[:2])) if said else None
