"""What the user asked `rldbg run` for."""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rldbg.core import PrerequisiteError, UsageError
from rldbg.launch.known_launchers import peel

if TYPE_CHECKING:
    from rldbg.tripwire import WatchSettings

_SHELLS = ("bash", "sh", "dash", "ksh", "zsh")


@dataclass(frozen=True, slots=True)
class Request:
    """One launch: the command line, and how it is to be armed."""

    argv: tuple[str, ...]
    script: Path | None
    """The shell script among `argv` that is read and run dry; None for a command that is not a script."""
    cwd: Path
    environment: Mapping[str, str] = field(repr=False, default_factory=dict)
    framework: str = ""
    post_mortem: bool = True
    epochs: int | None = 1
    steps: int | None = None
    name_suffix: str = "-Debug"
    set_options: tuple[tuple[str, str], ...] = ()
    set_environment: tuple[tuple[str, str], ...] = ()
    noted_environment: tuple[tuple[str, str], ...] = ()
    """Variables that `rldbg doctor --fix` has noted for every run; the user's own `--env` wins over them."""
    record: bool = False
    record_kinds: tuple[str, ...] = ()
    watch: "WatchSettings | None" = None
    """Judge the steps while they are recorded; the recording keeps the last ones only."""
    breakpoints: tuple[str, ...] = ()
    ray_breakpoints: bool = False
    legacy: bool = False
    skip_kills: bool = False
    laptop: bool = False
    model: str = ""
    """With `laptop`: a folder with the model to take instead of a small one of the same architecture."""
    left_out: str = ""
    """With `laptop`: the launcher that would have started several processes, and is not among `argv`."""

    @property
    def added_environment(self) -> dict[str, str]:
        """Every variable to add to the job's environment."""
        return dict(self.noted_environment) | dict(self.set_environment)

    @property
    def name(self) -> str:
        """A short name for the run folder."""
        return self.script.stem if self.script else Path(self.argv[0]).name


def resolve_command(
    words: Sequence[str], *, path: str | None = None, dry_run: bool = False
) -> tuple[tuple[str, ...], Path | None]:
    """The command line to start, and the shell script in it: `train.sh x` becomes `bash train.sh x`.

    A dry run starts nothing: launchers of the cluster (`sbatch`) need not be installed for it.
    """
    if not words:
        raise UsageError("nothing to run", "rldbg run SCRIPT.sh [ARGS], or rldbg run -- COMMAND [ARGS]")
    first, rest = words[0], tuple(words[1:])
    if Path(first).name in _SHELLS:
        script = next((word for word in rest if not word.startswith(("-", "+"))), None)
        if "-c" in rest or script is None:
            return (_found(first, path), *rest), None
        return (_found(first, path), *rest), _readable(script)
    if "/" in first or Path(first).is_file():
        return _resolve_file(first, rest, path)
    if first.endswith((".sh", ".bash", ".slurm", ".sub", ".sbatch", ".py")):
        raise UsageError(f"script not found: {first}", "give an absolute path or a path relative to this folder")
    if not (dry_run and peel(words) is not None):
        _found(first, path)
    return (first, *rest), None


def _resolve_file(first: str, rest: tuple[str, ...], path: str | None) -> tuple[tuple[str, ...], Path | None]:
    file = _readable(first)
    with file.open("rb") as handle:
        opening = handle.read(128)
    shebang = opening.splitlines()[0].decode("utf-8", "replace") if opening.startswith(b"#!") else ""
    if file.suffix == ".py" or "python" in shebang:
        return (*_interpreter(shebang, path), first, *rest), None
    is_shell = any(
        shebang.rstrip().split(" ")[0].endswith(f"/{shell}") or f"env {shell}" in shebang for shell in _SHELLS
    )
    if is_shell or file.suffix in (".sh", ".bash", ".slurm", ".sub", ".sbatch") or (not shebang and _is_text(opening)):
        return (_found("bash", path), first, *rest), file
    if not os.access(file, os.X_OK):
        raise UsageError(f"{first} is neither executable nor a shell script", f"chmod +x {first}")
    return (first, *rest), None


def _interpreter(shebang: str, path: str | None) -> tuple[str, ...]:
    """What the kernel would start for a Python script, so that it need be neither executable nor in PATH."""
    words = shebang.removeprefix("#!").split()
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if word != "-S"]
    if not words or "python" not in words[0]:
        words = ["python3"]
    return (_found(words[0], path), *words[1:])


def _readable(name: str) -> Path:
    file = Path(name)
    if not file.exists():
        raise UsageError(f"script not found: {name}", "give an absolute path or a path relative to this folder")
    if file.is_dir():
        raise UsageError(f"{name} is a folder", "name the script in it")
    if not os.access(file, os.R_OK):
        raise UsageError(f"{name} cannot be read", f"chmod +r {name}")
    return file


def _found(program: str, path: str | None) -> str:
    found = shutil.which(program, path=path)
    if found is not None:
        return program
    if program == "bash":
        raise PrerequisiteError(
            "bash is not installed on this machine",
            "install bash, or run the command directly: rldbg run -- python ...",
        )
    if Path(program).exists():
        raise UsageError(f"{program} is not executable", f"chmod +x {program}")
    raise PrerequisiteError(f"command not found: {program!r}", "check the spelling and PATH")


def _is_text(opening: bytes) -> bool:
    return b"\0" not in opening and not opening.startswith(b"\x7fELF")
