"""What others made and this repository does not hold: dumps of other frameworks, logs and traces of others' jobs.

It lies in `../shared` beside the checkout, or where RLDBG_TEST_MATERIAL says. Tests that need it are skipped without
it, and the last line of the run says how many were.
"""

import os
from pathlib import Path

import pytest

MISSING = "third-party material is not here"
_FOLDER = Path(os.environ.get("RLDBG_TEST_MATERIAL") or Path(__file__).parents[2] / "shared")


def material(name: str) -> Path:
    return _FOLDER / name


def needs(path: Path) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not path.exists(), reason=f"{MISSING}: {path.relative_to(_FOLDER)}")
