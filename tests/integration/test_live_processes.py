"""Plain processes and torchrun-like ranks under a real broker and real debugpy."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from live_job import LiveJob, output, rldbg, until

from rldbg.agent import Arming
from rldbg.live import BrokerClient, start_broker, stop_broker

STEPS = """
import os, time
def step(i, rank):
    loss = rank * 0.5 + i
    breakpoint()
    after = loss + 1
    return after
rank = int(os.environ.get("RANK", 0))
print("RESULT", [step(i, rank) for i in range(2)], flush=True)
"""

LOOP = """
import sys, time, threading
def body(i, total):
    total = total + i
    time.sleep(0.005)
    return total
def main():
    i = total = 0
    while i < 10_000:
        total = body(i, total)
        i += 1
main()
"""


@pytest.fixture
def job(tmp_path):
    with LiveJob(tmp_path) as job:
        yield job


def test_four_ranks_stop_answer_step_and_go_on(job):
    ranks = job.ranks(job.write("train.py", STEPS), 4)
    stopped = job.wait_stopped(4)
    # THEN ps says who and where, in the documented shape
    body = json.loads(job.rldbg("ps", "--json").stdout)
    assert body["schema_version"] == 1
    first = next(p for p in body["processes"] if p["who"] == "train/0")
    assert (first["rank"], first["state"], first["function"]) == (0, "stopped", "step")
    assert first["file"].endswith("train.py") and first["line"] in (5, 6) and first["pid"] == ranks[0].pid
    assert {"host", "thread", "since_s", "attached_by"} <= set(first)
    assert len(stopped) == 4
    # AND one command reaches all, folded
    cast = json.loads(job.rldbg("cast", "all", "p loss", "--json").stdout)
    assert sorted(answer["value"] for answer in cast["answers"]) == [0.0, 0.5, 1.0, 1.5]
    assert len(cast["folded"]) == 4 and cast["spread"]["max"] == 1.5
    assert "train/0-3: 1" in job.rldbg("cast", "all", "p", "1").stdout
    # AND ranks step together
    text = job.rldbg("attach", "0:4", "-c", "n", "-c", "p after - loss").stdout
    assert "train/0-3: 1.0" in text
    # AND go on: once to the second breakpoint, once to the end
    job.rldbg("continue", "all")
    job.wait_stopped(4)
    job.rldbg("continue", "all")
    assert ["RESULT [1.0, 2.0]" in output(ranks[0]), "RESULT [2.5, 3.5]" in output(ranks[3])] == [True, True]


def test_a_scripted_attach_speaks_pdb(job):
    process = job.start(job.write("train.py", STEPS))
    job.wait_stopped()
    done = job.rldbg("attach", "train", "-c", "w", "-c", "a", "-c", "!loss = 41", "-c", "n", "-c", "p after", "-c", "l")
    assert "train.py(6)step()" in done.stdout and "i = 0" in done.stdout
    assert "\n42\n" in done.stdout and "->" in done.stdout
    failing = job.rldbg("attach", "train", "-c", "p nope", "-c", "1/0", check=False)
    assert failing.returncode == 1
    assert "*** NameError" in failing.stdout and "*** ZeroDivisionError" in failing.stdout
    # Breakpoints from inside, conditions, jumping back over a line.
    text = job.rldbg("attach", "train", "-c", "b 4, i == 1", "-c", "j 6", "-c", "c", "-c", "p i", "-c", "cl").stdout
    assert "if i == 1" in text and "\n1\n" in text
    job.rldbg("attach", "train", "-c", "c", "-c", "c")
    assert "RESULT" in output(process)


def test_pdb_words_across_functions_and_threads(job):
    script = job.write(
        "words.py",
        """
import threading, time
def inner(a, *args, b=2, **kw):
    total = a + b
    for i in range(3): total += i
    x = [j * a for j in range(3)]
    return total
