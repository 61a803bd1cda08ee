"""Profiles of plain processes: every tool, ranks, ends, running jobs, and clocks that are wrong."""

import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import nullcontext
from itertools import permutations
from pathlib import Path

import pytest
from client_environments import environment_with
from profile_jobs import LOOP, RLDBG, environment, manifest, profile, short_folder, started

from rldbg.agent.profiling import HookedFunction
from rldbg.frameworks import all_hooks

TORCH_LOOP = """\
import os, sys, time
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(int(sys.argv[1])):
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    print("step", number + 1, flush=True)
    time.sleep(0.02)
"""
STOPS = """\
import rldbg
print("begun", flush=True)
for number in range(1, 4):
    rldbg.step(number)
    with rldbg.phase("reward"):
        if number == 2:
            breakpoint()
"""
# Shifts the wall clock of a process by 300 ms, below Python.
SKEW = """\
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(clock, now);
    if (clock == CLOCK_REALTIME) {
        now->tv_nsec += 300000000;
        if (now->tv_nsec >= 1000000000) { now->tv_nsec -= 1000000000; now->tv_sec += 1; }
    }
    return status;
}
"""
# Two processes that leave a barrier made of a pipe at the same moment.
TWINS = """\
import os, subprocess, sys, time
import rldbg
if len(sys.argv) == 1:
    skewed = dict(os.environ, LD_PRELOAD=os.environ["SKEW"], RLDBG_ROLE="skewed")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    twin = subprocess.Popen([sys.executable, "twins.py", "twin"], env=skewed, **pipes)
    say = lambda: (twin.stdin.write(b"x"), twin.stdin.flush())
    wait = lambda: twin.stdout.read(1)
else:
    say = lambda: (sys.stdout.write("x"), sys.stdout.flush())
    wait = lambda: sys.stdin.read(1)
for number in range(1, 6):
    rldbg.step(number)
    say(); wait()
    with rldbg.phase("together"):
        time.sleep(0.02)
"""


def test_py_spy_and_memory_of_a_window(tmp_path):
    # As Ray's workers do, which py-spy must not inherit.
    blocked = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})\n"
    (tmp_path / "loop.py").write_text(blocked + LOOP)
    spied = profile(
        tmp_path,
        "--workers",
        "lo*",
        "--steps",
        "5:30",
        "--tool",
        "pyspy",
        "--run",
        "one",
        "--",
        "python",
        "loop.py",
        "32",
    )
    assert spied.returncode == 0, spied.stderr
    (entry,) = manifest(tmp_path / "one" / "profiles")["profiles"]
    names = {Path(file["path"]).name.partition(".")[2] for file in entry["files"]}
    assert names == {"speedscope.json", "flamegraph.svg", "pyspy.json"}
    merged = profile(tmp_path, "timeline", "one", "-o", "trace.json")
    assert merged.returncode == 0, merged.stderr
    found = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert any(event.get("cat") == "py-spy" and "loop.py" in event["name"] for event in found)
    remembered = profile(
        tmp_path,
        "--workers",
        "loop",
        "--steps",
        "2:4",
        "--tool",
        "memory",
        "--run",
        "two",
        "--",
        "python",
        "loop.py",
        "5",
    )
    assert remembered.returncode == 0, remembered.stderr
    (entry,) = manifest(tmp_path / "two" / "profiles")["profiles"]
    assert Path(entry["files"][0]["path"]).suffix in (".json", ".bin")


def test_memray_where_it_is_installed(tmp_path):
    python = environment_with("memray", ("memray==1.20.0",), beside_ours=True)
    (tmp_path / "loop.py").write_text(LOOP)
    window = ("--workers", "loop", "--steps", "2:4", "--tool", "memory", "--run", "run")
    done = profile(tmp_path, *window, "--", str(python), "loop.py", "5")
    assert done.returncode == 0, done.stderr
    (entry,) = manifest(tmp_path / "run" / "profiles")["profiles"]
    (file,) = entry["files"]
    assert file["path"].endswith(".memray.bin"), done.stderr
    code = "import memray, sys; print(memray.FileReader(sys.argv[1]).metadata.total_allocations)"
    read = subprocess.run([python, "-c", code, file["path"]], capture_output=True, text=True, check=True)
    assert int(read.stdout) > 0


