"""Tracebacks at the end of what processes print, and whose they are."""

import subprocess
import sys

from rldbg.agent.waits.processes.said_files import add_said, tracebacks

TRACEBACK = """Traceback (most recent call last):
  File "/job/worker.py", line 41, in busy_loop
    output = self.run(method)
             ^^^^^^^^^^^^^^^^
  File "/job/worker.py", line 19, in run
    raise RuntimeError("the device is lost")
  File "/usr/lib/python3.11/json/decoder.py", line 3, in decode
    scan()
RuntimeError: the device is lost
"""


def test_the_line_of_the_user_and_the_function_that_caught_it_are_read():
    (found,) = tracebacks(f"step 3\n{TRACEBACK}")
    assert found["message"] == "RuntimeError: the device is lost"
    assert found["place"] == {"file": "/job/worker.py", "line": 19, "function": "run"}
    assert found["caught_in"] == {"file": "/job/worker.py", "line": 41, "function": "busy_loop"} and found["ends"]
    assert not tracebacks(f"{TRACEBACK}step 4\n")[0]["ends"]


def test_of_chained_exceptions_the_last_one_was_caught():
    then = TRACEBACK.replace("RuntimeError: the", "ValueError: the")
    mark = "\nDuring handling of the above exception, another exception occurred:\n\n"
    assert [each["message"] for each in tracebacks(TRACEBACK + mark + then)] == ["ValueError: the device is lost"]
    assert len(tracebacks(TRACEBACK + then)) == 2


def test_what_is_above_the_first_of_chained_exceptions_is_of_them_all():
    mark = "\nThe above exception was the direct cause of the following exception:\n\n"
    (found,) = tracebacks(f"\0Exception in thread feeder-7:\n{TRACEBACK}{mark}{TRACEBACK}")
    assert found["above"] == "Exception in thread feeder-7:" and 7 in found["numbers"]
    first, second = tracebacks(f"Exception in thread feeder-7:\n{TRACEBACK}\n{TRACEBACK}")
    assert first["above"] and not second["above"]


def test_words_of_a_logger_before_each_line_are_left_out():
    marked = "".join(f"(Worker pid=77) ERROR {line}\n" for line in TRACEBACK.splitlines())
    (found,) = tracebacks(marked)
    assert found["message"] == "RuntimeError: the device is lost" and 77 in found["numbers"]


def test_what_is_not_complete_is_not_told():
    assert tracebacks("") == tracebacks("step 3\n") == []
    assert tracebacks(TRACEBACK.partition("RuntimeError: the device is lost\n")[0]) == []
    assert tracebacks("Traceback (most recent call last):\nnothing follows\n") == []


def test_what_leaves_a_thread_is_caught_by_nobody_in_particular():
    text = TRACEBACK.replace(
        '"/job/worker.py", line 41, in busy_loop', '"/usr/lib/python3.11/threading.py", line 9, in run'
    )
    assert tracebacks(text)[0]["caught_in"] is None


def _program(log):
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=log, stderr=log)


def _said(folder, text, frames, count, ended=(), *, others=0, name="job.log"):
    """What is said by processes that share a file; `frames` are the functions that each of them is in, `others` are not
    looked at."""
    with (folder / name).open("w") as log:
        programs = [_program(log) for _ in range(count + others)]
        log.write(text.format(*(program.pid for program in programs)))
    (folder / name).rename(folder / name.format(programs[0].pid))
    try:
        entries = [
            {
                "pid": program.pid,
                "ended": [*ended] if program is programs[0] else [],
                "threads": [
                    {"thread": "loop", "ident": 5, "frames": [{"file": "/job/worker.py", "line": 9, "function": name}]}
                ],
            }
            for program, name in zip(programs, frames, strict=False)
        ]
        add_said(entries)
        return [entry.get("said") or [] for entry in entries]
    finally:
        for program in programs:
            program.communicate(b"\n")


def test_the_only_one_that_is_still_in_the_function_has_said_it(tmp_path):
    none, (said,) = _said(tmp_path, TRACEBACK, ["main", "Worker.busy_loop"], 2)
    assert none == [] and said["ident"] == 5 and said["ago_s"] is not None and "one_of" not in said


