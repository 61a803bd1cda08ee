"""Every benchmark runs to its end. What it measures is for people to read; here only that nothing in it is broken."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py"))
# What the output of each must name, so that a part which was left out is missed.
PARTS = {
    "bench_compare.py": ("ours on the peer's files", "equal: ours", "wholly different: ours"),
    "bench_doctor.py": ("rldbg doctor (hyperscan)", "rldbg doctor (numpy)", "grep -E", "re, line by line", "limit"),
    "bench_fingerprints.py": ("tensors", "million elements"),
    "bench_formats.py": ("a .pt of lists read into arrays", "our file written from arrays"),
    "bench_framework_recording.py": ("goal_percent",),
    "bench_live.py": ("rldbg ps, 3 agents", "rldbg cast, 2 stopped ranks", "rldbg break until it hits", "peer"),
    "bench_live_overhead.py": ("armed", "after detach", "peer"),
    "bench_profile.py": ("span: ours", "tracing:", "merge of 8 workers"),
    "bench_recorder.py": ("records of 100 kB, 16", "peak extra memory", "from lists", "from tensors", "writes of"),
    "bench_rollout.py": ("ours / peer", "ours / limit"),
    "bench_run.py": ("python train.py", "bash train.sh", "dry run of"),
    "bench_serve.py": ("one at a time, HTTP", "4 concurrent, HTTP", "model.generate, static batch 4"),
    "bench_show.py": ("show, no index", "show, indexed", "limit: scandir walk", "index:"),
    "bench_train_overhead.py": ("recorded_step_s", "overhead_percent"),
    "bench_ui.py": (
        "first rows of the table",
        "first tokens of a long sample",
        "server with 5 clients",
        "training with a page open",
    ),
    "bench_watch.py": ("recorder_percent", "orders_percent", "recorder_threads_percent", "watcher_s_per_step"),
    "gpu_profile.py": ("step_s", "phase_tracing_ratio"),
    "gpu_recorder.py": ("the source overwritten right after the call",),
    "gpu_steps.py": ("achieved_tflops", '"finite": true'),
}
NEEDS_GPU = ("gpu_profile.py", "gpu_recorder.py")


def test_no_benchmark_is_left_out():
    assert list(PARTS) == SCRIPTS


@pytest.mark.parametrize("name", PARTS)
def test_a_benchmark_runs_to_its_end(name, tmp_path):
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(FOLDER.parent / "src")}
    done = subprocess.run(
        [sys.executable, str(FOLDER / name), "--quick"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=170,
    )
    if name in NEEDS_GPU and not torch.cuda.is_available():
        assert done.returncode == 3 and done.stderr.endswith("there is no CUDA device here\n"), done.stderr
        return
    assert done.returncode == 0, done.stdout + done.stderr
    assert [part for part in PARTS[name] if part not in done.stdout] == []
