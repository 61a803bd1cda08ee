"""What `rldbg run` gives its jobs because a fix noted it: variables and limits, in `<RLDBG_HOME>/run_settings.json`."""

import json
import os
import resource
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rldbg.core import UsageError, validated

FILE = "run_settings.json"


@dataclass(frozen=True)
class RunSettings:
    """Settings for every job, until the file is removed."""

    environment: dict[str, str] = field(default_factory=dict)
    """Variables that every job gets."""
    unset: tuple[str, ...] = ()
    """Variables that no job gets."""
    raise_limits: bool = False
    """Raise the soft limits of open files and processes to their hard ones."""

    @classmethod
    def load(cls, home: Path) -> "RunSettings":
        try:
            data = json.loads((home / FILE).read_text(encoding="utf-8"))
            return validated(cls, data, source=str(home / FILE), page="doctor.md")
        except FileNotFoundError:
            return cls()
        except (ValueError, UsageError) as error:
            raise UsageError(f"{home / FILE} is damaged: {error}", f"remove it: rm {home / FILE}") from None

    def save(self, home: Path) -> None:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = home / f".{FILE}.{os.getpid()}"
        temporary.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        temporary.replace(home / FILE)

    def merged(self, other: "RunSettings") -> "RunSettings":
        unset = tuple(name for name in dict.fromkeys((*self.unset, *other.unset)) if name not in other.environment)
        environment = {k: v for k, v in self.environment.items() if k not in other.unset} | other.environment
        return RunSettings(environment, unset, self.raise_limits or other.raise_limits)

    def without_unset(self, environment: dict[str, str]) -> dict[str, str]:
        """A job's variables without those that are to be unset."""
        return {name: value for name, value in environment.items() if name not in self.unset}

    def words(self) -> list[str]:
        """Each setting in words."""
        words = [f"set {name}={value}" for name, value in self.environment.items()]
        words += [f"unset {name}" for name in self.unset]
        return words + ["raise the soft limits of open files and processes"] * self.raise_limits


def raise_soft_limits() -> None:
    """Open files and processes of this process, and of all it starts, up to what the machine allows it."""
    for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC):
        _soft, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (hard, hard))
