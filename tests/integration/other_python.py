"""Virtual environments of other Python versions under .venvs, made when first needed."""

import shutil
import subprocess
from pathlib import Path

import pytest

_VENVS = Path(__file__).parents[2] / ".venvs"


def python_with(version: str, *packages: str) -> str:
    """An interpreter of that version with the packages; the test is skipped where the version is not installed."""
    base = interpreter(version)
    folder = _VENVS / f"py{version}"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([base, "-m", "venv", str(folder)], check=True)
    names = ", ".join(package.partition("[")[0] for package in packages)
    if subprocess.run([str(python), "-c", f"import {names}"], capture_output=True, check=False).returncode:
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
    return str(python)


def interpreter(version: str) -> str:
    """An interpreter of that version without any packages; the test is skipped where there is none."""
    found = next((path for path in _candidates(version) if _runs(path)), None)
    if found is None:
        pytest.skip(f"no Python {version} here")
    return found


def _candidates(version: str) -> list[str]:
    """Interpreters of that version: pyenv's own, then what the path has, which may be a shim that does not run."""
    installed = sorted(str(path) for path in Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    found = shutil.which(f"python{version}")
    return installed + ([found] if found else [])


def _runs(python: str) -> bool:
    return subprocess.run([python, "-c", "import venv"], capture_output=True, check=False).returncode == 0
