"""How fast logs are read, end to end: ours with both engines, beside `grep -E` and Python's `re` line by line.

All search the same anchors of the same knowledge in the same realistic log (2 GB by default);
the peers get a piece of it, because they would take too long. The limit is reading the file from the page cache.
Speeds are of one thread's processor time.

    python benchmarks/bench_doctor.py [MEGABYTES] [--quick]
"""

import argparse
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.unit.doctor.logs import healthy_lines

from rldbg.doctor import Library, SearchIndex, diagnose
from rldbg.doctor.logs.failures import ANCHORS
from rldbg.doctor.search.anchors import anchors_of

FAILURE = (
    "\x1b[36m(WorkerDict pid=4003, ip=10.0.0.3)\x1b[0m [2026-11-15 11:59:00,000 E 1 1] torch.OutOfMemoryError: "
    "CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    "[rank3]:[E1115 12:09:01.000000000 P.cpp:632] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL("
    "SeqNum=26, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600007 milliseconds before timing out.\n"
)


def write_log(path, megabytes):
    text = ("\n".join(healthy_lines(100_000, seed=1)) + "\n").encode()
    with path.open("wb") as stream:
        for _ in range(max(1, megabytes * 1_000_000 // len(text))):
            stream.write(text)
        stream.write(FAILURE.encode())
    return path.stat().st_size


def processor_s():
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def timed(action, repeats=3):
    """The smallest processor time, children included: other work on the machine does not count."""
    best = None
    for _ in range(repeats):
        began = processor_s()
        answer = action()
        spent = processor_s() - began
        best = spent if best is None else min(best, spent)
    return best, answer


def ours(path, engine):
    index = SearchIndex(Library.load(), engine)
    return timed(lambda: diagnose([path], index=index))


def read_only(path):
    def action():
        buffer = bytearray(1 << 20)
        with path.open("rb", buffering=0) as stream:
            while stream.readinto(buffer):
                pass

    return timed(action)[0]


def expressions():
    found = set(ANCHORS)
    for entry in Library.load().entries.values():
        for signature in entry.signatures:
            found.update(signature.anchors or anchors_of(signature.match))
    return sorted(found)


def piece(path, folder, megabytes):
    part = folder / f"piece{megabytes}.log"
    with path.open("rb") as stream:
        part.write_bytes(stream.read(int(megabytes * 1_000_000)))
    return part


def grep(part, folder, anchors):
    patterns = folder / "patterns.txt"
    patterns.write_text("\n".join(re.sub(r"([\\^$.|?*+()\[\]{}])", r"\\\1", anchor) for anchor in anchors))
    command = ["grep", "-c", "-E", "-f", str(patterns), str(part)]
    return timed(lambda: subprocess.run(command, capture_output=True, check=False, env={"LC_ALL": "C"}), repeats=1)[0]


def line_by_line(part, anchors):
    expression = re.compile("|".join(map(re.escape, anchors)))

    def action():
        with part.open(encoding="utf-8", errors="replace") as stream:
            return sum(1 for line in stream if expression.search(line))

    return timed(action, repeats=1)[0]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("megabytes", nargs="?", type=int, default=2000)
    parser.add_argument("--quick", action="store_true", help="the smallest sizes, to see that it runs; no goal decides")
    options = parser.parse_args()
    megabytes, piece_mb, small_mb = (1, 1, 0.05) if options.quick else (options.megabytes, 100, 4)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "run.log"
        size = write_log(path, megabytes)
        anchors = expressions()
        print(f"{size / 1e6:.0f} MB, {len(anchors)} anchors")
        limit = size / read_only(path) / 1e6
        rows = {}
        for engine in ("hyperscan", "numpy"):
            spent, found = ours(path, engine)
            assert [cause.id for cause in found.root_causes] == ["torch-cuda-oom"], found.root_causes
            rows[f"rldbg doctor ({engine})"] = size / spent / 1e6
        part, small = piece(path, folder, piece_mb), piece(path, folder, small_mb)
        rows["grep -E, same anchors"] = piece_mb / grep(part, folder, anchors)
        rows["re, line by line, same anchors"] = small_mb / line_by_line(small, anchors)
        rows["limit: reading the file"] = limit
        fastest = rows["rldbg doctor (hyperscan)"]
        for label, speed in rows.items():
            print(f"{label:34} {speed:9.1f} MB/s   ours is {fastest / speed:8.2f} x")
        print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
