"""While it runs: processes without an agent are named with the reason, breakpoints never reached are a finding."""

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from command_line import RLDBG, clean_environment
from live_job import until

from rldbg.live import BrokerClient

PROGRAM = """\
import subprocess, sys, time
# A worker whose interpreter ignores PYTHONPATH lives until the launcher has named it, which the launcher's log tells.
worker = subprocess.Popen([sys.executable, "-I", "-c", "import time; time.sleep(600)"])
deadline = time.monotonic() + 90
while time.monotonic() < deadline and "disables the start-up hook" not in open(sys.argv[1]).read():
    time.sleep(0.2)
worker.kill()
worker.wait()


def never():
    return 1
"""

# The line runs in the first moment of each process: started, forked, and of multiprocessing.
AT_ONCE = """\
if __name__ != "x": reached = True
import multiprocessing, os, subprocess, sys
if __name__ == "__main__" and len(sys.argv) == 1:
    subprocess.run([sys.executable, __file__, "child"], check=True)
    child = multiprocessing.get_context("spawn").Process(target=print)
    child.start()
    child.join()
    # The child that forks for it must not wait for breakpoints: another program takes its place.
    subprocess.run(["true"], check=True, preexec_fn=os.getpid)
    if not (forked := os.fork()):
        exec(compile(open(__file__).read().splitlines()[0], __file__, "exec"))
        os._exit(0)
    os.waitpid(forked, 0)
"""

# Nothing that it prints is seen, as that of Ray's workers with log_to_driver=False. It ends when the launcher has said
# what became of both exceptions.
SILENT = """\
import os, sys, threading, time
sys.stderr = open(os.devnull, "w")
def fail():
    raise ValueError("bad batch")
for said in ("is held for up to 2 s", "is not held"):
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and said not in open(sys.argv[1]).read():
        time.sleep(0.1)
"""
FILLING = """\
import os, sys, time
def body(i):
    return i * 2
with open(sys.argv[1], "wb", buffering=0) as file:
    while True:
        try:
            file.write(bytes(4096))
        except OSError:
            break
i = 0
while not os.path.exists("stop"):
    body(i)
    i += 1
    time.sleep(0.05)
sys.exit(3)
"""