def outer(n):
    breakpoint()
    return inner(n, 7, b=3, z=9) + inner(n + 1)
threading.Thread(target=lambda: time.sleep(600), daemon=True, name="sleeper").start()
print("RESULT", outer(5), flush=True)
""",
    )
    process = job.start(script)
    job.wait_stopped()

    def said(*lines):
        return job.rldbg("attach", "words", *(word for line in lines for word in ("-c", line)), check=False).stdout

    text = said("s", "a", "unt 6", "b", "n", "p [v + a for v in x]", "b inner, a == 6", "enable 1")
    assert "args = (7,)\nkw = {'z': 9}\n" in text and "(6)inner()" in text and "\n[5, 10, 15]\n" in text
    # What `until` set is gone once it has served; a function stands for its first line.
    assert "no breakpoints set" in text and f"\n1 {script}:4" in text
    assert "*** unsupported command: enable" in text
    assert "\n6\n" in said("c", "p a")
    # A thread that sleeps in C is shown where it is, and says why it cannot be asked.
    sleeper = next(line.split()[0] for line in said("threads").splitlines() if line.endswith("sleeper"))
    text = said(f"thread {sleeper}", "p 1", "thread 1", "p a")
    assert "(11)<lambda>()" in text and "*** that thread is in C code" in text and text.endswith("\n6\n")
    job.rldbg("continue", "all")
    assert "RESULT 22" in output(process)


def test_a_breakpoint_from_outside_hits_in_a_process_that_never_called_one(job):
    script = job.write("loop.py", LOOP)
    process = job.start(script)
    until(lambda: any(p["who"] == "loop" for p in job.ps()), "the agent")
    # WHEN a conditional breakpoint is set while it runs
    made = json.loads(job.rldbg("break", f"{script}:4", "--if", "i % 50 == 0", "--json").stdout)["break"]
    assert made["set_in"] == {"loop": True}
    job.wait_stopped()
    text = job.rldbg("attach", "loop", "-c", "p i % 50", "-c", "p total >= 0").stdout
    assert "\n0\n" in text and "True" in text
    # THEN it is listed with its hits, and clearing it lets the process run free
    assert json.loads(job.rldbg("break", "--list", "--json").stdout)["breaks"][0]["hits"] == {"loop": 1}
    job.rldbg("break", "--clear")
    job.rldbg("continue", "all")
    until(lambda: job.ps()[0]["state"] == "running" and not job.ps()[0]["debugged"], "no session left")
    # AND pause stops it wherever it is
    job.rldbg("pause", "loop")
    assert job.stopped()[0]["file"].endswith("loop.py")
    job.rldbg("continue", "loop")
    process.kill()


def test_once_and_log_points(job):
    script = job.write("loop.py", LOOP)
    job.start(script)
    until(lambda: any(p["who"] == "loop" for p in job.ps()), "the agent")
    job.rldbg("break", f"{script}:5", "--log", "i is {i}")
    log = job.run.path / "logs" / "log_points.jsonl"
    until(lambda: log.exists() and log.read_text().count("\n") > 3, "log lines")
    assert json.loads(log.read_text().splitlines()[0])["text"].startswith("i is ")
    assert not job.stopped()
    job.rldbg("break", "--clear", "1")
    job.rldbg("break", f"{script}:4", "--once")
    job.wait_stopped()
    job.rldbg("continue", "all")
    until(lambda: job.ps()[0]["state"] == "running" and not job.ps()[0]["debugged"], "released after once")


def test_a_breakpoint_waits_for_processes_that_come_later(job):
    script = job.write("loop.py", LOOP)
    job.rldbg("break", f"{script}:4", "--ranks", "loop/1")
    job.ranks(script, 2)
    job.wait_stopped()
    assert [p["who"] for p in job.stopped()] == ["loop/1"]


def test_a_file_that_is_loaded_later_and_one_reached_through_a_link(job):
    job.write("reward.py", "def score(x):\n    value = x * 2\n    return value\n")
    script = job.write(
        "late.py",
        """
