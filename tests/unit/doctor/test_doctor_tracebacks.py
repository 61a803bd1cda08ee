"""Tracebacks in the dresses in which loggers, notebooks and launchers print them: type, message and frames are read."""

import json

import pytest

from rldbg.doctor import diagnose

FRAMES = ["/opt/site-packages/frobber/core.py:1293 in run_core", "/w/own/thing.py:12 in make"]
PLAIN = """Traceback (most recent call last):
  File "/opt/site-packages/frobber/core.py", line 1293, in run_core
    core = Core(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^
  File "/w/own/thing.py", line 12, in make
    raise FrobError("the frob of 12 does not fit 13")
own.FrobError: the frob of 12 does not fit 13"""
BOXED = """╭──────────────────── Traceback (most recent call last) ─────────────────────╮
│ /opt/site-packages/frobber/core.py:1293 in run_core                         │
│                                                                             │
│   1292 │   │   x = 1                                                        │
│ ❱ 1293 │   │   core = Core(*args, **kwargs)                                 │
│                                                                             │
│ /w/own/thing.py:12 in make                                                  │
╰─────────────────────────────────────────────────────────────────────────────╯
own.FrobError: the frob of 12 does not fit 13"""
NOTEBOOK = """---------------------------------------------------------------------------
FrobError                                 Traceback (most recent call last)
Cell In[3], line 1
----> 1 run_core()

File /opt/site-packages/frobber/core.py:1293, in run_core()
   1292 x = 1
-> 1293 core = Core(*args, **kwargs)

File /w/own/thing.py:12, in make()
---> 12 raise FrobError("the frob of 12 does not fit 13")

own.FrobError: the frob of 12 does not fit 13"""


def before_each_line(prefix):
    """A logger's prefix; the clock in it goes on."""
    return "\n".join(prefix.replace("SS", f"{number:02d}") + line for number, line in enumerate(PLAIN.split("\n")))


PREFIXES = [
    "Aug 17 18:42:SS host frobber[8052]: (APIServer pid=8052) ",
    "[2026-01-22 20:05:SS] [/bin/sh]: [EngineCore_DP0][pid=1242] ERROR 01-22 12:05:33.129 [core.py:1302] ",
    "04-20 13:32:SS.784 ",
    "[rank0]: (Frob) 20260320-11:19:SS.153 Actor ERROR: ",
    "(Worker_TP3) ERROR 04:57:SS [multiproc_executor.py:1055] ",
    "node3: ",
    "2026-05-01 10:00:SS,123 - main - ERROR - ",
    "E   ",
]
ON_ONE_LINE = [
    f"RuntimeError: worker 3 failed: {PLAIN!r}",
    f"subprocess.CalledProcessError: Command '['python']' returned non-zero exit status 1. stderr: {PLAIN.encode()!r}",
    json.dumps({"level": "error", "msg": PLAIN}),
    f"(Worker pid=3) [{', '.join(repr(line + chr(10)) for line in PLAIN.split(chr(10)))}]",
]


@pytest.mark.parametrize("log", [PLAIN, BOXED, NOTEBOOK, *map(before_each_line, PREFIXES), *ON_ONE_LINE])
def test_a_traceback_is_read_in_every_dress(index, tmp_path, log):
    path = tmp_path / "x.log"
    path.write_text(f"starting\n{log}\n", encoding="utf-8")
    found = diagnose([path], index=index)
    assert found.verdict == "unknown"
    assert found.first_error.headline == "own.FrobError: the frob of 12 does not fit 13"
    assert list(found.first_error.frames) == FRAMES


def test_an_excerpt_without_its_head_is_read_behind_a_prefix_too(index, tmp_path):
    path = tmp_path / "x.log"
    lines = [f"[gpu03] 13:32:{n:02d} worker: {line}" for n, line in enumerate(PLAIN.split("\n")[1:])]
    path.write_text("\n".join(lines) + "\n")
    found = diagnose([path], index=index)
    assert found.first_error.headline == "own.FrobError: the frob of 12 does not fit 13"
    assert list(found.first_error.frames) == FRAMES


def test_tracebacks_of_workers_that_are_mixed_line_by_line_keep_their_exceptions(index, tmp_path):
    path = tmp_path / "x.log"
    lines = []
    for text in PLAIN.split("\n"):
        lines += [
            f"(Engine pid=8) (Worker_TP{rank} pid=9{rank}) ERROR 01-10 17:34 [m.py:8] {text}" for rank in (1, 0, 2)
        ]
    ended = "(Engine pid=8) ERROR 01-10 17:34 [core.py:1] EngineCore failed to start."
    lines.insert(len(lines) - 2, ended)
    path.write_text("\n".join([*lines, ended]) + "\n")
    found = diagnose([path], index=index)
    assert found.first_error.headline == "own.FrobError: the frob of 12 does not fit 13"
    assert list(found.first_error.frames) == FRAMES
    assert found.first_error.place.speaker.pid == "91"
