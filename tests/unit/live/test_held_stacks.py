"""Stacks as text: of a process that is held at an exception, the frames that raised; in a diagnosis, the user's."""

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


def test_frames_of_libraries_are_counted_in_a_diagnosis():
    library = {"file": "/x/lib/python3.11/site-packages/torch/c10d.py", "line": 3, "function": "all_reduce"}
    thread = {"thread": "MainThread", "main": True, "wait": {"kind": "sleep"}}
    thread["frames"] = [library, library, library, RAISING | {"locals": {}}, library]
    stack = {"who": "job/0", "state": "running", "threads": [thread]}
    assert list(to_lines(group_stacks([stack]), brief=True)) == [
        "",
        "job/0",
        "    /x/lib/python3.11/site-packages/torch/c10d.py:3 all_reduce",
        "    ... 2 frames of libraries",
        "    train.py:4 step",
        "    ... 1 frame of libraries",
    ]
    assert len(list(to_lines(group_stacks([stack])))) == 7


def test_tasks_at_the_same_place_are_shown_once():
    waits = {"kind": "semaphore", "name": "limit"}
    frames = [RAISING | {"locals": {}}]
    tasks = [{"task": f"play-{n}", "key": f"0x{n}", "frames": frames, "wait": waits} for n in range(6)]
    elsewhere = {"task": "main", "key": "0x9", "frames": frames, "wait": {"kind": "sleep"}}
    main = {"thread": "MainThread", "main": True, "wait": {"kind": "event_loop"}, "frames": frames}
    stack = {"who": "job", "state": "running", "threads": [main], "tasks": [*tasks, elsewhere]}
    groups = group_stacks([stack])
    assert [line for line in to_lines(groups) if line.startswith("job")] == [
        "job",
        "job  task main",
        "job  task play-0, task play-1, task play-2, task play-3 and 2 more  waits for semaphore `limit`",
    ]
    assert groups[-1].to_dict()["other_threads"] == [f"task play-{n}" for n in range(1, 6)]
