"""How long `rldbg show` takes on a recording of 100,000 files: without an index, with it, and the limit.

The limit is a plain os.scandir walk of the same folders that asks for nothing but names, in the same run. The time
of a bare `python -c pass` is printed too, because no command line can start faster.

    python benchmarks/bench_show.py [--quick]
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from rldbg.core import Identity, SampleId
from rldbg.recording import Record, RecordKey
from rldbg.recording.formats import native
from rldbg.recording.formats.checksum import crc32_of
from rldbg.recording.journal import JournalWriter

KINDS = ("trajectory", "old_log_probs", "forward_data", "loss", "batch_inputs")
RANKS = 8


def make(root: Path, files: int) -> None:
    """Small files of our own format with a journal a rank, as eight processes would leave them."""
    journals = [
        JournalWriter(root, Identity(rank=rank, host="node0", pid=rank + 1), "safetensors") for rank in range(RANKS)
    ]
    samples = (SampleId("g0", 0), SampleId("g0", 1))
    record = Record(RecordKey("x", 0), {"log_probs": np.zeros((2, 8), np.float32)}, samples, ("a", "a"), "policy")
    for kind in KINDS:
        (root / kind).mkdir()
        for step in range(files // len(KINDS) // RANKS):
            for rank, journal in enumerate(journals):
                key = RecordKey(kind, step, rank)
                header, buffers = native.encode([Record(key, record.fields, samples, ("a", "a"), "policy")])
                path = root / kind / f"step_{step:06d}_rank{rank}.safetensors"
                path.write_bytes(header + b"".join(buffers))
                journal.intent([step], key, 2)
                journal.done([step], f"{kind}/{path.name}", path.stat().st_size, crc32_of(path))
    for journal in journals:
        journal.close(release=True)


def first_output(*arguments: str) -> tuple[float, float]:
    """Seconds from starting the command to the first byte it prints, and CPU seconds of all of it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read(1)
    elapsed = time.perf_counter() - started
    process.stdout.read()
    assert process.wait() == 0, f"exit code {process.returncode}"
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return elapsed, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def walk_s(root: Path) -> tuple[float, int]:
    started = time.perf_counter()
    count, pending = 0, [str(root)]
    while pending:
        with os.scandir(pending.pop()) as listing:
            for item in listing:
                if item.is_dir():
                    pending.append(item.path)
                else:
                    count += 1
    return time.perf_counter() - started, count


def _best(runs: list[tuple[float, float]]) -> str:
    return f"{min(wall for wall, _ in runs):7.3f} s to the first output, {min(cpu for _, cpu in runs):.3f} CPU s"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="the smallest sizes, to see that it runs; no goal decides")
    files, rounds = (560, 1) if parser.parse_args().quick else (100_000, 5)
    root = Path(tempfile.mkdtemp(prefix="bench-show-"))
    try:
        started = time.perf_counter()
        make(root, files)
        print(f"made {files:,} files in {time.perf_counter() - started:.1f} s")
        show = ("-c", "from rldbg.cli import main; main()", "show", str(root))
        time.sleep(2.5)  # an index is kept only of folders that have been quiet for two seconds
        colds = []
        for _ in range(2):
            (root / "index.json").unlink(missing_ok=True)
            colds.append(first_output(*show))
        indexed = [first_output(*show) for _ in range(rounds)]
        body = json.loads(subprocess.run([sys.executable, *show, "--json"], capture_output=True, check=True).stdout)
        records = sum(kind["records"] for kind in body["kinds"].values())
        assert (records, body["health"]) == (files, []), (records, body["health"][:2])
        walks = [walk_s(root)[0] for _ in range(rounds)]
        bare = [first_output("-c", "print()") for _ in range(rounds)]
        print(f"show, no index      {_best(colds)} (best of {len(colds)})")
        print(f"show, indexed       {_best(indexed)} (best of {rounds}); goal < 1 s")
        print(f"bare interpreter    {_best(bare)}")
        print(f"limit: scandir walk {min(walks):7.3f} s for the names of {walk_s(root)[1]:,} files")
        print(f"indexed / (interpreter + walk) = {min(indexed)[0] / (min(walks) + min(bare)[0]):.1f}")
        print(f"no index / indexed = {min(colds)[0] / min(indexed)[0]:.1f}")
        print(f"index: {(root / 'index.json').stat().st_size / 1e6:.1f} MB")
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