def test_a_stop_at_a_breakpoint_is_a_pause_on_the_timeline(tmp_path):
    (tmp_path / "stops.py").write_text(STOPS)
    job = started(tmp_path, "profile", "--tool", "phases", "--run", "run", "--", "python", "stops.py")
    try:
        assert job.stdout is not None and job.stdout.readline() == "begun\n"
        ask = [*RLDBG, "continue", "all", "--run", "run"]
        deadline = time.monotonic() + 120
        while job.poll() is None and time.monotonic() < deadline:
            # Until it stands at its breakpoint there is nothing to continue.
            subprocess.run(ask, cwd=tmp_path, env=environment(short_folder(tmp_path)), capture_output=True)
        assert job.wait(60) == 0
    finally:
        job.kill()
        job.communicate()
    profile(tmp_path, "timeline", "run", "-o", "trace.json")
    found = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    (pause,) = [event for event in found if event.get("cat") == "pause"]
    (around,) = [event for event in found if event["name"] == "reward" and event["args"]["step"] == 2]
    assert around["ts"] <= pause["ts"] and pause["dur"] <= around["dur"]


def test_torchrun_ranks_by_optimizer_steps(tmp_path):
    """Two ranks, one of them meant; what a rank prints and returns is as without us."""
    (tmp_path / "train.py").write_text(TORCH_LOOP)
    torchrun = ["python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py", "4"]
    done = profile(tmp_path, "--workers", "train*", "--ranks", "1", "--steps", "1:3", "--run", "run", "--", *torchrun)
    assert done.returncode == 0, done.stderr
    (entry,) = manifest(tmp_path / "run" / "profiles")["profiles"]
    assert (entry["worker"], entry["rank"], entry["steps"]) == ("train", 1, "1:3")
    assert manifest(tmp_path / "run" / "profiles")["missing"] == []


def test_sigterm_inside_the_window_writes_what_there_is_and_a_kill_is_named(tmp_path):
    (tmp_path / "loop.py").write_text(LOOP)
    for number, (which, files, reason) in enumerate(
        ((signal.SIGTERM, 1, "SIGTERM"), (signal.SIGKILL, 0, "killed while it was being profiled"))
    ):
        words = [
            "profile",
            "--workers",
            "loop",
            "--tool",
            "memory",
            "--steps",
            "2:",
            "--run",
            f"run{number}",
            "--",
            "python",
            "loop.py",
            "100000",
        ]
        process = started(tmp_path, *words, stderr=subprocess.PIPE)
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == "step 5":
                break
        (status,) = (tmp_path / f"run{number}" / "profiling" / "status").glob("*.json")
        os.kill(json.loads(status.read_text())["pid"], which)
        _, errors = process.communicate(timeout=100)
        assert process.returncode == 128 + which
        found = manifest(tmp_path / f"run{number}" / "profiles")
        assert len(found["profiles"]) == files, errors
        (entry,) = found["profiles"] or found["missing"]
        assert reason in entry["reason"]


