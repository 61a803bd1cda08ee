"""Where a breakpoint may be set, as far as the file tells."""

import pytest

from rldbg.agent import line_to_stop_at
from rldbg.core import UsageError
from rldbg.live import break_place, breakpoint_warning, source_place


@pytest.mark.parametrize("text", ["train.py:0", "train.py:-3", "train.py:00", "train.py", ":3", "train.py:²"])
def test_what_is_no_line_is_refused(text):
    with pytest.raises(UsageError, match="expected FILE:LINE"):
        break_place(text)


SOURCE = b'''"""What it is for,
in two lines."""
import time

# above
def slow(count):
    """What it
    does."""

    total = call(
        count,

    )
    return total

    # below

slow(1)
# the end
'''


@pytest.mark.parametrize("line", [20, 9999])
def test_a_line_that_the_file_does_not_have_is_refused(tmp_path, line):
    (tmp_path / "train.py").write_bytes(SOURCE)
    with pytest.raises(UsageError, match=rf"no line {line}: it has 19 lines; its last line with code is 18"):
        break_place(f"{tmp_path}/train.py:{line}")
    assert source_place(f"{tmp_path}/train.py:{line}")[1] == line


def test_what_is_no_file_is_refused_and_one_elsewhere_is_not(tmp_path):
    with pytest.raises(UsageError, match="is a folder"):
        break_place(f"{tmp_path}:3")
    (tmp_path / "empty.py").touch()
    with pytest.raises(UsageError, match="it has 0 lines"):
        break_place(f"{tmp_path}/empty.py:1")
    assert break_place(f"{tmp_path}/train.py:9999") == (f"{tmp_path}/train.py", 9999)
    assert break_place("package.reward:9999") == ("package.reward", 9999)


@pytest.mark.parametrize(
    ("line", "stops_at"), [(1, 1), (4, 6), (5, 6), (7, 10), (8, 10), (9, 10), (12, 12), (15, 18), (17, 18), (19, 19)]
)
def test_a_line_without_code_means_the_next_of_its_function_but_no_statement_that_it_is_part_of(line, stops_at):
    assert line_to_stop_at(SOURCE, line) == stops_at
    assert line_to_stop_at(b"not Python", line) == line


def _made(file, line, **more):
    return {"file": str(file), "line": line, "stops_at": [], "set_in": {}, "found_at": []} | more


def test_why_one_may_never_be_hit(tmp_path):
    file = tmp_path / "train.py"
    file.write_bytes(SOURCE)
    assert not breakpoint_warning(_made(file, 10)) and not breakpoint_warning(_made(file, 10, set_in={"a": True}))
    assert "processes stop at line 18" in breakpoint_warning(_made(file, 17))
    assert breakpoint_warning(_made(file, 19)).endswith("stop at line 18, which is executed before it")
    # Of a file that is not here, whoever found another of its name.
    gone = tmp_path / "gone.py"
    assert "in processes that load it" in breakpoint_warning(_made(gone, 3))
    assert "nor in a yet" in breakpoint_warning(_made(gone, 3, set_in={"a": False}))
    elsewhere = _made(gone, 3, set_in={"a": True}, found_at=["/job/gone.py"])
    assert "it is set in /job/gone.py" in breakpoint_warning(elsewhere)
    assert not breakpoint_warning(_made(gone, 3, set_in={"a": True}, found_at=[str(gone)]))
