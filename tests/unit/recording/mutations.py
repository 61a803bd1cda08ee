"""Valid files of every format, damaged at random, given to their readers. Run: mutations.py DIR SEED COUNT.

Each file must be read or refused with IncompleteDataError. Anything else (another exception, a crash, more than two
GiB of memory, more than ten seconds) ends the program with the seed of the case, which reproduces it:
mutations.py DIR SEED 1.
"""

import faulthandler
import gc
import io
import random
import resource
import signal
import sys
import zipfile
from pathlib import Path

import numpy as np

from rldbg.core import IncompleteDataError
from rldbg.recording.formats import native
from rldbg.recording.formats.jsonl_file import load_jsonl
from rldbg.recording.formats.nexrl_dict import from_dict
from rldbg.recording.formats.pt_reader import Opaque, load_pickle, load_pt, verify_pt
from rldbg.recording.formats.safetensors_file import open_tensors
from rldbg.recording.records import EncodedArray, Ragged, Record

LIMIT_BYTES = 2 << 30
LIMIT_S = 10
INTERESTING = (0, 1, 0x7F, 0x80, 0xFF, *b'](etaKMJGRbcQq.r\x85\x93\x94\x81{}[":,-9e')


def mutated(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """One to four kinds of damage: cut off, flipped, overwritten, removed, repeated, spliced, wrong numbers."""
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        kind = rng.randrange(9)
        at = rng.randrange(len(damaged) + 1)
        length = min(rng.choice((1, 1, 2, 4, 8, 64)), len(damaged) - at)
        if kind == 0:
            del damaged[at:]
        elif kind == 1 and length:
            damaged[at] ^= 1 << rng.randrange(8)
        elif kind == 2 and length:
            damaged[at] = rng.choice(INTERESTING)
        elif kind == 3:
            del damaged[at : at + length]
        elif kind == 4:
            damaged[at:at] = damaged[at : at + length] * rng.choice((1, 2, 50))
        elif kind == 5:
            damaged[at : at + length] = rng.randbytes(length)
        elif kind == 6:
            start = rng.randrange(len(other))
            damaged[at : at + length] = other[start : start + rng.choice((1, 8, 64))]
        elif kind == 7 and len(damaged) - at >= 8:
            value = rng.choice((0, 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, len(data), rng.randrange(2**16)))
            width = rng.choice((2, 4, 8))
            damaged[at : at + width] = (value % 2 ** (8 * width)).to_bytes(width, rng.choice(("little", "big")))
        elif kind == 8:
            damaged[at:at] = bytes(rng.choice(INTERESTING) for _ in range(length))
    return bytes(damaged)


def damaged_inside(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """A .pt file whose pickle is damaged but whose zip is whole, so that damage is not stopped by checksums."""
    source = zipfile.ZipFile(io.BytesIO(data))
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name in source.namelist():
            content = source.read(name)
            is_hit = name.endswith("data.pkl") or rng.random() < 0.1
            archive.writestr(name, mutated(content, other, rng) if is_hit else content)
    return target.getvalue()


def touched(value: object) -> float:
    """Every number of a result read once: a view that lies outside its file would crash here."""
    if isinstance(value, Record):
        return touched(dict(value.fields)) + touched(value.samples)
    if isinstance(value, EncodedArray):
        return touched(value.bits)
    if isinstance(value, Ragged):
        return touched(value.values) + float(value.offsets.sum()) + len(list(map(len, value)))
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return sum(touched(item) for item in value.reshape(-1))
        return float(np.count_nonzero(value)) if value.dtype.kind in "biufc" else float(value.size)
    if isinstance(value, Opaque):
        return touched([value.args, value.kwargs, value.state, value.items, value.entries])
    if isinstance(value, dict):
        return sum(touched(key) + touched(item) for key, item in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return sum(touched(item) for item in value)
    return 1.0


def read(path: Path, kind: str) -> object:
    """By what the file's name says it is; every reader that could be asked for such a file."""
    suffix = path.suffix
    if suffix == ".pickle":
        return [load_pickle(path), load_pickle(path, arrays=True)]
    if suffix == ".safetensors":
        file = native.decode(path) if kind != "plain" else None
        return [open_tensors(path)[1], *(map(file.read, range(len(file.keys))) if file is not None else ())]
    if suffix == ".jsonl":
        return from_dict(kind, load_jsonl(path), source=str(path))
    verify_pt(path)
    loaded = [load_pt(path), load_pt(path, arrays=True)]
    if kind != "plain":
        loaded += [from_dict(kind, item, source=str(path)) for item in loaded]
    return loaded


def run_case(folder: Path, seed: int, work: Path) -> str:
    """One damaged file; what became of it."""
    rng = random.Random(seed)
    sources = sorted(folder.glob("*"))
    source, other = rng.choice(sources), rng.choice(sources)
    damage = damaged_inside if source.suffix == ".pt" and rng.random() < 0.6 else mutated
    path = work / f"case{source.suffix}"
    path.write_bytes(damage(source.read_bytes(), other.read_bytes(), rng))
    try:
        touched(read(path, source.name.partition("-")[0]))
    except IncompleteDataError as error:
        assert path.name in error.message and error.hint and "Traceback" not in error.message, error.message
        return "refused"
    return "read"


def main(folder: Path, seed: int, count: int) -> None:
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    work = folder.parent / f"work-{seed}"
    work.mkdir(exist_ok=True)
    counts = {"read": 0, "refused": 0}
    for case in range(seed, seed + count):
        sys.stderr.write(f"\r{case}")  # the last one written is the one that crashed
        signal.alarm(LIMIT_S)
        counts[run_case(folder, case, work)] += 1
        if case % 500 == 0:
            gc.collect()
    signal.alarm(0)
    sys.stdout.write(f"{counts['read']} {counts['refused']}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