import pathlib, time
while not pathlib.Path("go").exists(): time.sleep(0.01)
import reward
for x in range(100_000):
    reward.score(x)
    time.sleep(0.01)
""",
    )
    (job.folder / "elsewhere").mkdir()
    (job.folder / "elsewhere" / "link.py").symlink_to(script)
    process = job.start(script)
    until(lambda: any(p["who"] == "late" for p in job.ps()), "the agent")
    # WHEN a breakpoint names a module that no process has loaded yet
    done = job.rldbg("break", "reward:2", "--once", check=False)
    assert done.returncode == 1 and "no module reward here, nor in late" in done.stderr
    job.write("go", "")
    # THEN it stops there once it is loaded, and only once
    job.wait_stopped()
    text = job.rldbg("attach", "late", "-c", "b score, x % 10 == 2", "-c", "condition 2 x % 10 == 3").stdout
    assert "reward.py:2" in text and text.splitlines()[-1].startswith("2 ") and "if x % 10 == 3" in text
    assert "\n3\n" in job.rldbg("attach", "late", "-c", "c", "-c", "p x % 10").stdout
    # AND a condition that fails is said to fail, once and not at every hit
    job.rldbg("attach", "late", "-c", "condition 2 x.nope", "-c", "c")
    until(lambda: "THE CONDITION FAILS in late: AttributeError" in job.rldbg("break", "--list").stdout, "the failure")
    assert "pydevd" not in job.rldbg("break", "--list").stdout
    job.rldbg("break", "--clear")
    job.rldbg("pause", "late")
    # AND a file is the same whichever way it is named
    job.rldbg("break", f"{job.folder / 'elsewhere' / 'link.py'}:6", "--once")
    job.rldbg("continue", "all")
    job.wait_stopped()
    assert json.loads(job.rldbg("break", "--list", "--json").stdout)["breaks"][0]["hits"] == {"late": 1}
    job.rldbg("continue", "all")
    until(lambda: job.ps()[0]["state"] == "running" and not job.ps()[0]["debugged"], "released after once")
    process.kill()


def test_stop_where_an_exception_is_raised(job):
    script = job.write(
        "late.py",
        """
import pathlib, time
def check(x):
    if pathlib.Path("go").exists(): raise ValueError("sixty")
    time.sleep(0.01)
for x in range(100_000):
    try: check(60)
    except ValueError: print("HANDLED", flush=True); break
""",
    )
    process = job.start(script)
    until(lambda: any(p["who"] == "late" for p in job.ps()), "the agent")
    job.rldbg("break", "--on-exception", "raised")
    job.write("go", "")
    job.wait_stopped()
    assert job.stopped()[0]["reason"] == "exception"
    text = job.rldbg("attach", "late", "-c", "p x", "-c", "exc").stdout
    assert "\n60\n" in text and "ValueError" in text
    job.rldbg("break", "--clear")
    job.rldbg("continue", "all")
    assert "HANDLED" in output(process)


def test_selected_ranks_conditions_and_hits(job):
    script = job.write(
        "train.py",
        """
import os, rldbg
rank = int(os.environ["RANK"])
for step in range(6):
    rldbg.breakpoint(ranks="1", when=step >= 1, nth=3)
print("DONE", flush=True)
""",
    )
    first, second = job.ranks(script, 2)
    assert "DONE" in output(first)
    job.wait_stopped()
    assert "\n3\n" in job.rldbg("attach", "1", "-c", "p step").stdout
    job.rldbg("continue", "1")
    assert "DONE" in output(second)


def test_a_breakpoint_with_a_timeout_goes_on_alone(job):
    script = job.write("train.py", "import rldbg\nrldbg.breakpoint(timeout=0.5)\nprint('WENT ON', flush=True)\n")
    assert "WENT ON" in output(job.start(script))


def test_children_of_every_kind_are_armed_too(job):
    script = job.write(
        "parent.py",
        """
