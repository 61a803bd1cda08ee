"""Reading and writing the files of recordings: ours, torch, the physical limit and the ratio, from one run.

512 trajectories of 4096 tokens with loss mask and log probs, as NexRL files them (Python lists in a torch.save file),
and the same numbers as tensors. Seconds are of one thread's processor time, the smallest of a few rounds taken in turn.

    python benchmarks/bench_formats.py [--quick]
"""

import argparse
import gc
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from rldbg.core import SampleId
from rldbg.recording.formats import native
from rldbg.recording.formats.nexrl_dict import from_dict, to_dict
from rldbg.recording.formats.pt_reader import load_pt, ragged_from_lists
from rldbg.recording.formats.pt_writer import dump_pt
from rldbg.recording.records import Ragged, Record, RecordKey

TOKENS = 4096
NAMES = ("tokens", "loss_mask", "logprobs")


@dataclass
class Line:
    """One comparison: seconds of ours, of each peer, and of the limit; `goal`, if any, is against the first peer."""

    name: str
    ours: Callable[[], object]
    peers: dict[str, Callable[[], object]]
    limit: Callable[[], object]
    goal: float | None = None

    def measure(self, rounds: int) -> bool:
        calls = {"ours": self.ours, **self.peers, "limit": self.limit}
        best = dict.fromkeys(calls, float("inf"))
        for _ in range(rounds):
            for name, call in calls.items():
                gc.collect()
                start = time.process_time()
                call()
                best[name] = min(best[name], time.process_time() - start)
        ratio = next(best[name] for name in self.peers) / best["ours"]
        others = "".join(f" | {name} {best[name]:.4f} s ({best[name] / best['ours']:.1f}x)" for name in self.peers)
        print(f"{self.name}\n  ours {best['ours']:.4f} s{others} | limit {best['limit']:.4f} s")
        if self.goal is None:
            print(f"  ratio {ratio:.1f}")
            return True
        print(f"  ratio {ratio:.1f}, goal {self.goal:g}: {'holds' if ratio >= self.goal else 'DOES NOT HOLD'}")
        return ratio >= self.goal


class Data:
    """The same trajectories as a record, as NexRL's dictionary of lists, and as files of each kind."""

    def __init__(self, folder: Path, samples: int) -> None:
        random = np.random.default_rng(0)
        offsets = np.arange(samples + 1) * TOKENS
        self.columns = {
            "tokens": random.integers(0, 151_000, samples * TOKENS),
            "loss_mask": np.tile(np.arange(TOKENS) >= TOKENS // 4, samples).astype(np.int64),
            "logprobs": -random.random(samples * TOKENS, dtype=np.float32),
        }
        ids = tuple(SampleId(f"g{i // 8}", i % 8) for i in range(samples))
        fields = {name: Ragged(values, offsets) for name, values in self.columns.items()}
        self.record = Record(RecordKey("trajectory", 0), fields | {"reward": random.random(samples)}, ids)
        rows = {name: values.reshape(samples, TOKENS).tolist() for name, values in self.columns.items()}
        self.lists = {
            "step": 0,
            "num_trajectories": samples,
            "trajectories": [
                {name: rows[name][i] for name in NAMES}
                | {"reward": 1.0, "is_val": False, "extra_fields": {"group_id": f"g{i}", "run_id": 0}}
                for i in range(samples)
            ],
        }
        self.folder = folder
        self.list_file = folder / "lists.pt"
        torch.save(self.lists, self.list_file)
        self.tensor_file = folder / "tensors.pt"
        torch.save({name: torch.from_numpy(values) for name, values in self.columns.items()}, self.tensor_file)
        self.native_file = folder / "native.safetensors"
        self.write_native(self.native_file)

    def write_native(self, path: Path) -> None:
        header, buffers = native.encode([self.record])
        with open(path, "wb") as file:
            file.writelines([header, *buffers])

    def to_arrays(self) -> dict[str, Ragged]:
        """The list file as ragged arrays, the way a layout reads it."""
        rows = load_pt(self.list_file, arrays=True)["trajectories"]
        dtypes = {"tokens": np.int64, "loss_mask": np.int64, "logprobs": np.float32}
        return {name: ragged_from_lists([row[name] for row in rows], dtypes[name]) for name in NAMES}

    def check(self) -> None:
        """What is measured is the right answer."""
        read = self.to_arrays()
        record = from_dict("trajectory", load_pt(self.list_file, arrays=True))
        ours = native.decode(self.native_file).read(0)
        for name, values in self.columns.items():
            for fields in (read, record.fields, ours.fields):
                if not np.array_equal(fields[name].values, values):
                    raise SystemExit(f"{name} was not read as it was written")
        path = self.folder / "check.pt"
        dump_pt(to_dict(self.record), path)
        rows = torch.load(path, weights_only=True)["trajectories"]
        if any(
            row[name] != other[name]
            for row, other in zip(rows, self.lists["trajectories"], strict=True)
            for name in NAMES[:2]
        ):
            raise SystemExit("torch reads other lists than were written")


def summed(arrays: dict) -> float:
    return sum(float(values.sum()) for values in arrays.values())


def lines(data: Data) -> list[Line]:
    out = data.folder / "out"
    raw_list, raw_native = data.list_file.read_bytes(), data.native_file.read_bytes()

    def native_summed() -> float:
        record = native.decode(data.native_file).read(0)
        return summed({name: record.fields[name].values for name in NAMES})

    def written() -> None:
        dump_pt(to_dict(data.record), out)

    default = {"torch.load": lambda: torch.load(data.list_file)}
    trusting = {"weights_only=False": lambda: torch.load(data.list_file, weights_only=False)}
    return [
        Line("a .pt of lists read into arrays", data.to_arrays, default | trusting, data.list_file.read_bytes, 6),
        Line(
            "a .pt of lists read into lists",
            lambda: load_pt(data.list_file),
            default | trusting,
            data.list_file.read_bytes,
        ),
        Line(
            "a .pt of tensors opened (mapped, nothing read)",
            lambda: load_pt(data.tensor_file),
            {"torch.load": lambda: torch.load(data.tensor_file)},
            lambda: open(data.tensor_file, "rb").close(),
        ),
        Line(
            "our file, every value summed, against the .pt of lists",
            native_summed,
            default | trusting,
            lambda: summed(data.columns),
            300,
        ),
        Line(
            "a .pt of lists written from arrays",
            written,
            {"torch.save of lists": lambda: torch.save(data.lists, out)},
            lambda: out.write_bytes(raw_list),
            50,
        ),
        Line(
            "our file written from arrays",
            lambda: data.write_native(out),
            {"torch.save of lists": lambda: torch.save(data.lists, out)},
            lambda: out.write_bytes(raw_native),
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the smallest sizes, to see that it runs; no goal decides")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rldbg-bench-formats-"))
    try:
        data = Data(folder, 8 if options.quick else 512)
        data.check()
        results = [line.measure(1 if options.quick else 3) for line in lines(data)]
    finally:
        shutil.rmtree(folder)
    return 0 if options.quick or all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
