"""What recording costs the trainer, and how near its writes come to what the disk can do.

Every line is measured in this run: ours, the naive peer (synchronous torch.save of Python lists), the physical limit
(a copy of the bytes; a buffered write of the same bytes) and the ratio, beside what must hold.

    python benchmarks/bench_recorder.py [--quick] [--only small,memory,time,large]
"""

import argparse
import gc
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from rldbg.core import Identity
from rldbg.recording.formats import native
from rldbg.recording.recorder import Recorder

MIB = 2**20


@dataclass
class Line:
    """One result: `holds` compares the measured ratio with what must hold."""

    name: str
    ours: str
    peer: str
    limit: str
    ratio: float
    goal: str
    holds: bool


class PythonLoop:
    """A pure-Python loop that stands for training: how much of it gets done tells what recording takes away."""

    def __init__(self) -> None:
        self._turns_per_s = max(self._run(0.03, [])[1] for _ in range(5))

    def lost_until_written_s(self, recorder: Recorder) -> float:
        """Runs until everything is on disk and returns the seconds that the loop came too short of its usual rate."""
        done: list[bool] = []
        start = time.perf_counter()
        threading.Thread(target=lambda: done.append(recorder.flush())).start()
        turns, _ = self._run(60.0, done)
        return max(0.0, time.perf_counter() - start - turns / self._turns_per_s)

    @staticmethod
    def _run(seconds: float, done: list[bool]) -> tuple[int, float]:
        """Never lets go of the interpreter by itself, as a trainer's Python code does not either."""
        start = time.perf_counter()
        turns = 0
        while not done and time.perf_counter() - start < seconds:
            value = 0
            for number in range(500):
                value += number * number & 7
            turns += 1
        return turns, turns / (time.perf_counter() - start)