import multiprocessing, os, subprocess, sys
def work(kind):
    here = kind
    breakpoint()
    return here
if __name__ == "__main__":
    if sys.argv[1:] == ["popen"]:
        work("popen"); sys.exit()
    fork = multiprocessing.get_context("fork").Process(target=work, args=("fork",)); fork.start()
    spawn = multiprocessing.get_context("spawn").Process(target=work, args=("spawn",)); spawn.start()
    popen = subprocess.Popen([sys.executable, __file__, "popen"])
    fork.join(); spawn.join(); popen.wait()
    print("ALL DONE", fork.exitcode, spawn.exitcode, popen.returncode, flush=True)
""",
    )
    parent = job.start(script, RANK=0)
    job.wait_stopped(3)
    answers = json.loads(job.rldbg("cast", "all", "p kind", "--json").stdout)["answers"]
    assert sorted(answer["value"] for answer in answers) == ["fork", "popen", "spawn"]
    assert all(".child" in answer["who"] for answer in answers)
    job.rldbg("continue", "all")
    assert "ALL DONE 0 0 0" in output(parent)


def test_a_client_killed_while_stepping_leaves_the_rank_stopped(job):
    job.start(job.write("train.py", STEPS))
    job.wait_stopped()
    before = job.rldbg("attach", "train", "-c", "n").stdout
    client = subprocess.Popen(
        [sys.executable, "-m", "rldbg", "attach", "train", "--run", str(job.run.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    job.processes.append(client)
    client.stdin.write("p loss\n")
    client.stdin.flush()
    until(lambda: job.ps()[0]["attached_by"], "the client to be attached")
    client.send_signal(signal.SIGKILL)
    client.wait()
    until(lambda: not job.ps()[0]["attached_by"], "the broker to notice")
    assert job.stopped()[0]["line"] == 7
    assert "return after" in before and "return after" in job.rldbg("attach", "train", "-c", "p after").stdout
    job.rldbg("continue", "all")


def _everywhere(job, expression):
    """The values of an expression in all stopped processes, sorted."""
    cast = json.loads(job.rldbg("cast", "all", f"p {expression}", "--json", check=False).stdout)
    return sorted(answer["value"] for answer in cast["answers"])


def test_stopped_ranks_wait_for_the_next_broker(job):
    ranks = job.ranks(job.write("train.py", STEPS), 3)
    job.wait_stopped(3)
    # WHEN the broker is killed and the next one comes THEN all stand where they stood, with their values
    job.replace_broker()
    until(lambda: [process["line"] for process in job.stopped()] == [6, 6, 6], "the three stops")
    assert _everywhere(job, "loss") == [0.0, 0.5, 1.0]
    # AND they can be stepped, resumed and stopped again, for another broker too
    assert "return after" in job.rldbg("attach", "train/1", "-c", "n").stdout
    job.rldbg("continue", "all")
    until(lambda: job.wait_stopped(3) and _everywhere(job, "loss") == [1.0, 1.5, 2.0], "the second stop of all")
    job.replace_broker()
    job.wait_stopped(3)
    job.rldbg("continue", "all")
    assert [output(rank).splitlines()[-1] for rank in ranks] == [
        "RESULT [1.0, 2.0]",
        "RESULT [1.5, 2.5]",
        "RESULT [2.0, 3.0]",
    ]


def test_a_step_in_progress_ends_in_a_stop_for_the_next_broker(job):
    process = job.start(job.write("slow.py", SLOW_LINE))
    line = _stopped_line(job)
    job.client.request("resume", who="all", how="next")
    job.replace_broker()
    (job.folder / "go").touch()
    until(lambda: job.stopped() and job.stopped()[0]["line"] == line + 1, "the end of the step")
    job.rldbg("continue", "all")
    output(process)


def test_a_breakpoint_that_is_reached_without_a_broker_waits_for_the_next(job):
    process = job.start(
        job.write("train.py", "import pathlib\nwhile not pathlib.Path('go').exists(): pass\nbreakpoint()\nlast = 1\n")
    )
    until(job.ps, "the agent")
    # As `pkill python` in a script does.
    job.kill_broker(signal.SIGTERM)
    (job.folder / "go").touch()
    job.replace_broker()
    assert job.wait_stopped()[0]["line"] in (3, 4)
    job.rldbg("continue", "all")
    assert "skipped" not in output(process) and process.returncode == 0


def test_a_held_exception_waits_for_the_next_broker(tmp_path):
    with LiveJob(tmp_path, arming=Arming(post_mortem_wait_s=300)) as job:
        process = job.start(job.write("train.py", "loss = 3\nraise ValueError(loss)\n"))
        job.wait_stopped()
        job.replace_broker()
        found = job.wait_stopped()[0]
        assert (found["reason"], found["line"], found["message"]) == ("exception", 2, "ValueError: 3")
        assert "3" in job.rldbg("attach", "train", "-c", "p loss").stdout.splitlines()
        job.rldbg("continue", "all")
        output(process)
        assert process.returncode == 1


def test_ranks_resume_when_their_broker_is_told_to_end(job):
    process = job.start(job.write("train.py", STEPS))
    job.wait_stopped()
    stop_broker(job.run.path)
    assert "RESULT [1.0, 2.0]" in output(process)


def test_a_dead_broker_lets_stopped_ranks_run_and_a_new_one_finds_them(job):
    script = job.write(
        "train.py",
        """
