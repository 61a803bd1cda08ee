"""Where a breakpoint may be set, as far as the file tells."""

import pytest

from rldbg.core import UsageError
from rldbg.live import break_place

SOURCE = "def f(x):\n    y = x + 1\n    return y\n\n# the end\n"


@pytest.mark.parametrize("line", [0, 6, 9999])
def test_a_line_that_the_file_does_not_have_is_refused(tmp_path, line):
    (tmp_path / "train.py").write_text(SOURCE)
    with pytest.raises(UsageError, match=rf"no line {line}: it has 5 lines; its last line with code is 3"):
        break_place(f"{tmp_path}/train.py:{line}")


def test_a_file_that_is_not_here_may_be_elsewhere(tmp_path):
    assert break_place(f"{tmp_path}/train.py:9999") == (f"{tmp_path}/train.py", 9999)
    (tmp_path / "train.py").write_text(SOURCE)
    assert break_place(f"{tmp_path}/train.py:5") == (f"{tmp_path}/train.py", 5)
