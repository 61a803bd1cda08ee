"""The public names: listed, loaded on use, typed for users; the examples of README and docs type-check and run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import rldbg

ROOT = Path(__file__).parents[2]
NAMES = [name for name in rldbg.__all__ if name != "__version__"]


def python_examples():
    pages = [ROOT / "README.md", ROOT / "docs" / "break.md"]
    return re.findall(r"```python\n(.*?)```", "".join(page.read_text(encoding="utf-8") for page in pages), re.DOTALL)


def strict_mypy(folder, source):
    file = folder / "user.py"
    file.write_text(source)
    # A user's settings: none.
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={folder}/cache", str(file)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_every_public_name_is_listed_and_loads():
    assert sorted(NAMES) == dir(rldbg)
    for name in NAMES:
        assert callable(getattr(rldbg, name)), name


def test_the_package_says_that_it_is_typed():
    assert (Path(rldbg.__file__).parent / "py.typed").is_file()


@pytest.mark.timeout(300)
def test_a_user_sees_types_everywhere(tmp_path):
    """One call of mypy: the examples as functions, and the type of every public name."""
    examples = python_examples()
    assert len(examples) >= 2
    imports = "".join(
        line + "\n" for line in dict.fromkeys(re.findall(r"^import .*$", "".join(examples), re.MULTILINE))
    )
    bodies = [re.sub(r"^(?=.)", "    ", re.sub(r"^import .*\n", "", text, flags=re.MULTILINE), flags=re.MULTILINE)
              for text in examples]  # fmt: skip
    functions = "".join(f"def example_{number}() -> None:\n{body}\n" for number, body in enumerate(bodies))
    revealed = "".join(f"reveal_type(rldbg.{name})\n" for name in NAMES)
    code, said = strict_mypy(tmp_path, imports + functions + revealed + 'reveal_type(rldbg.open("x"))\n')
    assert code == 0, said
    types = re.findall(r'Revealed type is "(.*)"', said)
    assert len(types) == len(NAMES) + 1
    assert not [kind for kind in types if kind == "Any"], said
    assert types[-1] == "rldbg.recording.recording.Recording"


def test_the_recorder_of_the_readme_records_what_it_says(tmp_path):
    example = next(each for each in python_examples() if "Recorder(" in each)
    done = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "trajectory" in done.stdout and "forward_data" in done.stdout
    recording = rldbg.open(tmp_path / "recording")
    assert [str(sample) for sample in recording.samples(step=3)] == ["g0/0", "g0/1"]
    assert recording.verify() == []


def test_importing_every_entry_module_runs_nothing():
    """Tools that walk the package (documentation, coverage, type checkers) import them."""
    for module in ("__main__", "compare_debug_dumps", "debug_ray_dapo", "launcher.local", "training_service.__main__"):
        done = subprocess.run([sys.executable, "-c", f"import rldbg.{module}"], capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), module
