"""asyncio at the prompt: which task it stands in, what the others wait for, and their variables."""

import sys

import pytest
from live_job import LiveJob, output, until
from other_python import python_with

PROGRAM = """
import asyncio
async def fetch(key, event):
    wanted = f"batch {key}"
    await event.wait()
    return wanted
async def step(event):
    done = 0
    breakpoint()
    done += 1
    await asyncio.sleep(0.01)
    done += 1
    event.set()
    return done
async def main():
    event = asyncio.Event()
    tasks = [asyncio.create_task(fetch(key, event), name=f"fetch-{key}") for key in (1, 2, 10)]
    await asyncio.sleep(0)
    print("RESULT", await asyncio.create_task(step(event), name="stepping"), await asyncio.gather(*tasks), flush=True)
asyncio.run(main())
"""


@pytest.mark.parametrize("version", [None, "3.12", pytest.param("3.13", marks=pytest.mark.soak)])
def test_tasks_are_listed_and_looked_at(tmp_path, version):
    with LiveJob(tmp_path) as job:
        python = python_with(version, "debugpy") if version else sys.executable
        process = job.start(job.write("train.py", PROGRAM), python=python)
        job.wait_stopped()
        commands = (
            "tasks",
            "task fetch-2",
            "p wanted",
            "w",
            "task stepping",
            "p done",
            "n",
            "n",
            "p done",
            "task 99",
        )
        words = [word for command in commands for word in ("-c", command)]
        text = job.rldbg("attach", "train", *words, check=False).stdout
        # THEN the tasks are listed in order, one that waits is looked at, and the prompt comes back to the stopped one
        assert text.index("fetch-1") < text.index("fetch-2") < text.index("fetch-10"), text
        assert "in task stepping (step)" in text and "in task fetch-2, which waits" in text
        assert f"fetch at {tmp_path}/train.py:5" in text and "'batch 2'" in text and "fetch()" in text
        # AND after a step over an await the prompt says which task it stands in
        assert text.count("in task stepping (step)") >= 4 and "no such task: '99'" in text
        job.client.request("continue", who="all")
        assert "RESULT 2 ['batch 1', 'batch 2', 'batch 10']" in output(process)


IDLE = """
import asyncio, pathlib
async def generate(prompt):
    tokens = [1, 2]
    pathlib.Path("ready").touch()
    while not pathlib.Path("stop").exists():
        await asyncio.sleep(0.2)
    return tokens
asyncio.run(generate("hello"))
print("ENDED", flush=True)
"""


@pytest.mark.parametrize("version", [None, "3.12", pytest.param("3.13", marks=pytest.mark.soak)])
def test_a_pause_of_an_event_loop_that_waits_stands_in_the_users_task(tmp_path, version):
    with LiveJob(tmp_path) as job:
        python = python_with(version, "debugpy") if version else sys.executable
        process = job.start(job.write("idle.py", IDLE), python=python)
        until(lambda: job.ps() and (tmp_path / "ready").exists(), "its loop")
        text = job.rldbg("attach", "idle", "-c", "p tokens", "-c", "w").stdout
        assert "generate()" in text and "in task Task-1" in text and "[1, 2]" in text, text
        # WHEN it steps THEN it stops where this task goes on, though the thread is in the event loop
        text = job.rldbg("attach", "idle", "-c", "n", "-c", "n").stdout
        assert f"{tmp_path}/idle.py(6)generate()" in text and f"{tmp_path}/idle.py(7)generate()" in text, text
        assert "base_events" not in text and "selectors" not in text, text
        assert text.count("in task Task-1 (generate)") == 2, text
        (tmp_path / "stop").touch()
        job.client.request("continue", who="all")
        assert "ENDED" in output(process)


SLEEPERS = """
import asyncio, pathlib
async def inner(i):
    await asyncio.sleep(0.2)
    value = i * 10
    return value
async def worker(tag):
    i = 0
    while not pathlib.Path("stop").exists():
        result = await inner(i)
        i += 1
async def main():
    pathlib.Path("ready").touch()
    await asyncio.gather(*(asyncio.create_task(worker(tag), name=tag) for tag in ("first", "second")))
asyncio.run(main())
print("ENDED", flush=True)
"""