def test_a_running_job_is_profiled_without_a_restart(tmp_path):
    """GIVEN a job that was only armed WHEN --attach asks for each tool THEN files come and the job runs on."""
    (tmp_path / "train.py").write_text(TORCH_LOOP)
    job = started(tmp_path, "run", "--run", "run", "--full-length", "--", "python", "train.py", "100000")
    try:
        assert job.stdout is not None
        assert job.stdout.readline().startswith("step")
        for tool, ending in (("torch", ".torch.json.gz"), ("pyspy", ".flamegraph.svg"), ("memory", "")):
            done = profile(tmp_path, "--attach", "train", "--for", "1.2s", "--tool", tool, "--run", "run", "--json")
            assert done.returncode == 0, done.stderr
            (process,) = json.loads(done.stdout)["processes"]
            assert any(file.endswith(ending) for file in process["files"])
        nobody = profile(tmp_path, "--attach", "nobody", "--for", "1s", "--run", "run")
        assert nobody.returncode == 4
        assert job.poll() is None
    finally:
        os.killpg(job.pid, signal.SIGINT)
        job.communicate(timeout=60)


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler for the skewed clock")
def test_a_clock_that_is_300_ms_off_is_put_right_as_far_as_it_is_known(tmp_path):
    (tmp_path / "skew.c").write_text(SKEW)
    library = tmp_path / "skew.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "skew.c", "-ldl"], check=True)
    (tmp_path / "twins.py").write_text(TWINS)
    done = profile(tmp_path, "--tool", "phases", "--run", "run", "--", "python", "twins.py", SKEW=str(library))
    assert done.returncode == 0, done.stderr
    merged = profile(tmp_path, "timeline", "run", "-o", "trace.json", "--json")
    clocks = {clock["worker"]: clock for clock in json.loads(merged.stdout)["clocks"]}
    assert abs(clocks["skewed"]["offset_ms"] + 300) <= clocks["skewed"]["known_to_ms"] + 1e-3
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans: dict[int, list[tuple[float, float]]] = {}
    for event in trace:
        if event["name"] == "together":
            spans.setdefault(event["pid"], []).append((event["ts"], event["ts"] + event["dur"]))
    # Neither begins a span before the other has ended the one before, for they wait for each other in between. Half of
    # the planted shift is allowed: without the correction one of them would be early by all of it.
    for one, other in permutations(spans.values(), 2):
        for (_, ended), (began, _) in zip(one, other[1:], strict=False):
            assert began >= ended - 150_000


def test_the_report_names_the_slow_rank(tmp_path):
    (tmp_path / "ranks.py").write_text(
        "import os, subprocess, sys, time, rldbg\n"
        "if len(sys.argv) == 1:\n"
        "    own = dict(os.environ, WORLD_SIZE='3', RLDBG_ROLE='policy')\n"
        "    start = lambda n: subprocess.Popen([sys.executable, 'ranks.py', str(n)], env=dict(own, RANK=str(n)))\n"
        "    sys.exit(max(rank.wait() for rank in [start(n) for n in range(3)]))\n"
        "for number in range(1, 4):\n"
        "    rldbg.step(number)\n"
        "    with rldbg.phase('rollout'):\n"
        "        time.sleep(0.8 if sys.argv[1] == '2' else 0.02)\n"
    )
    done = profile(tmp_path, "--tool", "phases", "--run", "run", "--", "python", "ranks.py")
    assert done.returncode == 0, done.stderr
    report = json.loads(profile(tmp_path, "report", "run", "--json").stdout)
    (role,) = [row for row in report["roles"] if row["role"] == "policy"]
    assert role["slowest"] == "policy/2"
    assert role["slowest_steps"] == 3
    assert any("policy/2" in text for text in report["advice"])
    shown = profile(tmp_path, "report", "run")
    assert "where the time goes" in shown.stdout


def test_a_hugging_face_trainer_says_its_steps(monkeypatch):
    """TRL's trainers are transformers' trainers: their callback handler is where a step begins."""
    callbacks = pytest.importorskip("transformers.trainer_callback")
    (hook,) = [hook for hook in all_hooks() if hook.module == "transformers.trainer_callback"]
    handler = callbacks.CallbackHandler
    monkeypatch.setattr(handler, "on_step_begin", handler.on_step_begin)
    seen: list[int] = []
    HookedFunction(hook, span=lambda _: nullcontext(), enter_step=seen.append, own=lambda: None).install(callbacks)
    state = callbacks.TrainerState(global_step=4, stateful_callbacks=[])
    control = callbacks.TrainerControl()
    handler([], None, None, None, None).on_step_begin(None, state, control)
    assert seen == [5]