import time
breakpoint()
print("PASSED ONE", flush=True)
breakpoint()
print("PASSED TWO", flush=True)
for _ in range(2000): time.sleep(0.01)
""",
    )
    process = job.start(script, RLDBG_BROKER_WAIT_S=0.5)
    job.wait_stopped()
    # WHEN the broker is killed and none follows in time THEN the rank says so and goes on, and the next breakpoint says
    # that nobody answers
    job.kill_broker()
    lines = []
    while "PASSED TWO\n" not in lines and (line := process.stdout.readline()):
        lines.append(line)
    assert "PASSED ONE\n" in lines and lines[-1] == "PASSED TWO\n"
    assert any("no other broker connected within 0.5 s: resumed" in line for line in lines)
    assert any("breakpoint skipped" in line for line in lines)
    # AND a new broker on another port is found again
    start_broker(job.run, owner_pid=os.getpid())
    until(lambda: "train" in rldbg("ps", run=job.run.path, check=False).stdout, "the agent to come back")
    process.kill()


def test_what_was_there_before_still_runs(job):
    job.write("sitecustomize.py", "print('USER SITE', flush=True)")
    hooked = job.write(
        "hooked.py",
        """
import sys
import time
seen = []
previous = sys.excepthook
sys.excepthook = lambda *a: (print("USER EXCEPTHOOK", flush=True), previous(*a))
import site
print("SITE", "sitecustomize" in sys.modules, sys.modules["sitecustomize"].__file__, flush=True)
raise RuntimeError("end")
""",
    )
    path = os.pathsep.join([job.environment["PYTHONPATH"], str(job.folder)])
    process = job.start(hooked, PYTHONPATH=path)
    text = output(process)
    assert "USER SITE" in text and "USER EXCEPTHOOK" in text and "RuntimeError: end" in text
    assert str(job.folder / "sitecustomize.py") in text
    assert process.returncode == 1
    assert list((job.run.path / "crashes").glob("*.json"))


def test_python_breakpoint_zero_is_respected(job):
    assert "RESULT" in output(job.start(job.write("train.py", STEPS), PYTHONBREAKPOINT="0"))


def test_a_continue_amid_the_end_of_a_session_is_not_lost(job):
    rounds = 8
    process = job.start(
        job.write("train.py", f"def step(i):\n    breakpoint()\nfor i in range({rounds}):\n    step(i)\nprint('ALL')\n")
    )
    for i in range(0, rounds, 2):
        # WHEN a client lets it go and leaves, so that its session ends while the next stop is on its way
        job.wait_stopped()
        with BrokerClient(job.run.path) as leaving:
            leaving.request("attach", who="train", stop=True)
            shown = {"expression": "i", "frameId": "stopped", "context": "watch"}
            assert leaving.request("dap", who="train", command="evaluate", arguments=shown)["result"] == str(i)
            leaving.request("resume", who="train", how="continue", wait_s=0)
        # THEN the next continue finds that stop, in whichever session it comes
        until(lambda: job.ps()[0]["state"] == "stopped", "the next stop")
        (answer,) = job.client.request("continue", who="all")["processes"]
        assert answer["ok"], answer
    assert "ALL" in output(process)


def test_a_breakpoint_as_the_last_statement_still_shows_its_function(job):
    script = job.write(
        "last.py",
        """
