"""What recording costs a trainer: the benchmark, with bounds that hold on a busy machine, and in soak as they stand."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "bench_recorder.py"


def measured(*options: str) -> dict[str, dict]:
    command = [sys.executable, str(BENCHMARK), "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.stdout, done.stderr
    return {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}


def test_recording_is_many_times_cheaper_than_saving_lists() -> None:
    lines = measured("--quick", "--only", "memory,time")
    ratios = {name: line["ratio"] for name, line in lines.items()}
    assert ratios["training time lost, 128 x 4096 from lists"] >= 5
    assert ratios["training time lost, 128 x 4096 from arrays"] >= 15
    assert ratios["training time lost, 128 x 4096 from tensors"] >= 15
    assert lines["peak extra memory"]["holds"]


@pytest.mark.soak
@pytest.mark.timeout(1300)
def test_every_bound_of_the_benchmark_holds() -> None:
    failed = [line for line in measured().values() if not line["holds"]]
    assert not failed