@pytest.mark.parametrize("look", ["tasks", "task nowhere"])
def test_looking_at_the_tasks_does_not_lose_the_one_that_steps(tmp_path, look):
    with LiveJob(tmp_path) as job:
        process = job.start(job.write("sleepers.py", SLEEPERS))
        until(lambda: job.ps() and (tmp_path / "ready").exists(), "its loop")
        # GIVEN a prompt in a task that waits; not in the one that waits for all the others
        commands = ("p i", look, "p i", "n", "n", look, "n", "w")
        words = [word for command in commands for word in ("-c", command)]
        text = job.rldbg("attach", "sleepers", *words, check=False).stdout
        # WHEN its tasks are listed THEN that changes nothing: each step stays in the task
        assert f"> {tmp_path}/sleepers.py(4)inner()" in text and "in task first, which waits" in text, text
        for line, function in ((5, "inner"), (6, "inner"), (11, "worker")):
            assert f"> {tmp_path}/sleepers.py({line}){function}()" in text, text
        assert text.count("in task first (worker)") == 3 and "selectors" not in text, text
        assert look != "tasks" or ">   1 first " in text
        (tmp_path / "stop").touch()
        job.client.request("continue", who="all")
        assert "ENDED" in output(process)


def test_a_step_that_takes_longer_says_that_it_stops_in_the_end(tmp_path):
    with LiveJob(tmp_path) as job:
        lines = ("import time", "breakpoint()", "time.sleep(2)", "after = 1")
        job.start(job.write("slow.py", "\n".join(lines)))
        job.wait_stopped()
        text = job.rldbg("attach", "slow", "--wait", "0.5", "-c", "n", "-c", "n", check=False).stdout
        assert "running: the step did not end within 0.5 s; slow stops when it does" in text, text
        (stopped,) = job.wait_stopped()
        assert stopped["line"] == 4


def test_a_jump_that_is_refused_has_a_reason(tmp_path):
    program = (
        "def last():\n    a = 1\n    breakpoint()\ndef after():\n    breakpoint()\n    return 2\nlast()\nafter()\n"
    )
    with LiveJob(tmp_path) as job:
        job.start(job.write("jumps.py", program))
        job.wait_stopped()
        lines = ("j 2", "j 9999", "n", "j 2", "j 9999", "c", "u", "j 7", "d", "j 9999", "c")
        text = job.rldbg("attach", "jumps", *(each for line in lines for each in ("-c", line)), check=False).stdout
        assert [line for line in text.splitlines() if line.startswith("***")] == [
            "*** cannot jump to line 2: last() has run its last line and is about to return",
            "*** cannot jump to line 9999: it is outside last(), lines 1 to 3",
            # At the return itself, which is what the debugger stops at next.
            "*** cannot jump to line 2: last() has run its last line and is about to return",
            "*** cannot jump to line 9999: it is outside last(), lines 1 to 3",
            "*** jumping is possible in the newest frame only (`d` goes there)",
            "*** line 9999 comes after the current code block",
        ], text


def test_a_breakpoint_beyond_the_end_of_the_file_is_refused_at_the_prompt(tmp_path):
    with LiveJob(tmp_path) as job:
        job.start(job.write("slow.py", "breakpoint()\nafter = 1\n\n# the end\nlast = 2\n"))
        job.wait_stopped()
        words = ("b 9999", "tbreak 9999", "unt 9999", "b 0", f"b {tmp_path}:2", "b", "b nosuch.py:3", "b 3", "cl", "q")
        done = job.rldbg("attach", "slow", *(each for word in words for each in ("-c", word)), check=False)
        text = done.stdout
        assert text.count("slow.py has no line 9999: it has 5 lines; its last line with code is 5") == 3, text
        assert "expected FILE:LINE" in text and "is a folder" in text and "no breakpoints set" in text
        # A file that may come later, and a line without code.
        assert "NOT SET in slow" in text and "no file nosuch.py is loaded" in text and "to remove it: cl 1" in text
        assert "slow.py:3 ranks" in text and "stops at line 5" in text
