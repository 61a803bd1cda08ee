"""What was written into an open file and is still in its buffer, in this process and in the memory of another one."""

import io
import os
import socket
import subprocess
import sys

import pytest
from other_python import interpreter

from rldbg.agent.waits.reading.far_objects import object_at
from rldbg.agent.waits.reading.layout import measured_layout
from rldbg.agent.waits.reading.memory import ProcessMemory
from rldbg.agent.waits.reading.objects import OwnObject

PROGRAM = """
import os, socket, sys
here, there = socket.socketpair()
texts = [os.fdopen(os.dup(1), "w"), here.makefile("rw")]
data = [os.fdopen(os.dup(1), "wb"), here.makefile("rwb"), here.makefile("wb")]
for number, file in enumerate(texts):
    file.write("x" * (number + 1))
for number, file in enumerate(data):
    file.write(b"x" * (number + 3))
print(*map(id, texts + data), flush=True)
sys.stdin.read()
"""


def test_own_files_are_counted_until_they_are_flushed(tmp_path):
    with (tmp_path / "a.txt").open("w") as text, (tmp_path / "b").open("wb") as data:
        text.write("four")
        data.write(b"five!")
        assert (OwnObject(text).unwritten(), OwnObject(data).unwritten()) == (4, 5)
        text.flush()
        data.flush()
        assert (OwnObject(text).unwritten(), OwnObject(data).unwritten()) == (0, 0)
    assert OwnObject(io.TextIOWrapper(io.BytesIO())).unwritten() == 0
    assert OwnObject(io.StringIO("text")).unwritten() == OwnObject("text").unwritten() == 0


def test_the_writer_of_a_connection_is_counted():
    here, there = socket.socketpair()
    with here, there, here.makefile("rw") as both, here.makefile("rb") as reading:
        both.write("version?\n")
        assert OwnObject(both).unwritten() == 9
        assert OwnObject(both).descriptor() == here.fileno()
        assert OwnObject(reading).unwritten() == 0


@pytest.mark.parametrize("python", [f"3.{sys.version_info[1]}", "3.12", "3.13"])
def test_files_of_another_process_are_counted(python):
    own = python == f"3.{sys.version_info[1]}"
    program = subprocess.Popen(
        [sys.executable if own else interpreter(python), "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
    )
    with program:
        addresses = [int(each) for each in program.stdout.readline().split()]
        memory = ProcessMemory(program.pid, measured_layout(program.pid))
        try:
            files = [object_at(memory, each) for each in addresses]
            assert [file.unwritten() for file in files] == [1, 2, 3, 4, 5]
            assert all(file.descriptor() > 2 for file in files)
        finally:
            memory.close()
            program.stdin.close()