def work(n):
    inside = n * 2
    breakpoint()
def outer():
    work(21)
    after = "outer"
    return after
outer()
breakpoint()
""",
    )
    process = job.start(script)
    (stopped,) = job.wait_stopped()
    assert (stopped["function"], stopped["line"]) == ("work", 4)
    # As in pdb, the function is shown once more when it returns.
    text = job.rldbg("attach", "last", "-c", "p inside", "-c", "w", "-c", "n", "-c", "n", "-c", "c").stdout
    assert "\n42\n" in text and "after =" in text and "/agent/" not in text
    (stopped,) = job.wait_stopped()
    assert (stopped["function"], stopped["line"]) == ("<module>", 10)
    job.client.request("continue", who="all")
    output(process)
    assert process.returncode == 0


def test_a_script_speaks_to_the_others_too(job):
    job.ranks(job.write("train.py", STEPS), 2)
    job.wait_stopped(2)
    lines = ("all p loss", "ranks", "ranks train/1", "p rank", "interact", "loss + 1", "exit", "p nope")
    done = job.rldbg("attach", "train/0", *(word for line in lines for word in ("-c", line)), check=False)
    assert done.returncode == 1 and "*** NameError" in done.stdout and "still stopped: train/0, train/1" in done.stderr
    assert "  train/0: 0.0\n  train/1: 0.5\n" in done.stdout and "\n1\nPython in this frame" in done.stdout
    body = json.loads(job.rldbg("attach", "train/0", "-c", "all p loss", "-c", "ranks", "--json").stdout)
    assert [(a["who"], a["value"]) for a in body["answers"] if a["command"] == "all p loss"] == [
        ("train/0", 0.0),
        ("train/1", 0.5),
    ]
    # A stopped thread is shown where the user's code is, not where the debugger waits.
    (group,) = json.loads(job.rldbg("stacks", "--json").stdout)["groups"]
    assert group["who"] == ["train/0", "train/1"] and group["frames"][0]["function"] == "step"
    job.client.request("continue", who="all")


def test_breakpoints_that_cannot_be_meant_are_refused_or_doubted(job):
    script = job.write("train.py", STEPS)
    job.start(script)
    job.wait_stopped()

    def said(*arguments):
        done = job.rldbg("break", *arguments, check=False)
        return done.returncode, done.stdout + done.stderr

    assert said(f"{script}:4", "--if", "loss ===")[0] == 2
    total = len(script.read_text().splitlines())
    code, text = said(f"{script}:2000")
    assert code == 2 and f"train.py has no line 2000: it has {total} lines; its last line with code is" in text
    assert said(f"{script}:0")[0] == 2 and said(f"{script.parent}:3")[0] == 2
    assert said(f"{script}:4", "--log", "loss {loss")[0] == 2
    # Nothing of what was refused is set.
    assert not job.client.request("break_list")["breaks"]
    code, text = said("nowhere.py:3")
    assert code == 1 and "no file" in text
    # Here it does not exist; the process takes its own of that name.
    code, text = said("/nowhere/train.py:4")
    assert code == 1 and f"no file /nowhere/train.py here: it is set in {script}" in text
    assert said("--clear", "2")[0] == 0
    script.write_text(script.read_text() + "\n# the end\n")
    code, text = said(f"{script}:{total + 2}")
    assert code == 1 and f"line {total + 2} has no code: processes stop at line" in text
    assert said("--on-exception")[0] == 0
    # A slip in the numbers clears nothing.
    assert said("--clear", "x")[0] == 2 and said("--clear", "99")[0] == 2
    assert len(json.loads(job.rldbg("break", "--list", "--json").stdout)["breaks"]) == 3
    assert "cleared: 1, 3, 4" in said("--clear")[1]
    done = job.rldbg("pause", "all", check=False)
    assert done.returncode == 4 and "matches no running process" in done.stderr


def test_what_is_left_of_a_run_that_has_ended_is_named(job):
    output(job.start(job.write("fails.py", "raise ValueError('last words')")))
    until(lambda: list((job.run.path / "crashes").glob("*.json")), "the crash file")
    job.rldbg("broker", "stop")
    done = job.rldbg("ps", check=False)
    assert done.returncode == 5 and "rldbg attach " in done.stderr and "/crashes/" in done.stderr
    assert "no such folder" in rldbg("ps", run=job.folder / "none", check=False).stderr
    assert "no such crash file" in rldbg("attach", "none.json", check=False).stderr


def test_one_line_is_enough_without_a_launcher(job):
    script = job.write("plain.py", "import rldbg.auto\nhere = 7\nbreakpoint()\nprint('DONE', flush=True)\n")
    # Neither PYTHONPATH nor hooks: only the name of the run.
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("RLDBG_", "PYTHONPATH"))}
    process = subprocess.Popen(
        [sys.executable, str(script)],
        env=bare | {"RLDBG_RUN": str(job.run.path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    job.processes.append(process)
    job.wait_stopped()
    assert "\n7\n" in job.rldbg("attach", "plain", "-c", "p here", "-c", "c").stdout
    assert "DONE" in output(process)


SLOW_LINE = """
import pathlib, time
def takes_long():
    while not pathlib.Path("go").exists(): time.sleep(0.01)
