"""The findings of a launch: their texts are in `findings.yaml`, what was seen comes from where it was seen."""

from functools import cache
from pathlib import Path
from typing import Any

from rldbg.core import Finding, Severity


@cache
def _texts() -> dict[str, dict[str, Any]]:
    import yaml

    texts: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return texts


def finding(id: str, where: str, *evidence: str, **values: str) -> Finding:
    """The finding of this id, with the values that its text names; a warning unless the file says otherwise."""
    text = _texts()[id]
    fix = tuple(step.format(**values) for step in text.get("fix", ()))
    return Finding(id, Severity(text.get("severity", "warning")), where, evidence, text["cause"].format(**values), fix)
