"""The wheel, used from an empty folder: everything it needs at run time is in it."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = folder.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def rldbg(wheel, tmp_path_factory):
    """Runs the unpacked wheel in an empty folder; the checkout is not on its path."""
    site, empty = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("empty")
    zipfile.ZipFile(wheel).extractall(site)

    def run(*arguments):
        environment = os.environ | {"PYTHONPATH": str(site)}
        command = [sys.executable, "-P", "-m", "rldbg", *arguments]
        done = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(wheel):
    """Outside the list: what Git ignores. Manual pages go beside the package, the documentation into it."""
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    data = {name for name in packed if ".data/" in name}
    manual = {f"data/share/man/man1/{file.name}" for file in (ROOT / "man").iterdir()}
    assert {name.partition(".data/")[2] for name in data} == manual
    pages = {f"rldbg/documentation/{file.relative_to(ROOT / 'docs')}" for file in (ROOT / "docs").rglob("*.md")}
    assert pages <= packed
    packed -= data | pages
    folder = ROOT / "src"
    present = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert packed == {name for name in present if "__pycache__" not in name and not name.endswith((".pyc", ".swp"))}
    assert {"rldbg/py.typed", "rldbg/recipes/arithmetic.yaml", "rldbg/recipes/zoo.yaml"} <= packed


def test_the_metadata_states_version_licence_and_types(wheel):
    from rldbg.version import __version__

    assert wheel.name.startswith(f"rldbg-{__version__}-py3-none-any")
    archive = zipfile.ZipFile(wheel)
    names = {name.rpartition("/")[2] for name in archive.namelist() if ".dist-info/licenses/" in name}
    assert names == {"LICENSE", "NOTICE"}
    (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
    text = archive.read(metadata).decode()
    assert "Classifier: Typing :: Typed" in text and "Project-URL: Source" in text


def test_verbs_work_from_an_empty_folder(rldbg, tmp_path):
    assert "rldbg 0." in rldbg("--version")
    assert rldbg("help", "hangs").startswith("# My job hangs")
    assert "clip-high" in rldbg("zoo", "list")
    assert "name: arithmetic" in rldbg("config", "show", "arithmetic")
    assert "recording:" in rldbg("train", "zoo", "--steps", "1", "--run", str(tmp_path / "run"))
    assert "trajectory" in rldbg("show", str(tmp_path / "run"))


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_an_empty_environment_takes_the_tour(wheel, tmp_path):
    """The wheel and its dependencies from a package index, in a new environment and an empty folder."""
    constraints = str(ROOT / "constraints.txt")
    python = tmp_path / "env" / "bin" / "python"
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}

    def run(*command):
        done = subprocess.run(
            [str(word) for word in command], cwd=tmp_path, env=outside, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, "-m", "venv", python.parents[1])
    run(python, "-m", "pip", "install", "--no-deps", "--constraint", constraints, "torch", "uv")
    target = ("--python", python, "--constraint", constraints, f"rldbg[ray,train] @ {wheel.as_uri()}")
    run(python.with_name("uv"), "pip", "install", *target)
    rldbg = python.with_name("rldbg")
    assert "clip-high" in run(rldbg, "zoo", "list")
    assert "2 steps" in run(rldbg, "train", "arithmetic", "--steps", "2")
    assert "The tour took" in run(rldbg, "demo", "--only", "bug")
