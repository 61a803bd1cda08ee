"""compare against the naive path and against the machine: ours, the peer, the limit and the ratio, from one run.

1. 8 ranks x 2 micro-batches x 3 tensors [32, 8192] float32 and 512 trajectories of 4096 tokens, one token wrong. The
   peer loads each pair of torch files, takes `allclose`, and compares lists; ours is `rldbg compare`, once on the same
   numbers in our format and once on the peer's own files. Seconds are processor time of the whole process.
2. Two large recordings in the page cache, one core: equal, and wholly different. The limit is reading both sides into a
   buffer. The largest resident memory is that of the whole process.

    python benchmarks/bench_compare.py [--gib 4] [--only small|large] [--quick]
"""

import argparse
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

import rldbg

RANKS, MICROS = 8, 2
NAIVE = """
import glob, sys, torch
a, b = sys.argv[1:]
unequal = 0
left, right = (torch.load(f"{side}/trajectory/step_000000.pt")["trajectories"] for side in (a, b))
for one, other in zip(left, right):
    unequal += any(one[name] != other[name] for name in ("tokens", "loss_mask", "reward"))
for file in sorted(glob.glob(f"{a}/forward_data/*.pt")):
    left, right = torch.load(file), torch.load(file.replace(a, b))
    for name in ("log_probs", "entropy", "response_mask"):
        one, other = left[name].float(), right[name].float()
        gap = (one - other).abs()
        unequal += not torch.allclose(one, other, atol=1e-5, rtol=1e-4)
        numbers = [gap.max().item(), gap.mean().item()]
        for side in (one, other):
            numbers += [value.item() for value in (side.mean(), side.std(), side.min(), side.max())]
print(unequal)
"""


def processor_s(command: list[str]) -> tuple[float, float, int]:
    """Processor seconds, wall seconds and largest resident MiB of a command."""
    started = time.monotonic()
    # As installed: byte code is kept, not made anew by every process.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(child.pid, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 1):
        raise SystemExit(f"failed: {' '.join(command)}")
    return usage.ru_utime + usage.ru_stime, time.monotonic() - started, usage.ru_maxrss // 1024


def compare_command(a: Path, b: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "rldbg", "compare", str(a), str(b), "--json", *options]


