"""What phase tracing costs, and how fast traces merge.

1. A span of the agent against its limit (one write of the same line) and a peer (torch's record_function, unprofiled);
   then the default recipe's spans a step times that cost, as a share of its measured step. Goal: at most 1 %.
2. A run of two minutes with eight workers, 100 spans a second each and a torch window of 40,000 events each, merged;
   against loading all of it with json and writing it again (peer) and copying the bytes (limit). Goal: under 10 s.

    python benchmarks/bench_profile.py [--steps 6] [--quick]
"""

import argparse
import gzip
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rldbg.agent.profiling import Phases
from rldbg.profiling import write_timeline
from rldbg.profiling.report import step_bounds
from rldbg.profiling.tracks import read_tracks

ROOT = Path(__file__).parents[1]
SPANS = 20_000
WORKERS, SPANS_PER_SECOND = 8, 100
# The recipe's own steps without a cluster, as small as they get.
QUICK = ("++cluster.in_process=true", "policy.ranks=1", "warm_start.max_steps=2", "data.prompts_per_step=4")


def seconds_of(work) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def span_cost(folder: Path) -> dict[str, float]:
    """Microseconds of one span: ours, one bare write, and a record_function that nobody profiles."""
    from torch.profiler import record_function

    phases = Phases(str(folder), about=lambda: {"worker": "w"}, step=lambda: 1, clock=lambda: None)
    file = os.open(folder / "limit", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    line = b'["backward",1794720614804398995,525732397,1,281473078407200]\n'

    def ours():
        for _ in range(SPANS):
            with phases.span("backward"):
                pass

    def limit():
        for _ in range(SPANS):
            os.write(file, line)

    def peer():
        for _ in range(SPANS):
            with record_function("backward"):
                pass

    return {
        name: statistics.median(seconds_of(work) for _ in range(5)) / SPANS * 1e6
        for name, work in (("ours", ours), ("limit", limit), ("peer", peer))
    }


def spans_per_step(folder: Path, steps: int, overrides: tuple[str, ...]) -> tuple[float, float]:
    """Of the busiest process of the default recipe, and the seconds of a step."""
    train = [sys.executable, "-m", "rldbg", "train", str(ROOT / "recipes" / "arithmetic.yaml"), "--steps", str(steps)]
    train += overrides
    profile = [sys.executable, "-m", "rldbg", "profile", "--tool", "phases", "--run", str(folder), "--"]
    subprocess.run([*profile, *train], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    tracks = read_tracks(folder)
    bounds = step_bounds(tracks)
    begin, end = min(low for low, _ in bounds.values()), max(high for _, high in bounds.values())
    most = max(sum(begin <= span.start_ns < end for span in track.spans) for track in tracks)
    return most / len(bounds), statistics.median((high - low) / 1e9 for low, high in bounds.values())


def synthetic_run(run: Path, seconds: int, events: int) -> None:
    (run / "profiling" / "phases").mkdir(parents=True)
    (run / "profiles").mkdir()
    for worker in range(WORKERS):
        pid, gap = 100 + worker, 10**9 // SPANS_PER_SECOND
        about = {"worker": f"policy/{worker}", "role": "policy", "rank": worker, "host": "h", "pid": pid}
        lines = [json.dumps(about), json.dumps({"clock": {"offset_ns": 0, "round_trip_ns": 1000}})]
        lines += [f'["backward",{10**18 + n * gap},{gap // 2},{n // 100},1]' for n in range(seconds * SPANS_PER_SECOND)]
        (run / "profiling" / "phases" / f"h_{pid}.jsonl").write_text("\n".join(lines) + "\n")
        traced = [
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": pid, "tid": 1, "ts": n, "dur": 0.5}
            | {"args": {"External id": n, "Input Dims": [[64, 64], [64, 64]]}}
            for n in range(events)
        ]
        with gzip.open(run / "profiles" / f"policy_{worker}_{pid}.torch.json.gz", "wt", compresslevel=1) as file:
            json.dump({"baseTimeNanoseconds": 10**18, "traceEvents": traced}, file)


def load_and_dump(run: Path) -> None:
    everything = []
    for path in sorted((run / "profiles").glob("policy_*.torch.json.gz")):
        with gzip.open(path, "rt") as file:
            everything += json.load(file)["traceEvents"]
    for path in sorted((run / "profiling" / "phases").glob("*.jsonl")):
        everything += [json.loads(line) for line in path.read_text().splitlines()]
    with gzip.open(run / "peer.json.gz", "wt", compresslevel=1) as file:
        json.dump({"traceEvents": everything}, file)


def copy_bytes(run: Path) -> None:
    with gzip.open(run / "limit.json.gz", "wb", compresslevel=1) as target:
        for path in sorted((run / "profiles").glob("policy_*.torch.json.gz")):
            with gzip.open(path, "rb") as source:
                shutil.copyfileobj(source, target, 1 << 20)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--quick", action="store_true", help="the smallest sizes, to see that it runs; no goal decides")
    arguments = parser.parse_args()
    quick = arguments.quick
    seconds, events = (2, 400) if quick else (120, 40_000)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        cost = span_cost(folder)
        spans, step_s = spans_per_step(folder / "train", 3 if quick else arguments.steps, QUICK if quick else ())
        share = spans * cost["ours"] / 1e6 / step_s
        synthetic_run(folder / "run", seconds, events)
        merge = seconds_of(lambda: write_timeline(folder / "run", folder / "run" / "trace.json.gz"))
        peer = seconds_of(lambda: load_and_dump(folder / "run"))
        limit = seconds_of(lambda: copy_bytes(folder / "run"))
    print(f"span: ours {cost['ours']:.2f} us, limit (one write) {cost['limit']:.2f} us, peer {cost['peer']:.2f} us")
    print(f"tracing: {spans:.0f} spans in a step of {step_s:.3f} s: {share:.3%} of it (goal 1 %)")
    print(
        f"merge of {WORKERS} workers, {seconds} s: ours {merge:.1f} s, peer (load, dump) {peer:.1f} s, "
        f"limit (copy) {limit:.1f} s; ours / peer {merge / peer:.2f} (goal 10 s)"
    )


if __name__ == "__main__":
    main()
