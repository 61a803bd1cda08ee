"""After an exception: a crash file always, and a wait at the raising frame when asked for, on 3.11, 3.12 and 3.13."""

import json
import os
import signal
import sys

import pytest
from live_job import LOOP, LiveJob, output, until
from other_python import python_with

from rldbg.agent import Arming

FAILING = """
import sys, threading
def three(values):
    deepest = [v * 2 for v in values]
    return deepest[7]
def two(rows):
    middle = {"rows": rows, "password": "hunter2hunter2"}
    return three(middle["rows"])
def one():
    learning_rate = 0.25
    try:
        return two([1, 2]) * learning_rate
    except IndexError as error:
        raise RuntimeError("step failed") from error
if sys.argv[1:] == ["thread"]:
    thread = threading.Thread(target=one, name="worker-thread"); thread.start(); thread.join()
    print("MAIN WENT ON", flush=True)
else:
    one()
"""


def _pythons():
    return [
        pytest.param(None, id="this"),
        pytest.param("3.12", id="3.12"),
        pytest.param("3.13", id="3.13", marks=pytest.mark.soak),
    ]


@pytest.fixture(params=_pythons())
def python(request):
    return sys.executable if request.param is None else python_with(request.param, "debugpy")


@pytest.fixture
def job(tmp_path):
    with LiveJob(tmp_path, arming=Arming(post_mortem_wait_s=60.0)) as job:
        yield job


def test_it_waits_at_the_raising_frame_with_all_locals(job, python):
    process = job.start(job.write("train.py", FAILING), python=python, RANK=2)
    (stopped,) = job.wait_stopped()
    assert (stopped["who"], stopped["reason"], stopped["function"]) == ("train/2", "exception", "one")
    assert any("step failed" in note for note in stopped["notes"])
    commands = ("p learning_rate", "w", "exc", "f 2", "p deepest", "p [d + 1 for d in deepest]", "whatis deepest", "a")
    done = job.rldbg("attach", "2", "--json", *(word for command in commands for word in ("-c", command)))
    answers = {answer["command"]: answer for answer in json.loads(done.stdout)["answers"]}
    assert answers["p learning_rate"]["value"] == 0.25
    assert "[IndexError] three" in answers["w"]["text"] and "RuntimeError: step failed" in answers["exc"]["text"]
    assert answers["p deepest"]["text"] == "[2, 4]" and answers["p [d + 1 for d in deepest]"]["text"] == "[3, 5]"
    assert answers["a"]["text"] == "values = [1, 2]"
    # A client may leave and come back, and a step is refused; the exception waits.
    refused = job.rldbg("attach", "2", "-c", "n", check=False)
    assert refused.returncode == 1 and "cannot step" in refused.stdout
    assert job.stopped()
    job.client.request("continue", who="all")
    text = output(process)
    assert process.returncode == 1 and "RuntimeError: step failed" in text


def test_the_crash_file_is_there_before_anybody_waits(job, python):
    process = job.start(job.write("train.py", FAILING), python=python, RANK=2)
    job.wait_stopped()
    process.kill()
    process.wait()
    (file,) = (job.run.path / "crashes").glob("*.json")
    assert "hunter2" not in file.read_text()
    shown = job.rldbg(
        "attach", str(file), "-c", "f 2", "-c", "p deepest", "-c", "f 3", "-c", "p middle", run=None
    ).stdout
    assert "[2, 4]" in shown and "'rows': [1, 2]" in shown
    crashed = until(lambda: [p for p in job.ps() if p["state"] == "crashed"], "ps to show the crash")
    assert crashed[0]["crash_file"] == str(file) and "step failed" in crashed[0]["message"]


def test_nobody_comes_and_the_wait_ends(tmp_path):
    with LiveJob(tmp_path, arming=Arming(post_mortem_wait_s=1.0)) as job:
        process = job.start(job.write("train.py", FAILING))
        assert "RuntimeError" in output(process)
        assert process.returncode == 1


def test_an_exception_in_a_thread_is_caught_too(job):
    process = job.start(job.write("train.py", FAILING), "thread")
    (stopped,) = job.wait_stopped()
    assert stopped["thread"] == "worker-thread" and stopped["state"] == "stopped"
    job.client.request("continue", who="all")
    assert "MAIN WENT ON" in output(process)


