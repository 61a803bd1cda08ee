"""Waits in native code and in the kernel, from what py-spy and /proc really say."""

import json
import struct
import subprocess
import sys
import time

import pytest

from rldbg.agent.waits import look, mark_moved
from rldbg.agent.waits.calls.looking import Looking
from rldbg.agent.waits.calls.native_calls import native_wait
from rldbg.agent.waits.calls.system_calls import kernel_wait
from rldbg.agent.waits.code.source import Sources
from rldbg.agent.waits.processes import kernel_threads
from rldbg.agent.waits.reading.chosen import without_inherited_ranks
from rldbg.agent.waits.reading.spied import spied_threads
from rldbg.live import explain

TORCH = "/venv/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so"
USER = ("step", "/home/me/train.py", 40)
# As `py-spy dump --native --json` writes them, innermost first; libraries without debug information have no lines.
STACKS = {
    "cudaStreamSynchronize": [
        ("0x7f11a2b3c4d5", "/usr/lib/x86_64-linux-gnu/libcuda.so.570.86.10", 0),
        ("cuStreamSynchronize", "/usr/lib/x86_64-linux-gnu/libcuda.so.570.86.10", 0),
        ("cudaStreamSynchronize", "/venv/lib/python3.11/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12", 0),
        ("at::native::_local_scalar_dense_cuda", TORCH, 0),
        USER,
    ],
    "libcuda.so.570.86.10": [
        ("0x7f11a2b3c4d5", "/usr/lib/x86_64-linux-gnu/libcuda.so.570.86.10", 0),
        ("at::native::copy_kernel_cuda", TORCH, 0),
        USER,
    ],
    "ncclCommInitRankConfig": [
        ("__poll", "/usr/lib/x86_64-linux-gnu/libc.so.6", 0),
        ("ncclCommInitRankConfig", "/venv/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2", 0),
        USER,
    ],
    None: [("0x7f0", TORCH, 0), ("at::native::sum", TORCH, 0), USER],
}


def _spied(frames, tmp_path):
    """Through a program that prints what py-spy would."""
    rows = [
        {"name": name, "filename": file, "module": file, "line": line, "locals": None} for name, file, line in frames
    ]
    document = [{"pid": 7, "thread_id": 1, "thread_name": None, "os_thread_id": 7, "active": True, "frames": rows}]
    (tmp_path / "dump.json").write_text(json.dumps(document))
    tool = tmp_path / "py-spy"
    tool.write_text(f"#!/bin/sh\nexec cat {tmp_path}/dump.json\n")
    tool.chmod(0o755)
    (thread,) = spied_threads(7, str(tool), native=True)
    return thread.frames


@pytest.mark.parametrize("call", STACKS)
def test_a_call_that_waits_is_known_by_its_name_or_library(call, tmp_path):
    found = native_wait(_spied(STACKS[call], tmp_path))
    assert (found or {}).get("call") == call
    assert found is None or found["kind"] == ("rendezvous" if "nccl" in call else "cuda")


def test_what_lies_beyond_the_innermost_python_frame_does_not_count(tmp_path):
    outer = [USER, *STACKS["cudaStreamSynchronize"]]
    assert native_wait(_spied(outer, tmp_path)) is None


def test_when_a_sleep_ends_is_read_where_its_line_is_not_known(monkeypatch):
    proc = {
        "stat": "7 (python3) S 1 7 7 0 -1 4194304 100 0 0 0 250 30 0 0 20 0 4 0 1 1 1",
        "syscall": "115 0x1 0x1 0x2000 0x0 0x1 0x0 0x0 0x0",
    }
    ends = time.clock_gettime(1) + 30
    monkeypatch.setattr(kernel_threads, "read_text", lambda path: proc.get(path.rpartition("/")[2], ""))
    monkeypatch.setattr(kernel_threads, "_NAMES", {115: "clock_nanosleep"})
    monkeypatch.setattr(kernel_threads, "_memory", lambda *_: struct.pack("<qq", int(ends), 0))
    wait = kernel_wait(Looking([], kernel_threads.thread_facts(7, 7), Sources(7), lambda _: ""))
    assert wait["kind"] == "sleep" and 20 < wait["delay_s"] <= 30
    # AND a sleep of which only the length is given may have begun long ago
    proc["syscall"] = proc["syscall"].replace("0x1 0x1", "0x1 0x0", 1)
    assert "left_s" not in kernel_threads.thread_facts(7, 7)


@pytest.mark.parametrize(
    ("call", "target", "words"),
    [
        ("63 0x5 0x7f 0x1000 0x0 0x0 0x0 0x0 0x0", "/mnt/models/w.safetensors", "(/mnt/models/w.safetensors)"),
        ("29 0x5 0x7f 0x1000 0x0 0x0 0x0 0x0 0x0", "/dev/nvidia0", "for the driver of /dev/nvidia0"),
        ("running", "", "for the kernel (folio_wait_bit)"),
    ],
)
def test_a_thread_in_uninterruptible_sleep_is_told_as_such(monkeypatch, call, target, words):
    proc = {
        "stat": "7 (python3 (worker)) D 1 7 7 0 -1 4194304 100 0 0 0 250 30 0 0 20 0 4 0 1 1 1",
        "wchan": "folio_wait_bit",
        "syscall": call,
    }
    monkeypatch.setattr(kernel_threads, "read_text", lambda path: proc.get(path.rpartition("/")[2], ""))
    monkeypatch.setattr(kernel_threads, "_NAMES", {63: "read", 29: "ioctl"})
    monkeypatch.setattr(kernel_threads, "file_facts", lambda *_: {"descriptor": 5, "kind": "file", "path": target})
    facts = kernel_threads.thread_facts(7, 7)
    assert facts["state"] == "disk" and facts["cpu"] == 280
    wait = kernel_wait(Looking([], facts, Sources(7), lambda _: ""))
    thread = {"thread": "MainThread", "ident": 1, "native": 7, "main": True, "background": False, "frames": []}
    thread |= {"kernel": facts, "wait": wait, "holds": [], "place": {"file": "load.py", "line": 3, "function": "load"}}
    process = {"who": "train", "role": "train", "rank": None, "state": "running", "host": "h", "pid": 7}
    (found,) = explain([process | {"threads": [thread], "tasks": [], "ended": [], "children": []}])
    assert words in found.verdict and "state D" in found.verdict and "SIGKILL" in found.verdict