def small(folder: Path, count: int, length: int, shape: tuple[int, int]) -> bool:
    """`count` trajectories of `length` tokens, and tensors of that shape."""
    import torch

    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 150_000, (count, length))
    masks = np.repeat((np.arange(length) >= length // 8)[None].astype(np.int64), count, 0)
    trajectories = [
        {
            "tokens": row.tolist(),
            "loss_mask": mask.tolist(),
            "reward": float(number % 2),
            "is_val": False,
            "extra_fields": {"group_id": f"g{number // 8}", "run_id": number % 8},
        }
        for number, (row, mask) in enumerate(zip(tokens, masks, strict=True))
    ]
    tensors = {(rank, micro): -rng.random(shape, dtype=np.float32) for rank in range(RANKS) for micro in range(MICROS)}
    for name in ("a", "b"):
        if name == "b":
            tensors[5, 1][3, 77] -= 8
        for kind in ("trajectory", "forward_data"):
            (folder / f"pt_{name}" / kind).mkdir(parents=True)
        body = {"step": 0, "num_trajectories": count, "trajectories": trajectories}
        torch.save(body, folder / f"pt_{name}" / "trajectory" / "step_000000.pt")
        for (rank, micro), log_probs in tensors.items():
            values = torch.from_numpy(log_probs)
            body = {"step": 0, "rank": rank, "micro_idx": micro, "log_probs": values, "entropy": -values}
            body["response_mask"] = torch.ones(shape)
            torch.save(body, folder / f"pt_{name}" / "forward_data" / f"step_000000_rank{rank}_micro{micro}.pt")
        command = ["convert", str(folder / f"pt_{name}"), str(folder / f"ours_{name}"), "--to", "safetensors"]
        subprocess.run([sys.executable, "-m", "rldbg", *command], check=True, stdout=subprocess.DEVNULL)
    commands = {
        "peer": [sys.executable, "-c", NAIVE, str(folder / "pt_a"), str(folder / "pt_b")],
        "ours": compare_command(folder / "ours_a", folder / "ours_b"),
        "ours on the peer's files": compare_command(folder / "pt_a", folder / "pt_b"),
        "limit (import numpy)": [sys.executable, "-c", "import numpy"],
    }
    best = {
        name: min(processor_s(command)[0] for _ in range(1 if name == "peer" else 3))
        for name, command in commands.items()
    }
    print(f"16 pairs x 3 tensors {list(shape)} and {count} x {length} tokens, processor seconds end to end")
    print("  " + " | ".join(f"{name} {seconds:.3f}" for name, seconds in best.items()))
    ratio = best["peer"] / best["ours"]
    on_same = best["peer"] / best["ours on the peer's files"]
    print(f"  ratio {ratio:.0f}, goal 40: {_holds(ratio >= 40)}; on the peer's own files {on_same:.1f}")
    return ratio >= 40


def write_large(root: Path, gib: float, seed: int, rows: int) -> None:
    """Log probs, entropies and a mask, together half a MiB per row of a micro-batch, over 8 ranks."""
    rng = np.random.default_rng(seed)
    values = -rng.random((rows, 65_536), dtype=np.float32)
    mask = np.ones(values.shape, np.int8)
    micros = max(1, round(gib * 2048 / rows / RANKS))
    ids = [(f"g{number}", 0) for number in range(RANKS * micros * rows)]
    for rank in range(RANKS):
        with rldbg.Recorder(root, identity=rldbg.Identity(rank=rank)) as recorder:
            for micro in range(micros):
                first = (rank * micros + micro) * rows
                where = {"step": 0, "micro": micro, "samples": ids[first : first + rows]}
                recorder.record("forward_data", **where, log_probs=values, entropy=-values, response_mask=mask)


def read_both(a: Path, b: Path) -> float:
    buffer = bytearray(1 << 20)
    started = time.process_time()
    for file in [*a.rglob("*.safetensors"), *b.rglob("*.safetensors")]:
        with file.open("rb", buffering=0) as opened:
            while opened.readinto(buffer):
                pass
    return time.process_time() - started


def large(folder: Path, gib: float, rows: int) -> bool:
    # Written by another process: a child's largest resident memory counts that of the process that started it.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        for name, seed in (("a", 0), ("same", 0), ("other", 1)):
            pool.submit(write_large, folder / name, gib, seed, rows).result()
        pool.submit(write_large, folder / "tiny", 0, 0, 1).result()
    good = True
    print(f"two recordings of {gib:g} GiB in the page cache, one core, processor seconds")
    for name, goal in (("same", 1.3), ("other", 6.0)):
        a, b = folder / "a", folder / name
        limit = min(read_both(a, b) for _ in range(2))
        start = min(processor_s(compare_command(folder / "tiny", folder / "tiny"))[0] for _ in range(3))
        runs = [processor_s(compare_command(a, b, "--jobs", "1")) for _ in range(2)]
        ours, memory = min(run[0] for run in runs), max(run[2] for run in runs)
        ratio = (ours - start) / limit
        label = "equal" if name == "same" else "wholly different"
        print(f"  {label}: ours {ours:.2f} s | limit (reading both) {limit:.2f} s | largest resident {memory} MiB")
        verdict = _holds(ratio <= goal)
        print(f"  ratio {ratio:.2f} beyond comparing next to nothing ({start:.2f} s), goal {goal}: {verdict}")
        good &= ratio <= goal
    return good


def _holds(condition: bool) -> str:
    return "holds" if condition else "DOES NOT HOLD"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=4.0, help="size of each large recording")
    parser.add_argument("--only", choices=("small", "large"))
    parser.add_argument("--quick", action="store_true", help="the smallest sizes, to see that it runs; no goal decides")
    options = parser.parse_args()
    quick = options.quick
    folder = Path(tempfile.mkdtemp(prefix="bench-compare-"))
    try:
        good = options.only == "large" or small(folder, *((8, 64, (16, 128)) if quick else (512, 4096, (32, 8192))))
        good &= options.only == "small" or large(folder, *((0.0, 1) if quick else (options.gib, 128)))
    finally:
        shutil.rmtree(folder)
    return 0 if good or quick else 1


if __name__ == "__main__":
    sys.exit(main())