def test_a_number_before_the_line_names_the_process(tmp_path):
    marked = "".join(f"(pid={{1}}) {line}\n" for line in TRACEBACK.splitlines())
    none, (said,) = _said(tmp_path, marked, ["busy_loop", "busy_loop"], 2)
    assert none == [] and said["thread"] == "loop"


def test_else_it_is_one_of_those_that_share_the_file(tmp_path):
    first, second, none = _said(tmp_path, TRACEBACK, ["busy_loop", "busy_loop", "main"], 3)
    assert len(first[0]["one_of"]) == 2 and first[0]["one_of"] == second[0]["one_of"] and none == []


def test_the_only_process_that_prints_into_the_file_has_said_it_also_where_it_has_left_the_function(tmp_path):
    ((said,),) = _said(tmp_path, TRACEBACK, ["main"], 1)
    assert "or_others" not in said and "ident" not in said
    ((said,),) = _said(tmp_path, TRACEBACK, ["main"], 1, others=1)
    assert said["or_others"]


def test_who_is_still_in_the_call_that_raised_has_not_caught_it(tmp_path):
    again = TRACEBACK.replace("line 41", "line 9")
    ((said,),) = _said(tmp_path, again, ["busy_loop"], 1)
    assert said["or_others"] and "ident" not in said


def test_one_that_has_ended_may_have_said_it(tmp_path):
    """Also where another one is in the same function."""
    ended = {"kind": "process", "name": "worker-1", "pid": 5, "exit": "exit code 0"}
    for frames in (["main"], ["busy_loop"]):
        ((said,),) = _said(tmp_path, TRACEBACK, frames, 1, [ended])
        assert said["or_others"] and len(said["one_of"]) == 1


def test_of_those_who_remember_a_process_the_one_that_started_it_tells_how_it_ended(tmp_path):
    above = "Process env-1:\n" + TRACEBACK
    known = {"kind": "process", "name": "env-1", "pid": 5, "exit": "exit code 1"}
    with (tmp_path / "job.log").open("w") as log:
        programs = [_program(log) for _ in range(2)]
        log.write(above)
    try:
        # The first was forked later, and has what its parent remembered.
        ended = [[known | {"exit": "unknown exit code"}], [known]]
        entries = [
            {"pid": program.pid, "ended": each, "threads": []} for program, each in zip(programs, ended, strict=True)
        ]
        add_said(entries)
        assert entries[0].get("said") is None and [each["gone"] for each in entries[1]["said"]] == ["process env-1"]
    finally:
        for program in programs:
            program.communicate(b"\n")


def test_a_process_that_is_not_looked_at_may_have_said_it(tmp_path):
    ((said,),) = _said(tmp_path, TRACEBACK, ["busy_loop"], 1, others=1)
    assert said["or_others"] and "ident" not in said


def test_the_name_of_a_file_names_its_process(tmp_path):
    ((said,),) = _said(tmp_path, TRACEBACK + "later\n", ["main"], 1, name="worker-01ab-{0}.err")
    assert "one_of" not in said and "ident" not in said and said["ago_s"] is None


def test_what_python_says_to_have_ended_is_not_taken_for_one_of_the_others(tmp_path):
    saver = {"kind": "process", "name": "saver", "pid": 5, "exit": "exit code 1"}
    (said,), none = _said(tmp_path, f"Process saver:\n{TRACEBACK}", ["main", "busy_loop"], 2, [saver])
    assert said["gone"] == "process saver" and none == []
    feeder = {"kind": "thread", "name": "Thread-1 (feed)"}
    (said,), none = _said(tmp_path, f"Exception in thread Thread-1 (feed):\n{TRACEBACK}", ["main"] * 2, 2, [feeder])
    assert said["gone"] == "thread Thread-1 (feed)" and none == []


def test_what_ended_a_program_was_not_caught_by_who_prints_into_the_same_file(tmp_path):
    whole = TRACEBACK.replace('"/job/worker.py", line 41, in busy_loop', '"/job/engine.py", line 7, in <module>')
    ((said,),) = _said(tmp_path, whole, ["main"], 1, name="worker-01ab-{0}.err")
    assert said["or_others"] and said["caught_in"] is None
    # AND a program may catch it itself, at the end of its own file
    own = whole.replace("/job/engine.py", "/job/worker.py")
    ((said,),) = _said(tmp_path, own, ["<module>"], 1, name="worker-02ab-{0}.err")
    assert said["caught_in"]["function"] == "<module>" and "or_others" not in said
