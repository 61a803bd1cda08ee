"""Environments with published packages that cannot live beside ours: made once under .venvs/, used again later."""

import fcntl
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# TRL with what it imports beyond our own packages; installed alone, because it asks for other versions of them.
TRL = ("trl", "accelerate", "datasets", "multiprocess", "dill", "xxhash", "pandas", "python-dateutil", "pytz", "tzdata",
       "six")  # fmt: skip


def environment_with(name, packages, *, beside_ours=False):
    """The interpreter of an environment that has the packages; made when it is not there yet."""
    folder = ROOT / ".venvs" / name
    folder.parent.mkdir(exist_ok=True)
    python, done = folder / "bin" / "python", folder / ".installed"
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists() or done.read_text() != " ".join(packages):
            _make(folder, python, packages, beside_ours=beside_ours)
            done.write_text(" ".join(packages))
    return python


def _make(folder, python, packages, *, beside_ours):
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    made = subprocess.run(
        [*install, *(["--no-deps"] if beside_ours else []), *packages], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"{packages[0]} cannot be installed here: {made.stderr.strip().splitlines()[-1]}")
    if beside_ours:
        (folder / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix) / "zz_ours.pth").write_text(
            sysconfig.get_path("purelib") + "\n"
        )
