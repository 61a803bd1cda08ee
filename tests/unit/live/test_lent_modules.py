"""What is sent into workers of clusters that rldbg did not start, where none of its modules can be imported."""

import subprocess
import sys

from rldbg.live.external_ray.injection import lending_expression


def test_lent_modules_work_where_rldbg_is_not_installed():
    program = (
        f"{lending_expression()}\nimport sys\nprint(sys._rldbg_values.answer([1]), sys._rldbg_async_tasks.listing())"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True)
    assert done.stdout.startswith('{"type": "list", "text": "[1]"}'), done.stderr
