"""The tour: every stop shows what it promises. Then the commands of README and docs, on the runs of the tour."""

import json
import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from documented_commands import ROOT, blocks, pages
from documented_runs import write_documented_runs
from rldbg.cli.application import run


@pytest.fixture(scope="module")
def tour(tmp_path_factory):
    """The folder of the tour, and what it printed."""
    folder = tmp_path_factory.mktemp("demo") / "tour"
    command = [sys.executable, "-m", "rldbg", "demo", "--run", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return folder, said


@pytest.mark.timeout(900)
def test_the_tour_finds_what_it_promises(tour):
    folder, said = tour
    texts = _outputs_of_the_tour(ROOT / "README.md")
    texts += [each.text for page in pages() for each in blocks(page) if each.mark == "from the tour"]
    promised = [line for text in texts for line in text.splitlines()]
    assert len(promised) >= 4
    for line in promised:
        assert line in said, line
    assert said.count("$ rldbg train") == 2 and said.count("$ rldbg run") == 3
    assert (folder / "report" / "index.html").as_uri() in said


def test_its_last_advice_shows_the_runs_of_the_tour(tour, tmp_path, monkeypatch):
    folder, said = tour
    (advice,) = re.findall(r"cd (\S+); (rldbg ui .*) --open$", said, re.MULTILINE)
    assert Path(advice[0]) == folder
    monkeypatch.chdir(folder)
    assert run([*shlex.split(advice[1])[1:], "--export", str(tmp_path / "out")]) == 0
    index = (tmp_path / "out" / "data" / "index.js").read_text()
    assert '"runs/first"' in index and '"runs/second"' in index


@pytest.mark.timeout(600)
def test_commands_of_readme_and_docs_print_what_is_shown(tour, capsys, monkeypatch):
    """Blocks marked with `run`, in this process and in the tour's folder; every line shown below a block is printed."""
    folder, _ = tour
    monkeypatch.chdir(folder)
    write_documented_runs(folder)
    (example,) = (each.text for each in blocks(ROOT / "README.md") if "rldbg.Recorder(" in each.text)
    exec(compile(example, "README.md", "exec"), {})
    ran = 0
    for page in (page for page in pages() if not page.name.startswith("README.")):
        ran += _run_page(page, capsys)
    ran += _run_page(ROOT / "README.md", capsys)
    assert ran >= 20


def _outputs_of_the_tour(page: Path) -> list[str]:
    """Outputs of commands that are not run again: they must be in the tour."""
    found = blocks(page)
    return [output.text for command, output in pairwise(found) if output.language == "text" and command.mark != "run"]


def _run_page(page: Path, capsys) -> int:
    said, ran = "", 0
    for block in blocks(page):
        if block.mark == "run":
            said = ""
            for line in block.text.splitlines():
                code = run(shlex.split(line, comments=True)[1:])
                printed = capsys.readouterr()
                said += printed.out + printed.err
                ran += 1
                assert code in (0, 1), f"{block}: {line}\n{said}"
        elif block.language == "text" and said:
            for line in block.text.splitlines():
                assert re.sub(r"\s+", " ", line).strip() in re.sub(r"\s+", " ", said), f"{block}: {line}\n{said}"
            said = ""
    return ran


def test_a_stop_by_itself_and_a_bug_that_does_not_exist(tmp_path):
    command = [sys.executable, "-m", "rldbg", "demo", "--run", str(tmp_path / "tour")]
    crash = subprocess.run([*command, "--only", "crash", "--json"], capture_output=True, text=True, timeout=170)
    assert crash.returncode == 0, crash.stderr
    (played,) = json.loads(crash.stdout)["commands"]
    assert played["stop"] == "crash" and played["exit_code"] == 1 and "torchrun" in played["command"]
    unknown = subprocess.run([*command, "--bug", "clip-hihg"], capture_output=True, text=True, timeout=60)
    assert unknown.returncode == 2 and "clip-high" in unknown.stderr


@pytest.mark.soak
def test_a_hidden_bug_is_named_in_the_answer_only(tmp_path):
    folder = tmp_path / "tour"
    command = [sys.executable, "-m", "rldbg", "demo", "--run", str(folder), "--bug", "clip-high"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert (folder / "answer.txt").read_text().startswith("clip-high: ")
    files = [file for run in ("first", "second") for file in (folder / run).rglob("*") if file.is_file()]
    assert [file.name for file in files if b"clip-high" in file.read_bytes()] == []
    assert "clip-high" not in done.stdout + done.stderr and "answer.txt" in done.stdout
