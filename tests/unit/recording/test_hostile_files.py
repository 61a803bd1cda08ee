"""Files that want to run code, exhaust their reader or crash it: refused, and nothing runs."""

import subprocess
import sys
from ast import literal_eval
from pathlib import Path

import pytest
from hostile_pickles import OWNED, archives, exhausting, hostile

SCRIPT = Path(__file__).with_name("hostile_pickles.py")
# Data that is merely odd: reading it is fine, running anything is not.
HARMLESS = frozenset({"compressed storages"})


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory) -> dict[str, list[str]]:
    """What the reader said to each file, in a process of its own that may neither run, import, open nor spawn."""
    folder = tmp_path_factory.mktemp("hostile")
    result = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder)], capture_output=True, text=True, timeout=170, check=False
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert not list(folder.iterdir()), f"{OWNED}: something ran"
    said: dict[str, list[str]] = {}
    for line in result.stdout.splitlines():
        name, _, verdict = line.partition("\t")
        said.setdefault(name, []).append(literal_eval(verdict))
    return said


@pytest.mark.parametrize("name", hostile())
def test_a_pickle_that_wants_to_run_code_is_refused(verdicts, name):
    for verdict in verdicts[name] + verdicts[f"zipped {name}"]:
        assert verdict.startswith("refused: "), verdict
        assert not verdict.endswith("| "), "a refusal says what to try"


@pytest.mark.parametrize("name", [name for name in hostile() if "." in name])
def test_the_refusal_names_what_it_wanted(verdicts, name):
    wanted = name.replace("__builtin__.", "builtins.")
    assert f"hostile: the pickle wants to use {wanted}" in verdicts[name][0]
    assert "do not load this file" in verdicts[name][0]


@pytest.mark.parametrize("name", [*exhausting(), *archives()])
def test_what_would_exhaust_its_reader_is_refused(verdicts, name):
    assert len(verdicts[name]) == 2
    for verdict in verdicts[name]:
        assert verdict == "read" if name in HARMLESS else verdict.startswith("refused: "), verdict