class Trajectories:
    """The same trajectories as Python lists, arrays and tensors."""

    def __init__(self, samples: int, tokens: int) -> None:
        source = np.random.default_rng(0)
        self.samples = [(f"g{number // 8}", number % 8) for number in range(samples)]
        self.tokens = source.integers(0, 150_000, (samples, tokens))
        self.tokens[:, : tokens // 4] = self.tokens[np.arange(samples) // 8 * 8, : tokens // 4]  # a group's prompt
        self.mask = (np.arange(tokens) >= tokens // 4).astype(np.int64) * np.ones((samples, 1), dtype=np.int64)
        self.logprobs = -source.random((samples, tokens), dtype=np.float32)
        self.reward = source.random(samples)

    def lists(self) -> dict[str, list]:
        return {
            "tokens": self.tokens.tolist(),
            "loss_mask": self.mask.tolist(),
            "logprobs": self.logprobs.tolist(),
            "reward": self.reward.tolist(),
        }

    def arrays(self) -> dict[str, np.ndarray]:
        return {
            "tokens": self.tokens.copy(),
            "loss_mask": self.mask.copy(),
            "logprobs": self.logprobs.copy(),
            "reward": self.reward.copy(),
        }

    def tensors(self) -> dict[str, torch.Tensor]:
        return {name: torch.from_numpy(value) for name, value in self.arrays().items()}

    def check(self, file: Path) -> None:
        """The file holds what was handed over, not what the source was overwritten with."""
        record = native.decode(file).read(0)
        for name, expected in (("tokens", self.tokens), ("loss_mask", self.mask), ("logprobs", self.logprobs)):
            if not np.array_equal(record.array(name).reshape(expected.shape), expected):
                raise SystemExit(f"{name} was not recorded as it was handed over")


def naive_s(trajectories: Trajectories, folder: Path) -> float:
    """What a synchronous torch.save of a list of dictionaries takes."""
    columns = trajectories.lists()
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    start = time.perf_counter()
    torch.save({"step": 0, "num_trajectories": len(rows), "trajectories": rows}, folder / "naive.pt")
    seconds = time.perf_counter() - start
    (folder / "naive.pt").unlink()
    return seconds


def overwrite(columns: dict) -> None:
    """Spoils the source at once: arrays wholly, lists in every row, which is quick enough not to count."""
    for value in columns.values():
        if not isinstance(value, list):
            value[:] = 77
        elif isinstance(value[0], list):
            for row in value:
                row[0] = row[len(row) // 2] = row[-1] = 77


def lost_s(recorder: Recorder, trajectories: Trajectories, make: Callable[[], dict], step: int) -> tuple[float, float]:
    """Seconds lost in the call, and seconds lost by a Python loop until the file has its name."""
    columns = make()
    gc.collect()
    loop = PythonLoop()
    start = time.perf_counter()
    recorder.record("trajectory", step=step, samples=trajectories.samples, **columns)
    in_call = time.perf_counter() - start
    overwrite(columns)
    beside = loop.lost_until_written_s(recorder)
    file = recorder.settings.directory / "trajectory" / f"step_{step:06d}.safetensors"
    trajectories.check(file)
    file.unlink()
    return in_call, beside


def bench_training_time(folder: Path, samples: int, tokens: int, repeats: int) -> list[Line]:
    trajectories = Trajectories(samples, tokens)
    naive = min(naive_s(trajectories, folder) for _ in range(max(1, repeats // 2)))
    payload = trajectories.tensors()
    copies = {name: torch.empty_like(value) for name, value in payload.items()}
    copy_s = min(timed(lambda: [copies[name].copy_(value) for name, value in payload.items()]) for _ in range(5))
    lines = []
    sources = {
        "lists": (trajectories.lists, 15),
        "arrays": (trajectories.arrays, 100),
        "tensors": (trajectories.tensors, 100),
    }
    with Recorder(folder / "trajectories", identity=Identity()) as recorder:
        for name, (make, goal) in sources.items():
            runs = [lost_s(recorder, trajectories, make, step) for step in range(repeats)]
            in_call, beside = min(runs, key=sum)
            lost = in_call + beside
            lines.append(
                Line(
                    f"training time lost, {samples} x {tokens} from {name}",
                    f"{lost * 1e3:.1f} ms ({in_call * 1e3:.1f} in the call)",
                    f"{naive * 1e3:.0f} ms torch.save of lists",
                    f"{copy_s * 1e3:.1f} ms a copy of the tensors",
                    naive / lost,
                    f">= {goal}x",
                    naive / lost >= goal,
                )
            )
    return lines


def bench_memory(folder: Path, samples: int, tokens: int) -> Line:
    """Peak resident memory of a recorder, from before it exists until everything is written."""
    trajectories = Trajectories(samples, tokens)
    columns = trajectories.arrays()
    in_flight = sum(value.nbytes for value in columns.values())
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    with Recorder(folder / "memory", identity=Identity()) as recorder:
        recorder.record("trajectory", step=0, samples=trajectories.samples, **columns)
        recorder.flush()
        extra = resident("VmHWM") - before
    bound = 1.3 * in_flight + 32 * MIB
    return Line(
        "peak extra memory",
        f"{extra / MIB:.0f} MiB",
        "-",
        f"{in_flight / MIB:.0f} MiB in flight",
        extra / in_flight,
        f"<= {bound / MIB:.0f} MiB (1.3 x in flight + 32)",
        extra <= bound,
    )


def bench_large_files(folder: Path, size: int, files: int) -> Line:
    """From the end of a step, when everything has been handed over, to the last file's name and journal line."""
    data = np.random.default_rng(0).integers(0, 255, (files, size), dtype=np.uint8)
    raw, ours = [], []
    with Recorder(folder / "large", identity=Identity(), buffer_bytes=2 * size * (files + 1), gather_s=600) as recorder:
        for step in range(5):
            raw.append(timed(lambda: raw_writes(folder / "raw", data)))
            shutil.rmtree(folder / "raw")
            for number in range(files):
                recorder.record(f"kind{number}", step=step, micro=0, payload=data[number])
            ours.append(timed(lambda step=step: write_step(recorder, step)))
            for number in range(files):
                (folder / "large" / f"kind{number}" / f"step_{step:06d}_rank0.safetensors").unlink()
    limit, speed = size * files / min(raw) / MIB, size * files / min(ours) / MIB
    return Line(
        f"writes of {size // MIB} MiB files",
        f"{speed:.0f} MiB/s with crc32, name and journal",
        "-",
        f"{limit:.0f} MiB/s plain buffered writes",
        speed / limit,
        ">= 0.7",
        speed / limit >= 0.7,
    )


def write_step(recorder: Recorder, step: int) -> None:
    recorder.end_step(step)
    if not recorder.flush() or recorder.stopped:
        raise SystemExit(f"the recorder stopped: {recorder.stopped}")


def bench_small_records(folder: Path, per_file: int, count: int) -> Line:
    """Records of 100 kB, so many a file, against plain files with the same bytes.

    Nothing is deleted between the rounds: ext4 makes new files several times slower for a while after deletions.
    """
    data = np.random.default_rng(0).random((count, 12_500))
    raw, ours = [], []
    rows = data.reshape(count // per_file, -1).view(np.uint8)
    for turn in range(3):
        raw.append(timed(lambda turn=turn: raw_writes(folder / f"raw-{per_file}-{turn}", rows)))
        with Recorder(folder / f"small-{per_file}-{turn}", identity=Identity()) as recorder:
            recorder.record("warm", step=0, payload=data[0])
            recorder.flush()
            ours.append(timed(lambda recorder=recorder: record_all(recorder, data, per_file)))
    limit, speed = count / min(raw), count / min(ours)
    return Line(
        f"records of 100 kB, {per_file} a file",
        f"{speed:.0f} records/s",
        "-",
        f"{limit:.0f} records/s as plain files",
        speed / limit,
        ">= 3000 records/s",
        speed >= 3000,
    )


def record_all(recorder: Recorder, data: np.ndarray, per_file: int) -> None:
    for number, payload in enumerate(data):
        micro = number % per_file if per_file > 1 else None
        recorder.record("small", step=number // per_file, micro=micro, payload=payload)
    if not recorder.flush() or recorder.stopped:
        raise SystemExit(f"the recorder stopped: {recorder.stopped}")


def raw_writes(folder: Path, rows: np.ndarray) -> None:
    folder.mkdir()
    for number, row in enumerate(rows):
        descriptor = os.open(folder / f"{number}", os.O_WRONLY | os.O_CREAT)
        view = row.data
        while view.nbytes:
            view = view[os.write(descriptor, view) :]
        os.close(descriptor)


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def resident(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {name}")


def measure(folder: Path, chosen: list[str], samples: int, repeats: int, small: int, large_mib: int) -> list[Line]:
    lines = []
    if "small" in chosen:  # before anything is deleted
        lines += [bench_small_records(folder, per_file, small) for per_file in (16, 1)]
    if "memory" in chosen:
        lines.append(bench_memory(folder, samples, 4096))
    if "time" in chosen:
        lines += bench_training_time(folder, samples, 4096, repeats)
    if "large" in chosen:
        sizes = (16, 64) if large_mib > 64 else (1,)
        lines += [bench_large_files(folder, size * MIB, large_mib // size) for size in sizes]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the smallest sizes, to see that it runs; no goal decides")
    parser.add_argument("--only", default="small,memory,time,large", help="which of these to measure")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()
    quick = options.quick
    samples, repeats, small, large_mib = (8, 1, 64, 2) if quick else (512, 10, 2048, 512)
    random.seed(0)
    folder = Path(tempfile.mkdtemp(prefix="rldbg-bench-"))
    try:
        lines = measure(folder, options.only.split(","), samples, repeats, small, large_mib)
    finally:
        shutil.rmtree(folder)
    for line in lines:
        if options.json:
            print(json.dumps(asdict(line)))
        else:
            verdict = "holds" if line.holds else "DOES NOT HOLD"
            print(f"{line.name}\n  ours {line.ours} | peer {line.peer} | limit {line.limit}")
            print(f"  ratio {line.ratio:.2f}, goal {line.goal}: {verdict}")
    return 0 if quick or all(line.holds for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
