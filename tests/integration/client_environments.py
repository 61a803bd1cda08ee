"""Environments with published packages that cannot live beside ours: made once under .venvs/, used again later."""

import fcntl
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# TRL with what it imports beyond our own packages; installed alone, because it asks for other versions of them.
TRL = ("trl==1.16.0", "accelerate", "datasets", "multiprocess", "dill", "xxhash", "pandas", "python-dateutil", "pytz",
       "tzdata", "six")  # fmt: skip


def environment_with(name, packages, *, beside_ours=False, beside=None, torch=False, constrained=True, stubs=()):
    """The interpreter of an environment that has the packages; made when it is not there yet.

    `beside_ours` adds the packages of this environment, `beside` those of another one, by its interpreter; then only
    what is named is installed. `stubs` are empty modules. `torch` comes first, through pip, whose settings choose the
    build. With `constrained`, the other packages have the versions that rldbg is tested with, too.
    """
    folder = ROOT / ".venvs" / name
    folder.parent.mkdir(exist_ok=True)
    python, done = folder / "bin" / "python", folder / ".installed"
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists() or done.read_text() != " ".join(packages):
            _make(folder, python, packages, alone=not (beside_ours or beside), torch=torch, constrained=constrained)
            for stub in stubs:
                (_site(folder) / f"{stub}.py").touch()
            done.write_text(" ".join(packages))
        if beside_ours or beside:
            _add_places(_site(folder) / "zz_ours.pth", beside)
    return python


def _add_places(file, beside):
    """The folders of another environment, again where one of them has been moved or removed since."""
    if file.exists() and all(map(os.path.isdir, file.read_text().splitlines())):
        return
    places = _path_of(beside) if beside else sys.path
    file.write_text("".join(f"{os.path.realpath(place)}\n" for place in places if Path(place).name == "site-packages"))


def _path_of(python):
    asked = subprocess.run(
        [str(python), "-c", "import sys; print(*sys.path, sep='\\n')"], capture_output=True, text=True
    )
    return asked.stdout.splitlines()


def _site(folder):
    return folder / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)


def _make(folder, python, packages, *, alone, torch, constrained):
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], check=True)
    tested = ["--constraint", str(ROOT / "constraints.txt")]
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *tested, "torch"]
    # Not compiled in advance: a test imports a small part of what is installed.
    uv = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--python", str(python)]
    uv += [] if alone else ["--no-deps"]
    uv += tested if alone and torch and constrained else []
    pinned = [_pinned_torch()] if torch and not constrained else []
    for command in ([pip] if torch else []) + [[*uv, *packages, *pinned]]:
        made = subprocess.run(command, capture_output=True, text=True, env=os.environ | _mirror())
        if made.returncode:
            pytest.skip(f"{packages[0]} cannot be installed here: {made.stderr.strip().splitlines()[-1]}")


def _pinned_torch():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return next(line for line in lines if line.startswith("torch=="))


def _mirror():
    """uv does not read pip's settings: a mirror that pip uses is passed on."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    asked = subprocess.run(command, capture_output=True, text=True)
    index = os.environ.get("PIP_INDEX_URL") or (asked.stdout.strip() if asked.returncode == 0 else "")
    return {"UV_DEFAULT_INDEX": index} if index and "UV_DEFAULT_INDEX" not in os.environ else {}