def test_a_wait_for_a_gpu_is_no_computation_though_it_takes_processor_time():
    def thread(cpu, kind):
        return {"threads": [{"native": 7, "kernel": {"cpu": cpu}, "frames": [], "wait": {"kind": kind}}]}

    kinds = [
        mark_moved(thread(0, kind), thread(1000, kind), 1.0)["threads"][0]["wait"]["kind"] for kind in ("cuda", "lock")
    ]
    assert kinds == ["cuda", "computing"]


def test_the_share_of_processor_time_counts_from_when_a_busy_machine_looked_last():
    def seen(cpu, at_s):
        thread = {"native": 7, "kernel": {"cpu": cpu}, "frames": [], "wait": {"kind": "lock"}}
        return {"threads": [thread], "seen_s": at_s}

    for apart_s, kind in ((1.0, "computing"), (20.0, "lock")):
        (thread,) = mark_moved(seen(0, 5.0), seen(80, 5.0 + apart_s), 1.0)["threads"]
        assert thread["wait"]["kind"] == kind and not thread.get("moved")


def test_native_frames_do_not_make_a_thread_look_as_if_it_moved():
    code = "import time; print(flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        try:
            (entry,) = look([child.pid], native=True, apart_s=0.05, children=False)
        finally:
            child.kill()
    main = entry["threads"][0]
    assert main["wait"]["kind"] == "sleep" and not main.get("moved"), entry


def test_who_waits_for_another_task_of_ray_than_before_goes_on():
    def seen(*tasks):
        wait = {"kind": "queue_get", "between": "ray", "tasks": list(tasks)}
        return {"threads": [{"native": 7, "kernel": {}, "frames": [], "wait": wait}]}

    moved = [mark_moved(seen("a"), after, 1.0)["threads"][0].get("moved") for after in (seen("a"), seen("b"), seen())]
    assert moved == [None, True, None]


def test_a_loop_that_asks_ray_and_sleeps_is_polling_wherever_it_is_seen():
    def seen(line, wait):
        place = {"file": "/x/job.py", "line": line, "function": "connect"}
        return {"threads": [{"native": 7, "kernel": {}, "frames": [place], "place": place, "wait": wait}]}

    looks = [
        (38, {"kind": "sleep", "polls": "while `address is None`"}),
        (37, {"kind": "ray_get", "tasks": ["a"], "asked_in": "while `address is None`"}),
    ]
    for first, then in (looks, looks[::-1]):
        (thread,) = mark_moved(seen(*first), seen(*then), 1.0)["threads"]
        assert thread["wait"]["polls"] and thread["place"]["line"] == 38 and not thread.get("moved")
    # AND where it looks for the next thing it goes on
    later = seen(37, {"kind": "ray_get", "tasks": ["b"], "asked_in": "while `step < 9` (step = 4)"})
    before = seen(38, {"kind": "sleep", "polls": "while `step < 9` (step = 3)"})
    (thread,) = mark_moved(before, later, 1.0)["threads"]
    assert thread["wait"]["kind"] == "ray_get"


FILLED = """
import queue, threading, time
filled, empty = queue.Queue(), queue.Queue()
def fill():
    while True:
        filled.put(1)
        time.sleep(0.01)
threading.Thread(target=fill, daemon=True).start()
threading.Thread(target=lambda: print(empty.get()), name="stuck", daemon=True).start()
print(flush=True)
while True:
    filled.get()
"""


def test_who_gets_what_it_waits_for_again_and_again_goes_on(tmp_path):
    (tmp_path / "job.py").write_text(FILLED)
    with subprocess.Popen([sys.executable, tmp_path / "job.py"], stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        try:
            # Until it is seen where it waits, not where it puts an item away, and has got an item between two looks: it
            # may get none for a while on a busy machine.
            for _ in range(100):
                (entry,) = look([child.pid], apart_s=0.2, children=False)
                threads = {thread["thread"]: thread for thread in entry["threads"]}
                main, stuck = threads["MainThread"], threads["stuck"]
                if main["wait"]["kind"] == stuck["wait"]["kind"] == "queue_get" and main.get("moved"):
                    break
        finally:
            child.kill()
    assert main.get("moved") and not stuck.get("moved"), entry


def test_a_helper_of_a_rank_is_not_that_rank():
    def process(pid, parent, rank):
        return {"pid": pid, "parent": parent, "rank": rank, "role": "train", "who": f"train/{rank}"}

    found = without_inherited_ranks([process(1, 0, 0), process(2, 1, 0), process(3, 2, 0), process(4, 1, 1)])
    assert [(entry["rank"], entry["who"]) for entry in found] == [
        (0, "train/0"),
        (None, "train.child@2"),
        (None, "train.child@3"),
        (1, "train/1"),
    ]
