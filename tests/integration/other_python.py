"""Virtual environments of other Python versions under .venvs, made when first needed."""

import shutil
import subprocess
from pathlib import Path

import pytest

_VENVS = Path(__file__).parents[2] / ".venvs"


def python_with(version: str, *packages: str) -> str:
    """An interpreter of that version with the packages; the test is skipped where the version is not installed."""
    base = shutil.which(f"python{version}") or next(
        (str(path) for path in sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))), None
    )
    if base is None:
        pytest.skip(f"no Python {version} here")
    folder = _VENVS / f"py{version}"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([base, "-m", "venv", str(folder)], check=True)
    names = ", ".join(package.partition("[")[0] for package in packages)
    if subprocess.run([str(python), "-c", f"import {names}"], capture_output=True, check=False).returncode:
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
    return str(python)