def work():
    breakpoint()
    takes_long()
    done = True
    return done
work()
"""


def _stopped_line(job):
    """Where the only process stands, once a client has seen it there."""
    job.wait_stopped()
    line = job.client.request("attach", who="all")["line"]
    job.client.request("detach", who="all")
    return line


@pytest.mark.parametrize("killed", [False, True])
def test_a_step_goes_to_its_end_although_its_client_has_left(job, killed):
    job.start(job.write("slow.py", SLOW_LINE))
    line = _stopped_line(job)
    # WHEN a client asks for a step over a line that takes longer than the client stays
    arguments = [sys.executable, "-m", "rldbg", "attach", "slow", "--run", str(job.run.path), "-c", "n"]
    if killed:
        client = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        until(lambda: job.ps()[0]["state"] == "running", "the step")
        client.kill()
        client.wait()
    else:
        subprocess.run([*arguments, "--wait", "1"], stdin=subprocess.DEVNULL, check=True, capture_output=True)
    # THEN the rank stops at the end of the step, for the next client
    assert job.ps()[0]["state"] == "running"
    (job.folder / "go").touch()
    until(lambda: job.ps()[0]["state"] == "stopped", "the end of the step")
    assert job.ps()[0]["line"] == line + 1
    job.client.request("continue", who="all")


def test_a_jump_that_is_refused_leaves_the_rank_stopped(job):
    job.start(job.write("train.py", STEPS))
    before = _stopped_line(job)
    done = job.rldbg("attach", "train", "-c", "j 9999", "-c", "p 1 + 1", check=False)
    assert done.returncode == 1 and "2" in done.stdout.splitlines()
    assert (job.ps()[0]["state"], job.ps()[0]["line"]) == ("stopped", before)
    job.client.request("continue", who="all")


def test_what_raises_at_the_prompt_answers_at_once_and_ends_nothing(job):
    # GIVEN one rank at a breakpoint and one at an exception
    process = job.start(job.write("stopped.py", "step = 7\nbreakpoint()\nprint('WENT ON')\n"))
    failed = job.start(job.write("failed.py", "step = 7\nraise ValueError('bad loss')\n"), RLDBG_POST_MORTEM=60)
    job.wait_stopped(2)
    raising = ["import sys; sys.exit(3)", "raise SystemExit", "raise GeneratorExit('no')", "p exit()", "p 1 +", "x = ("]
    for line in raising:
        begin = time.monotonic()
        done = job.rldbg("cast", "all", line, check=False)
        # THEN each says what was raised, long before an evaluation is given up
        assert done.returncode == 1 and ("Error" in done.stdout or "Exit" in done.stdout), (line, done.stdout)
        assert time.monotonic() - begin < 20, line
    # AND `exit()` leaves the prompt
    assert "7" in job.rldbg("attach", "stopped", "-c", "p step", "-c", "exit()", "-c", "p 1 / 0").stdout
    assert {each["state"] for each in job.ps()} == {"stopped"}
    job.client.request("continue", who="all")
    assert "WENT ON" in output(process) and process.returncode == 0
    assert "ValueError: bad loss" in output(failed) and failed.returncode == 1


def test_a_command_that_makes_no_sense_changes_nothing(job):
    process = job.start(job.write("stopped.py", "n = 7\nbreakpoint()\nn = 8\nprint('WENT ON')\n"))
    until(lambda: [each["line"] for each in job.stopped()] == [3], "the stop")
    job.client.request("break_set", file=str(job.folder / "stopped.py"), line=4)
    refused = ["n + 1", "c please", "unt x", "unt 1", "cl all", "u far", "f -1", "d 1.5", "s 3", "j x"]
    for line in refused:
        done = job.rldbg("attach", "stopped", "-c", line, check=False)
        assert done.returncode == 1 and "***" in done.stdout, line
    # AND so is what is not text, or too deep for Python's parser
    lines = [b"\xff\xfe", b"p '\xff'", b"a\0b", b"1" + b"+1" * 20_000, b"(" * 300, b"p n"]
    command = [sys.executable, "-m", "rldbg", "attach", "stopped", "--run", str(job.run.path)]
    done = subprocess.run(command, input=b"\n".join(lines), capture_output=True, timeout=60, check=False)
    assert done.returncode == 1 and done.stdout.count(b"***") == 5 and b"\n7\n" in done.stdout, done
    (after,) = job.ps()
    assert (after["state"], after["line"]) == ("stopped", 3)
    assert len(job.client.request("break_list")["breaks"]) == 1
    job.client.request("break_clear")
    job.client.request("continue", who="all")
    assert "WENT ON" in output(process)


def test_a_condition_that_exits_ends_nothing_and_is_reported(job):
    process = job.start(job.write("loop.py", LOOP))
    until(lambda: any(each["who"] == "loop" for each in job.ps()), "the agent")
    job.client.request("break_set", file=str(job.folder / "loop.py"), line=4, **{"if": "exit()"})
    (listed,) = until(
        lambda: [each for each in job.client.request("break_list")["breaks"] if each["condition_fails"]], "the error"
    )
    assert "SystemExit" in str(listed["condition_fails"]) and process.poll() is None
    assert [each["state"] for each in job.ps()] == ["running"]
    job.client.request("break_clear")
