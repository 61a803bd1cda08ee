"""A report of nsys is there when whoever writes it has closed it."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from rldbg.agent.profiling.nsys_supervisor import Supervisor, written_report
from rldbg.agent.profiling.plan import Plan
from rldbg.agent.profiling.status_file import read_status_files
from rldbg.profiling.collection import make_manifest

WRITER = """
import sys, time
with open(sys.argv[1], "wb", buffering=0) as report:
    print("begun", flush=True)
    time.sleep(1)
    report.write(b"half")
    time.sleep(1)
    report.write(b"half")
"""


def test_a_report_is_taken_when_it_is_closed_not_when_it_exists(tmp_path):
    path = tmp_path / "loop.nsys-rep"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout.readline() == "begun\n"
        assert written_report(path, 60) == path
        assert path.read_bytes() == b"halfhalf"


def test_an_empty_report_is_none(tmp_path):
    (tmp_path / "loop.nsys-rep").touch()
    assert written_report(tmp_path / "loop.nsys-rep", 0.5) is None
    assert written_report(tmp_path / "missing.nsys-rep", 0.5) is None


NSYS = """
import json, os, sys, time
under = json.loads(os.environ["RLDBG_UNDER_NSYS"])
def note(**facts):
    with open(under["notes"] + ".new", "w") as notes:
        json.dump({"pid": os.getpid(), **facts}, notes)
    os.replace(under["notes"] + ".new", under["notes"])
note(state="recording")
time.sleep(0.6)
note(state="done", files=[])
time.sleep(1.5)
with open(under["output"].replace("%p", str(os.getpid())) + ".nsys-rep", "wb") as report:
    report.write(b"report")
"""


def test_a_profile_is_done_when_its_report_is_written_not_when_the_worker_has_left_the_window(tmp_path):
    """What the worker says of itself is early: nsys goes on importing what it has collected."""
    (tmp_path / "nsys").write_text(f"#!{sys.executable}\n{NSYS}")
    (tmp_path / "nsys").chmod(0o755)
    plan = Plan("nsys", ("loop",), str(tmp_path), str(tmp_path / "state"), steps=(2, 4))
    job = {"worker": "loop\tloop", "nsys": str(tmp_path / "nsys"), "program": ["python", "loop.py"]}
    with ThreadPoolExecutor() as pool:
        supervised = pool.submit(Supervisor(plan, job, os.open(os.devnull, os.O_WRONLY)).run)
        said = set()
        while not supervised.done():
            said |= {(status["state"], len(status["files"])) for status in read_status_files(tmp_path / "state")}
            time.sleep(0.01)
        supervised.result()
    assert ("done", 0) not in said
    assert {("recording", 0), ("finishing", 0)} <= said
    (entry,) = make_manifest(plan, []).profiles
    assert entry["files"][0]["size_bytes"] == len("report")
