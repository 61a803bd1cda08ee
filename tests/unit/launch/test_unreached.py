"""Which processes of a run are named as not reached: those of the user's, and no helper's."""

import os
import subprocess
import sys

import psutil
import pytest

from rldbg.launch import unreached
from rldbg.launch.unreached import unreached_processes

START = """
import subprocess, sys
server = "from multiprocessing.forkserver import main; import time; time.sleep(60)"
child = subprocess.Popen([sys.executable, "-B", "-c", server])
print(child.pid, flush=True)
child.wait()
"""


@pytest.mark.parametrize(("folder", "is_named"), [("ray/dashboard", False), ("mine", True)])
def test_what_the_dashboard_of_ray_starts_is_not_the_users(tmp_path, monkeypatch, folder, is_named):
    """Its fork server has a command line that any program's may have; its parent tells whose it is."""
    monkeypatch.setattr(unreached, "_YOUNG_S", 0.0)
    (tmp_path / folder).mkdir(parents=True)
    program = tmp_path / folder / "program.py"
    program.write_text(START)
    with subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True) as parent:
        started = int(parent.stdout.readline())
        try:
            found = {process.pid for process in unreached_processes(os.getpid(), set(), tmp_path / "run")}
            assert (started in found) == (parent.pid in found) == is_named
        finally:
            os.kill(started, 9)


def test_a_process_that_ends_while_it_is_looked_at_is_not_named(tmp_path, monkeypatch):
    """Its command line is empty from one moment to the next, and no error says so."""
    monkeypatch.setattr(unreached, "_YOUNG_S", 0.0)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        ending = psutil.Process(child.pid)
        lines = iter([ending.cmdline()])
        monkeypatch.setattr(ending, "cmdline", lambda: next(lines, []))
        monkeypatch.setattr(psutil, "process_iter", lambda: [ending])
        assert not list(unreached_processes(os.getpid(), set(), tmp_path / "run"))
        assert not ending.cmdline(), "it was looked at"
        child.kill()
