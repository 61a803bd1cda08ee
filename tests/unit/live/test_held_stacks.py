"""Stacks of a process that is held at an exception: the frames that raised, not those that hold it."""

import json

from rldbg.live import group_stacks
from rldbg.reports.stacks import to_lines

HOLDING = {"file": "/agent/post_mortem.py", "line": 149, "function": "_hold"}
RAISING = {"file": "train.py", "line": 4, "function": "step", "locals": {"reward": {"text": "nan"}}}


def _held(crash_file):
    thread = {"thread": "MainThread", "main": True, "frames": [HOLDING], "wait": {"kind": "socket"}}
    state = {"state": "stopped", "reason": "exception", "message": "ValueError: reward is nan\nmore"}
    return state | {"who": "job/1", "thread": "MainThread", "threads": [thread], "crash_file": str(crash_file)}


def test_the_frames_that_raised_are_shown(tmp_path):
    crash = tmp_path / "crash.json"
    crash.write_text(json.dumps({"exceptions": [{"frames": [RAISING]}]}))
    lines = list(to_lines(group_stacks([_held(crash)])))
    assert lines == ["", "job/1  raised ValueError: reward is nan", "    train.py:4 step"]


def test_without_the_crash_file_the_thread_is_shown_as_it_is(tmp_path):
    (group,) = group_stacks([_held(tmp_path / "elsewhere.json")])
    assert group.frames == (HOLDING,) and not group.raised
