"""The stage before all others: what run.json says about both runs. It suggests causes and proves nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rldbg.analysis.leaves import ABSENT, leaf_pairs
from rldbg.analysis.side import Side
from rldbg.analysis.stages import Stage

_FACTS = ("config", "git_commit", "versions", "environment", "seed", "threads", "hosts", "command")
# Where a run was started, in which terminal: cannot change any number.
_OF_THE_SESSION = frozenset(
    ("OLDPWD", "PWD", "SHLVL", "_", "TERM", "COLUMNS", "LINES", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "TMUX")
)


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """One setting that the two runs do not share."""

    name: str
    a: Any
    b: Any

    def to_dict(self) -> dict[str, Any]:
        return {"field": self.name, "verdict": "different", "a": self.a, "b": self.b}


@dataclass(frozen=True, slots=True)
class ConfigurationDifference:
    """All settings compared, and those that differ."""

    compared: int
    changes: tuple[SettingDifference, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "stage": Stage.CONFIG.value,
            "verdict": "different" if self.changes else "equal",
            "decides": False,
            "compared": self.compared,
            "beyond": len(self.changes),
            "allowed": 0,
            "max_abs": 0.0,
            "mean_abs": 0.0,
            "max_rel": 0.0,
            "nan": [0, 0],
            "inf": [0, 0],
            "fields": [change.to_dict() for change in self.changes],
        }


def compare_configuration(a: Side, b: Side) -> ConfigurationDifference | None:
    """None unless both recordings belong to a run with a run.json."""
    facts_a, facts_b = a.recording.run_facts(), b.recording.run_facts()
    if not facts_a or not facts_b:
        return None
    compared = 0
    changes = []
    for name in _FACTS:
        if name not in facts_a and name not in facts_b:
            continue
        for path, left, right in leaf_pairs(facts_a.get(name, ABSENT), facts_b.get(name, ABSENT), name):
            if name == "environment" and path.partition(".")[2] in _OF_THE_SESSION:
                continue
            compared += 1
            if left != right:
                changes.append(SettingDifference(path, left, right))
    return ConfigurationDifference(compared, tuple(changes))
