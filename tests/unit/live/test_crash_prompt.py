"""The prompt at a crash file: the same words, long after the job is gone."""

import json
import subprocess
import sys

import pytest

from rldbg.agent.crash import crash_record, write_crash
from rldbg.core import IncompleteDataError
from rldbg.live import CrashFile, PdbCommands


def _three(deep_value):
    shares = {"a": [1, 2], "b": deep_value}
    return shares["missing"]


def _two(rows):
    middle_value = rows * 2
    return _three(middle_value)


def _one():
    learning_rate = 0.25
    return _two(21) * learning_rate


@pytest.fixture
def crash(tmp_path):
    try:
        _one()
    except KeyError as error:
        record = crash_record(error, who={"role": "policy", "rank": 1, "pid": 5}, where="task", redact=None)
    return write_crash(tmp_path, record, 1)


def test_a_local_three_frames_up_is_shown_by_name(crash):
    words = PdbCommands(CrashFile(crash))
    assert "_three" in words.here().text and "-> return shares" in words.here().text
    assert words.execute("p shares").text == "{'a': [1, 2], 'b': 42}"
    assert words.execute("p shares['a'][1]").value == 2
    words.execute("u")
    words.execute("u")
    assert words.execute("p learning_rate").text == "0.25"
    assert words.execute("d").ok and words.execute("p middle_value").value == 42


def test_the_usual_words_work(crash):
    words = PdbCommands(CrashFile(crash))
    assert "_one" in words.execute("w").text
    assert "return shares" in words.execute("l").text
    assert "deep_value = 42" in words.execute("a").text or "deep_value" in words.execute("locals").text
    assert "KeyError" in words.execute("exc").text
    assert words.execute("whatis shares").text == "dict"
    assert words.execute("h").text


def test_what_cannot_be_done_says_so(crash):
    words = PdbCommands(CrashFile(crash))
    for command in ("c", "n", "b 3", "p len(shares)", "p unknown", "!x = 1"):
        answer = words.execute(command)
        assert not answer.ok and answer.text.startswith("***"), command


def test_a_damaged_file_is_incomplete_data(tmp_path):
    for text in ("", "{}", "[1]", '{"exceptions": 3, "who": {}}'):
        file = tmp_path / "bad.json"
        file.write_text(text)
        with pytest.raises(IncompleteDataError):
            CrashFile(file)


def test_from_the_command_line(crash):
    done = subprocess.run(
        [sys.executable, "-m", "rldbg", "attach", str(crash), "-c", "u", "-c", "p rows", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [answer["value"] for answer in json.loads(done.stdout)["answers"]][1] == 21
