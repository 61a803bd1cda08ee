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


def prefixed(text):
    return "\n".join(f"(Trainer pid=7) {line}" for line in text.split("\n"))


@pytest.mark.parametrize(
    ("log", "more"),
    [
        (prefixed(f"{PLAIN}\nExpects 12 rows but got 13\n[ERROR] E1: the frob is empty"), 2),
        (f"{PLAIN}\n    Expects 12 rows but got 13\nSaved the frob", 1),
        (prefixed(f"{PLAIN}\nINFO 11-15 10:00:00 the next step"), 0),
        (prefixed(PLAIN) + "\n(Other pid=8) Expects 12 rows but got 13", 0),
        (f"{PLAIN}\nSaved the frob", 0),
        (f"{PLAIN}\n\nDuring handling of the above exception, another exception occurred:\n\n{PLAIN}", 0),
    ],
    ids=["its process", "indented", "a record", "another process", "anybody", "a chain"],
)
def test_the_lines_under_an_exception_that_belong_to_it_are_shown(log, more, index, tmp_path):
    (tmp_path / "x.log").write_text(log + "\n")
    error = diagnose([tmp_path / "x.log"], index=index).first_error
    assert (error.message, len(error.more)) == ("the frob of 12 does not fit 13", more)
    assert not error.more or error.more[0] == "Expects 12 rows but got 13"


@pytest.mark.parametrize("depth", [120, 250, 900])
def test_a_traceback_of_hundreds_of_lines_keeps_its_exception(index, tmp_path, depth):
    call = '  File "/opt/site-packages/frobber/layers.py", line {}, in forward\n    return self.inner(x)\n    ^^^^^^\n'
    deep = "Traceback (most recent call last):\n" + "".join(call.format(number) for number in range(depth))
    raised = '  File "/w/own/thing.py", line 12, in make\n    raise FrobError(said)\nown.FrobError: does not fit\n'
    log = tmp_path / "x.log"
    log.write_text("".join(f"[rank3]: {line}\n" for line in (deep + raised).splitlines()))
    found = diagnose([log], index=index).first_error
    assert (found.headline, found.frames[-1]) == ("own.FrobError: does not fit", "/w/own/thing.py:12 in make")
    assert depth > 120 or len(found.frames) == depth + 1


def test_what_two_processes_ignore_at_once_is_no_failure(index, tmp_path):
    log = tmp_path / "x.log"
    log.write_text(
        """step 20 loss 0.3
Exception ignored in atexit callback: <function frob at 0x7f93>
FileNotFoundError: Traceback (most recent call last):
  File "/opt/site-packages/frobber/core.py", line 480, in update
[Errno 2] No such file or directory: '/x.tmp' -> '/x'
    os.replace(self.path + ".tmp", self.path)
  File "/opt/site-packages/frobber/core.py", line 105, in put
    os.replace(self.path + ".tmp", self.path)
FileNotFoundError: [Errno 2] No such file or directory: '/x.tmp' -> '/x'
"""
    )
    assert diagnose([log], index=index).verdict == "healthy"


def test_what_comes_after_another_traceback_is_not_of_one_that_was_cut(index, tmp_path):
    cut = 'Traceback (most recent call last):\n  File "/w/train.py", line 180, in <module>\n    main()\n'
    refused = cut + '  File "/w/own/thing.py", line 12, in make\n    raise ValueError(said)\nValueError: name a frob\n'
    launcher = "".join(f"  rank      : {rank}\n" for rank in range(150))
    closing = (
        'Uncaught exception in frob_worker\nTraceback (most recent call last):\n  File "/v/frob.py", line 3, in main\n'
    )
    log = tmp_path / "x.log"
    log.write_text(cut + refused + launcher + closing + "OSError: [Errno 107] Transport endpoint is not connected\n")
    assert "name a frob" in diagnose([log], index=index).headline


def test_an_exception_that_came_often_is_told_with_all_of_its_message(index, tmp_path):
    raised = "RuntimeError: Version mismatch: The cluster was started with:\n    Ray: 2.53.0\n    Python: 3.11.14\n"
    frames = PLAIN.rpartition("\n")[0]
    (tmp_path / "x.log").write_text("".join(f"{frames}\n{raised}INFO waiting {number}\n" for number in range(4)))
    cause = diagnose([tmp_path / "x.log"], index=index).root_causes[0]
    assert "Python: 3.11.14" in cause.words


@pytest.mark.parametrize(("prefix", "head"), [("[rank1]: ", ""), ("", " (RANK 0)"), ("[rank1]: ", " (RANK 0)")])
def test_the_traceback_with_which_a_message_goes_on_is_what_happened(verdict, prefix, head):
    outer = [
        "Traceback (most recent call last):",
        '  File "/w/train.py", line 3, in <module>',
        "    main()",
        "patch.api.PatchworkException: the seams of these ranks are not whole:dict_keys([0])",
    ]
    inner = [
        f"Traceback (most recent call last):{head}",
        '  File "/w/patch/planner.py", line 9, in plan',
        "    raise RuntimeError(key)",
        "RuntimeError: Missing key in checkpoint state_dict: optimizer.state.0.step.",
    ]
    found = verdict("".join(f"{prefix}{line}\n" for line in outer + inner))
    assert [cause.id for cause in found.root_causes] == ["dcp-key-missing"]
    inner[-1] = "quilts.PatchworkError: seam 3 was sewn twice"
    assert verdict("".join(f"{prefix}{line}\n" for line in outer + inner)).first_error.headline == inner[-1]


PIP = """  error: subprocess-exited-with-error
  × python setup.py egg_info did not run successfully.
  ╰─> [20 lines of output]
      Traceback (most recent call last):
        File "/tmp/x/setup.py", line 22, in <module>
          import seam
      {said}
      [end of output]
"""


def test_an_exception_in_the_box_of_pip_is_no_code_of_its_traceback(tmp_path, index):
    log = tmp_path / "x.log"
    log.write_text(PIP.format(said="ModuleNotFoundError: No module named 'seam'"))
    assert [cause.id for cause in diagnose([log], index=index).root_causes] == ["python-module-missing"]


def test_code_that_a_traceback_shows_in_the_box_of_pip_is_no_evidence(tmp_path, index):
    log = tmp_path / "x.log"
    code = "raise RuntimeError(\"ModuleNotFoundError: No module named 'seam'\")"
    log.write_text(PIP.format(said="FrobError: no").replace("import seam", code))
    assert diagnose([log], index=index).verdict == "unknown"