def _run(folder: Path, said: Path, *words: str) -> subprocess.Popen:
    with said.open("w") as log:
        return subprocess.Popen(
            [*RLDBG, "run", *words],
            cwd=folder,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def test_unreached_worker_and_unreached_breakpoint(tmp_path: Path):
    (tmp_path / "train.py").write_text(PROGRAM)
    never = PROGRAM.splitlines().index("    return 1") + 1
    said = tmp_path / "said"
    place = f"{tmp_path}/train.py:{never}"
    code = _run(tmp_path, said, "--break", place, "--", "python", "train.py", str(said)).wait(150)

    text = said.read_text()
    assert code == 0, text
    assert "was started with -I, which disables the start-up hook" in text
    assert "launch.breakpoint-never-reached" in text


def _stops(folder: Path, said: Path, line: int, most: int) -> int:
    """How many processes of the job stop at the breakpoint, at most so many; each is told to go on."""
    run = folder / "run"
    job = _run(folder, said, "--run", str(run), "--break", f"train.py:{line}", "--", "python", "train.py")
    until((run / "broker.json").exists, "the broker")
    stopped = set()
    with BrokerClient(run) as client:
        while job.poll() is None and len(stopped) < most:
            for process in client.request("ps", all=True)["processes"]:
                if process["state"] == "stopped" and process["pid"] not in stopped:
                    stopped.add(process["pid"])
                    client.request("continue", which=f"@{process['pid']}")
    assert job.wait(60) == 0, said.read_text()
    assert "launch.breakpoint-never-reached" not in said.read_text()
    return len(stopped)


def test_a_breakpoint_is_set_before_the_first_line_runs(tmp_path: Path):
    (tmp_path / "train.py").write_text(AT_ONCE)
    assert _stops(tmp_path, tmp_path / "said", 1, most=4) == 4


def test_a_breakpoint_that_was_cleared_stays_cleared_when_the_broker_is_replaced(tmp_path: Path):
    """Others keep their numbers, and the number of the cleared one is not given again."""
    (tmp_path / "train.py").write_text(
        "reached = 1\nimport pathlib, time\nwhile not pathlib.Path('end').exists():\n    "
        "time.sleep(0.1)\n    step = 2\nprint('done')\n"
    )
    said, run = tmp_path / "said", tmp_path / "run"
    job = _run(
        tmp_path, said, "--run", str(run), "--break", "train.py:1", "--break", "train.py:5", "--", "python", "train.py"
    )
    until((run / "broker.json").exists, "the broker")
    with BrokerClient(run) as client:
        until(lambda: any(each["line"] == 1 for each in client.request("ps")["processes"]), "the stop")
        numbers = {each["line"]: each["id"] for each in client.request("break_list")["breaks"]}
        client.request("break_clear", ids=[numbers[5]])
        broker = json.loads((run / "broker.json").read_text())["pid"]
        os.kill(broker, signal.SIGKILL)
    until(lambda: "the broker was killed and was restarted" in said.read_text(), "the next broker")
    with BrokerClient(run) as client:
        assert {each["line"]: each["id"] for each in client.request("break_list")["breaks"]} == {1: numbers[1]}
        assert client.request("break_set", file=str(tmp_path / "train.py"), line=6)["id"] == 3
        client.request("break_clear")
        client.request("continue", who="all")
        (tmp_path / "end").touch()
    assert job.wait(60) == 0, said.read_text()


def test_a_line_without_code_is_said_and_the_stop_nearby_counts(tmp_path: Path):
    """The next line with code is meant, the one before only where none follows."""
    (tmp_path / "train.py").write_text("one = 1\n# here\ntwo = 2\n# the end\n")
    assert _stops(tmp_path, tmp_path / "said", 2, most=1) == 1
    assert "train.py:2: line 2 has no code: processes stop at line 3\n" in (tmp_path / "said").read_text()


def test_a_line_that_the_file_does_not_have_is_refused_before_anything_starts(tmp_path: Path):
    (tmp_path / "train.py").write_text("open('started', 'w')\ntwo = 2\n# the end\n")
    for place, reason in (
        ("train.py:90", "train.py has no line 90: it has 3 lines; its last line with code is 2"),
        ("train.py:0", "expected FILE:LINE"),
        (f"{tmp_path}:3", "is a folder"),
    ):
        said = tmp_path / "said"
        job = _run(tmp_path, said, "--run", str(tmp_path / "run"), "--break", place, "--", "python", "train.py")
        assert job.wait(60) == 2 and reason in said.read_text(), said.read_text()
    assert not (tmp_path / "started").exists() and not (tmp_path / "run").exists()


def test_the_launcher_says_how_long_an_exception_is_held(tmp_path: Path):
    (tmp_path / "train.py").write_text(SILENT)
    said = tmp_path / "said"
    assert _run(tmp_path, said, "--wait", "2", "--", "python", "train.py", str(said)).wait(200) == 0
    assert "is held for up to 2 s; all exceptions of this run share 2 s" in said.read_text()
    assert "is not held: " in said.read_text()


@pytest.fixture
def small_disk(tmp_path: Path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_run_on_a_full_disk_says_so(tmp_path: Path, small_disk: Path):
    (small_disk / "run" / "logs").mkdir(parents=True)
    with contextlib.suppress(OSError), open(small_disk / "fill", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    said = tmp_path / "said"
    assert _run(tmp_path, said, "--run", str(small_disk / "run"), "--", "python", "-c", "1").wait(200) == 3
    assert "no space is left on the disk" in said.read_text() and "--run DIR" in said.read_text()


def test_a_full_disk_costs_files_and_no_session(tmp_path: Path, small_disk: Path):
    (tmp_path / "train.py").write_text(FILLING)
    run, said, line = small_disk / "run", tmp_path / "said", FILLING.splitlines().index("    return i * 2") + 1
    job = _run(tmp_path, said, "--no-doctor", "--run", str(run), "--", "python", "train.py", str(small_disk / "fill"))
    try:
        until(lambda: (small_disk / "fill").exists() and os.statvfs(small_disk).f_bavail == 0, "a full disk")
        with BrokerClient(run) as client:
            # WHEN a breakpoint is set, hit and stepped from THEN all of it works
            client.request("break_set", file=str(tmp_path / "train.py"), line=line)
            (stopped,) = until(
                lambda: [p for p in client.request("ps")["processes"] if p["state"] == "stopped"], "a stop"
            )
            assert client.request("resume", who=stopped["who"], how="next", wait_s=30)["state"] == "stopped"
            assert client.request("break_list")["breaks"][0]["hits"]
            client.request("break_clear")
            client.request("continue", who="all")
        until(lambda: "breakpoints.json could not be written (No space left" in said.read_text(), "the launcher's word")
        (tmp_path / "stop").touch()
        # AND the run ends with the command's own exit code
        assert job.wait(60) == 3
    finally:
        job.kill()
        job.wait()
    assert "how the run ended could not be written" in said.read_text()
