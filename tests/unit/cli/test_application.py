"""The contract of the command line: help is light, errors have one form, exit codes are a closed set."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rldbg.cli.application import run
from rldbg.cli.output import visible
from rldbg.cli.verbs import GROUPS, VERBS
from ui_recordings import two_turns

HEAVY = ("torch", "ray", "transformers", "pandas", "nicegui", "numpy", "pydantic", "rich", "omegaconf")


def test_import_and_help_load_nothing_heavy():
    code = (
        "import sys, rldbg, rldbg.cli\nfrom rldbg.cli.application import run\ncode = run(['--help'])\n"
        f"print(code, [name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"


def test_a_run_without_recording_loads_nothing_that_only_recordings_need(tmp_path):
    # A second of imports before the user's program begins.
    code = (
        "import sys\nfrom rldbg.cli.application import run\n"
        f"code = run(['run', '--no-doctor', '--', {sys.executable!r}, '-c', 'pass'])\n"
        "print(code, [name for name in ('numpy', 'pydantic', 'omegaconf', 'rldbg.recording') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "0 []"


def test_an_attach_loads_nothing_that_reads_other_processes(tmp_path):
    code = (
        "import sys\nimport rldbg.live.prompt.selected_frame, rldbg.live.prompt.async_tasks\n"
        "print([name for name in ('asyncio', 'ctypes', 'rldbg.agent.waits.reading.objects') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "[]"


def test_every_verb_loads_and_explains_itself(capsys):
    for verb in VERBS:
        assert verb.group in GROUPS
        assert run([verb.name, "--help"]) == 0
        assert "Usage: rldbg " + verb.name in capsys.readouterr().out


def test_version(capsys):
    from rldbg import __version__

    assert run(["--version"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == f"rldbg {__version__}"
    import numpy

    assert rest[0].startswith("Python 3.") and f"numpy {numpy.__version__}" in rest[1]


def test_every_verb_has_a_page_and_errors_lead_to_it(capsys):
    for verb in VERBS:
        assert verb.hidden or run(["help", verb.name, "--path"]) == 0, verb.name
    capsys.readouterr()
    assert run(["check", "nowhere"]) == 4
    assert capsys.readouterr().err.splitlines()[-1] == "  see: rldbg help check"
    assert run(["check", "nowhere", "--json"]) == 4
    page = Path(json.loads(capsys.readouterr().out)["error"]["page"])
    assert page.read_text().startswith("# rldbg check")


def test_help_finds_pages_by_verb_problem_and_framework(capsys):
    assert run(["help", "hangs"]) == 0
    assert capsys.readouterr().out.startswith("# My job hangs")
    assert run(["help", "verl"]) == 0
    assert "verl" in capsys.readouterr().out
    assert run(["help", "continue"]) == 0
    assert capsys.readouterr().out.startswith("# rldbg ps")
    assert run(["help", "chekc"]) == 2
    assert "did you mean `rldbg help check`?" in capsys.readouterr().err
    assert run(["help", "--json"]) == 0
    pages = json.loads(capsys.readouterr().out)["pages"]
    assert pages["problems/nan"] and pages["ui"] == "rldbg ui"


def test_quiet_leaves_the_result_and_errors_only(tmp_path, capsys):
    words = ["check", str(two_turns(tmp_path / "recording")), "--export", str(tmp_path / "metrics.parquet")]
    run(words)
    loud = capsys.readouterr()
    run([*words, "--quiet"])
    quiet = capsys.readouterr()
    assert loud.err and quiet.err == "" and quiet.out == loud.out
    assert run(["check", "nowhere", "--quiet"]) == 4 and "no such file" in capsys.readouterr().err


def test_progress_shows_a_rate_on_a_terminal_after_a_while_only(capsys, monkeypatch):
    import io
    import time

    from rldbg.cli import progress as module

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    def shown(stream, work):
        monkeypatch.setattr(sys, "stderr", stream)
        with module.progress("reading", "records", total=50) as advance:
            work(advance)
        return stream.getvalue()

    def long_work(advance):
        deadline = time.monotonic() + 60
        while "records" not in sys.stderr.getvalue() and time.monotonic() < deadline:
            advance()
            time.sleep(0.02)

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(module, "SHOWN_AFTER_S", 0.05)
    assert "of 50 records" in shown(Terminal(), long_work)
    monkeypatch.setattr(module, "SHOWN_AFTER_S", 60)
    assert shown(Terminal(), lambda advance: advance()).strip("\x1b[?25h\n\r") == ""
    assert shown(io.StringIO(), lambda advance: advance()) == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell, capsys):
    assert run(["--completion", shell]) == 0
    assert "_RLDBG_COMPLETE" in capsys.readouterr().out


def test_usage_errors_in_both_forms(capsys):
    assert run(["shwo"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and "rldbg show" in shown.err
    assert run(["config", "show", "nowhere.yaml", "--json"]) == 2
    shown = capsys.readouterr()
    assert shown.err == ""
    error = json.loads(shown.out)["error"]
    assert error["kind"] == "usage" and "nowhere.yaml" in error["message"] and error["hint"]


def test_a_bug_of_ours_is_a_message_with_a_place_to_look(capsys, monkeypatch):
    import rldbg.cli.config

    monkeypatch.setattr(rldbg.cli.config, "_show_settings", lambda as_json: 1 / 0)
    assert run(["config", "show"]) == 70
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_reader_that_leaves_early_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "rldbg", "config", "show"], stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    assert done.returncode == 0 and done.stderr == ""


@pytest.mark.parametrize(("verb", "unbuffered"), [(["check", "--list"], ""), (["check", "--list", "--json"], "1")])
def test_a_full_disk_is_not_a_bug_of_ours(verb, unbuffered):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rldbg", *verb],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        )
    assert done.returncode == 3
    assert done.stderr.splitlines()[0] == "error: <stdout> could not be written: No space left on device"
    assert "Exception" not in done.stderr


def test_closed_streams_are_not_a_bug_of_ours(tmp_path):
    command = f"cd {tmp_path}; {sys.executable} -m rldbg check --list"
    for closed in (">&-", "<&- >&- 2>&-"):
        assert subprocess.run(["bash", "-c", f"{command} {closed}"], capture_output=True).returncode == 0, closed


def test_characters_that_the_output_cannot_show_are_escaped(tmp_path):
    import rldbg

    with rldbg.Recorder(tmp_path / "run") as recorder:
        recorder.record("trajectory", step=0, samples=[("g", 0)], tokens=[[1, 2]], loss_mask=[[0, 1]], reward=[1.0])
    done = subprocess.run(
        [sys.executable, "-m", "rldbg", "verify", str(tmp_path / "run")],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "latin-1"},
    )
    assert done.returncode == 0 and done.stdout.startswith(b"\\u2713 ")


def test_a_file_of_someone_else_is_not_a_bug_of_ours(tmp_path, capsys, monkeypatch):
    import rldbg.recording

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", str(tmp_path / "run.json"))

    monkeypatch.setattr(rldbg.recording, "open", refuse)
    assert run(["show", str(tmp_path)]) == 4
    assert capsys.readouterr().err.splitlines()[0] == f"error: {tmp_path / 'run.json'}: Permission denied"


def test_who_interrupts_a_verb_is_not_told_of_an_error(capsys, monkeypatch):
    import rldbg.cli.config

    def interrupt(as_json):
        raise KeyboardInterrupt

    monkeypatch.setattr(rldbg.cli.config, "_show_settings", interrupt)
    assert run(["config", "show"]) == 130
    assert capsys.readouterr().err.split() == ["interrupted"]


def test_control_characters_from_files_do_not_reach_the_terminal():
    assert visible("a\x1b[31mb\x07\tc") == "a\\x1b[31mb\\x07\tc"


def test_json_output_is_json_whatever_the_numbers(capsys):
    import numpy as np

    from rldbg.cli.output import print_json

    print_json({"a": float("nan"), "b": [float("inf"), -np.float32("inf")], "c": np.arange(2), "d": {"e": (1.5, None)}})
    text = capsys.readouterr().out
    assert "NaN" not in text and "Infinity" not in text
    assert json.loads(text) == {
        "schema_version": 1,
        "a": None,
        "b": [float("inf"), float("-inf")],
        "c": [0, 1],
        "d": {"e": [1.5, None]},
    }


@pytest.mark.parametrize("arguments", [[], ["config"]])
def test_nothing_asked_for_shows_what_could_be(capsys, arguments):
    assert run(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("Usage: rldbg")
