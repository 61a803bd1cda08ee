"""`rldbg` as users start it, in a process of its own."""

import os
import subprocess
import sys


def rldbg(*arguments, typed=None, cwd=None, **environment):
    command = [sys.executable, "-m", "rldbg", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, input=typed, cwd=cwd)
