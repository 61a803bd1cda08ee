"""What is read in a script without running it."""

from pathlib import Path

import pytest

from rldbg.core import PrerequisiteError, UsageError
from rldbg.launch.request import resolve_command
from rldbg.launch.script import check_syntax, logical_lines, read_commands


def write(folder: Path, text: str, name: str = "s.sh") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_continued_lines_count_from_their_first(tmp_path):
    script = write(
        tmp_path,
        "#!/bin/bash\n# c\npython -m m \\\n  a=1 \\\n  # note\n  b=2 | tee l\ncat > x <<EOF\npython no.py\nEOF\n",
    )

    assert [(line.number, line.text.split()[0]) for line in logical_lines(script.read_text())] == [
        (3, "python"),
        (7, "cat"),
    ]
    (call,) = read_commands(script)
    assert (call.argv, call.line) == (("python", "-m", "m", "a=1", "b=2"), 3)


def test_placeholders_are_named_in_a_syntax_error(tmp_path):
    script = write(tmp_path, "ROOT=<YOUR_ROOT>\npython train.py\n")

    with pytest.raises(UsageError, match="cannot read the script") as caught:
        check_syntax(script, "bash")
    assert "<YOUR_ROOT>" in caught.value.hint


def test_scripts_need_not_be_executable(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "echo hi\n")

    argv, script = resolve_command(["s.sh", "a"])

    assert argv == ("bash", "s.sh", "a")
    assert script == Path("s.sh")


def test_what_is_no_script_is_a_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "print(1)\n", "train.py")

    assert resolve_command(["python3", "train.py"]) == (("python3", "train.py"), None)
    assert resolve_command(["./train.py", "x"]) == (("python3", "./train.py", "x"), None)
    write(tmp_path, "#!/usr/bin/env -S python3 -u\nprint(1)\n", "tool")
    assert resolve_command(["tool", "x"]) == (("python3", "-u", "tool", "x"), None)
    assert resolve_command(["bash", "-c", "true"]) == (("bash", "-c", "true"), None)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], UsageError),
        (["missing.sh"], UsageError),
        (["./missing"], UsageError),
        (["nosuchcommand-xyz"], PrerequisiteError),
        (["."], UsageError),
    ],
)
def test_bad_commands_are_refused(words, error, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error):
        resolve_command(words)


def test_a_binary_that_is_not_executable_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prog").write_bytes(b"\x7fELF\0\0")

    with pytest.raises(UsageError, match="neither executable"):
        resolve_command(["./prog"])


def test_no_bash(tmp_path):
    script = write(tmp_path, "true\n")

    with pytest.raises(PrerequisiteError, match="bash is not installed"):
        resolve_command([str(script)], path=str(tmp_path))


def test_a_variable_that_is_read_is_no_command(tmp_path):
    loops = "while read -r python count; do echo $python; done < list\nfor name in model python; do echo; done\n"
    script = write(tmp_path, f"{loops}for n in 1; do python x.py; done\n")
    assert [call.argv[:2] for call in read_commands(script)] == [("python", "x.py;")]