CHILDREN = """
import multiprocessing, sys
def work(number):
    reward = number / 2
    if number == 1:
        raise KeyError("reward of row 1")
if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    children = [context.Process(target=work, args=(number,)) for number in range(3)]
    for child in children: child.start()
    for child in children: child.join()
    print("EXIT CODES", [child.exitcode for child in children], flush=True)
"""


@pytest.mark.parametrize("how", ["spawn", "fork", "forkserver"])
def test_an_exception_in_a_child_of_multiprocessing_is_held_too(job, how):
    # WHEN a child fails, whose exception multiprocessing only prints
    process = job.start(job.write("children.py", CHILDREN), how)
    (stopped,) = job.wait_stopped()
    assert (stopped["reason"], stopped["function"]) == ("exception", "work")
    assert "0.5" in job.rldbg("attach", stopped["who"], "-c", "p reward").stdout
    job.client.request("continue", who="all")
    # THEN its traceback was printed before the wait, and it ends as it would without rldbg
    said = output(process)
    assert said.index("KeyError: 'reward of row 1'") < said.index("Process ") and "EXIT CODES [0, 1, 0]" in said
    (file,) = (job.run.path / "crashes").glob("*.json")
    record = json.loads(file.read_text())
    assert record["where"] == "child" and "hooks.py" not in {
        frame["file"].rpartition("/")[2] for frame in record["exceptions"][0]["frames"]
    }


GRADES = """
import asyncio, subprocess, sys
def grade(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
async def grade_later(code):
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec("timeout", "60", sys.executable, "-c", code, stdout=pipe, stderr=pipe)
    return (await child.communicate())[1].decode()
failed = grade("answer = 1 / 0")
said = [failed.stderr, asyncio.run(grade_later("answer = 1 / 0"))]
subprocess.run([sys.executable, "-c", "raise KeyError('unheard')"], stderr=subprocess.DEVNULL)
with open("generated.py", "w") as file: file.write("answer = 1 / 0")
said.append(subprocess.run([sys.executable, "generated.py"], capture_output=True, text=True).stderr)
print("GRADED", failed.returncode, [text.strip().splitlines()[-1] for text in said], flush=True)
"""


def test_code_that_a_reward_function_runs_and_reads_is_neither_held_nor_recorded(job):
    # WHEN a healthy job runs code that fails, and reads its output THEN nothing is held and nothing added to it
    process = job.start(job.write("grades.py", GRADES))
    said = output(process)
    assert f"GRADED 1 {['ZeroDivisionError: division by zero'] * 3}" in said and "rldbg" not in said
    # AND one whose output nobody can read is only recorded
    (file,) = (job.run.path / "crashes").glob("*.json")
    assert json.loads(file.read_text())["exceptions"][0]["message"] == "'unheard'"


LAUNCHES = """
import os, subprocess, sys
rank = subprocess.Popen([sys.executable, "-c", "raise ValueError('rank 0 failed')"], stderr=subprocess.PIPE,
                        env=os.environ | {"RANK": "0"}, text=True)
for line in rank.stderr: print("rank 0:", line, end="", flush=True)
"""


def test_a_program_of_the_user_whose_output_is_logged_is_held(job):
    trains = job.write("trains.py", "raise ValueError('no data')\n")
    os.utime(trains, (1e9, 1e9))
    wrapper = f"import subprocess, sys; print(subprocess.run([sys.executable, {str(trains)!r}], capture_output=True))"
    process = job.start(job.write("wraps.py", wrapper))
    (stopped,) = job.wait_stopped()
    assert stopped["reason"] == "exception" and stopped["role"] == "trains"
    job.client.request("continue", who="all")
    assert b"no data" in output(process).encode()


def test_a_rank_whose_launcher_reads_its_output_is_held(job):
    process = job.start(job.write("launches.py", LAUNCHES))
    (stopped,) = job.wait_stopped()
    assert stopped["rank"] == 0 and stopped["reason"] == "exception"
    job.client.request("continue", who="all")
    assert "rank 0: ValueError: rank 0 failed" in output(process)


SPAWNED = """
import torch.multiprocessing
def work(rank):
    loss = rank * 0.25
    if rank == 1:
        raise ValueError("the loss of rank 1")
if __name__ == "__main__":
    torch.multiprocessing.spawn(work, nprocs=2)
"""


def test_a_rank_of_torch_spawn_is_held_and_its_parent_is_not(job):
    # WHEN a rank fails, whose exception torch saves for the parent
    process = job.start(job.write("spawned.py", SPAWNED))
    (stopped,) = job.wait_stopped()
    assert stopped["function"] == "work"
    assert "0.25" in job.rldbg("attach", stopped["who"], "-c", "p loss").stdout
    job.client.request("continue", who="all")
    # THEN the report of its parent holds nobody
    assert "ProcessRaisedException" in output(process)
    kinds = {
        json.loads(file.read_text())["exceptions"][0]["type"] for file in (job.run.path / "crashes").glob("*.json")
    }
    # The parent only reports what its rank has a file for.
    assert kinds == {"ValueError"}


RENAMED = """
import pathlib, sys, threading, time
thread = threading.Thread(target=lambda: 1 / 0); thread.start(); thread.join()
sys._rldbg_agent.identify(role="next_task")
while not pathlib.Path("stop").exists(): time.sleep(0.02)
"""


def test_a_crash_keeps_the_name_under_which_it_happened(tmp_path):
    with LiveJob(tmp_path, arming=Arming(post_mortem_wait_s=0.0)) as job:
        # WHEN a process gets another name after a failure, as a pooled worker of Ray does with its next task
        job.start(job.write("renamed.py", RENAMED))
        (process,) = until(lambda: [each for each in job.ps() if each["who"] == "next_task"], "the new name")
        assert (process["crashed_as"], process["message"]) == ("renamed", "ZeroDivisionError: division by zero")
        job.write("stop", "")


TRACED = """
import pathlib, sys, threading, time
def stops_at_its_end(): breakpoint()
def stops_before_its_end():
    breakpoint()
    return 1
def traces():
    monitoring = getattr(sys, "monitoring", None)
    return [sys.gettrace(), threading._trace_hook, monitoring.get_tool(monitoring.DEBUGGER_ID) if monitoring else None]
for number, stop in enumerate([stops_at_its_end, stops_before_its_end] * 2):
    stop()
    while not pathlib.Path(f"go_{number}").exists(): time.sleep(0.01)
    limit = time.monotonic() + 30
    while any(traces()) and time.monotonic() < limit: time.sleep(0.01)
    print(traces(), flush=True)
"""


def test_after_a_detach_nothing_is_traced_any_more(job, python):
    process = job.start(job.write("traced.py", TRACED), python=python)
    for number in range(4):
        job.wait_stopped()
        job.client.request("continue", who="all")
        until(lambda: not job.ps()[0]["debugged"], "the session to be closed")
        job.write(f"go_{number}", "")
    assert output(process).count("[None, None, None]") == 4


def test_breakpoints_from_outside_on_this_python(job, python):
    script = job.write("loop.py", LOOP)
    process = job.start(script, python=python)
    until(lambda: any(p["who"] == "loop" for p in job.ps()), "the agent")
    for _ in range(3):
        job.client.request("break_set", file=str(script), line=4, once=True)
        (stopped,) = job.wait_stopped()
        assert stopped["line"] == 4
        text = job.rldbg("attach", "loop", "-c", "p total >= i", "-c", "n", "-c", "r", "-c", "s").stdout
        assert "True" in text and "loop.py" in text
        job.client.request("break_clear")
        job.client.request("continue", who="all")
        until(lambda: not job.ps()[0]["debugged"], "the session to be closed")
    job.write("stop", "")
    assert "ENDED" in output(process)


def test_a_run_that_was_asked_to_end_holds_nobody_any_more(tmp_path):
    with LiveJob(tmp_path, arming=Arming(post_mortem_wait_s=300.0)) as job:
        script = job.write("train.py", "raise ValueError('connection closed by peer')\n")
        held = job.start(script)
        job.wait_stopped()
        # WHEN `rldbg run` got a signal, which hosts other than its own do not get THEN who is held is let go
        job.client.request("ending", signal="SIGINT")
        output(held)
        # AND what fails because of that is not held
        assert "not held: the run was asked to end (SIGINT)" in output(job.start(script))


def test_ctrl_c_ends_the_wait_without_a_traceback_of_ours(tmp_path):
    with LiveJob(tmp_path, arming=Arming(post_mortem_wait_s=300.0)) as job:
        # GIVEN a process that waits at its exception (and takes SIGINT even if its parents ignore it)
        own = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        held = job.start(job.write("train.py", f"{own}raise ValueError('bad loss')\n"))
        job.wait_stopped()
        held.send_signal(signal.SIGINT)
        # THEN it ends of its own exception
        said = output(held)
        assert "Ctrl-C ended the wait" in said and "sys.excepthook" not in said
        assert held.returncode == 1
