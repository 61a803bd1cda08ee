"""Makes the golden recordings: what version 1 of the format wrote, to be read by every later version.

.venv/bin/python tests/golden/make.py v1     only for a new version of the format; never to mend a failing test
"""

import json
import sys
from pathlib import Path

import numpy as np

import rldbg

HERE = Path(__file__).parent
FORMATS = ("safetensors", "pt", "jsonl")


def write(root: Path, file_format: str) -> None:
    """Two steps of two ranks and two micro-batches: dense, ragged and data fields, NaN and Inf, bfloat16 bits."""
    for rank in range(2):
        identity = rldbg.Identity(
            role="policy", rank=rank, world_size=2, coordinates={"dp": rank}, host="golden", pid=rank + 1
        )
        with rldbg.Recorder(root, identity=identity, format=file_format) as recorder:
            for step in range(2):
                write_step(recorder, step, rank)


def write_step(recorder: rldbg.Recorder, step: int, rank: int) -> None:
    rng = np.random.default_rng(10 * step + rank)
    if rank == 0:
        samples = [(f"g{group}", run) for group in range(4) for run in range(2)]
        tokens = [rng.integers(0, 50, 4 + number).tolist() for number in range(8)]
        recorder.record(
            "trajectory",
            step=step,
            policy_version=step,
            samples=samples,
            tokens=tokens,
            loss_mask=[[0] * 2 + [1] * (len(row) - 2) for row in tokens],
            reward=[float(number % 2) for number in range(8)],
            is_val=[False] * 8,
            logprobs=[[0.0, 0.0, *(-rng.random(len(row) - 2)).astype(np.float32).tolist()] for row in tokens],
        )
    for micro in range(2):
        samples = [(f"g{2 * rank + micro}", run) for run in range(2)]
        log_probs = -rng.random((2, 5), dtype=np.float32)
        log_probs[0, 4], log_probs[1, 3] = np.nan, -np.inf
        recorder.record(
            "forward_data",
            step=step,
            micro=micro,
            samples=samples,
            log_probs=log_probs,
            entropy=-log_probs,
            response_mask=np.array([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]]),
        )
        recorder.record(
            "loss", step=step, micro=micro, samples=samples, loss=0.5 + micro, pg_loss=0.5, entropy_loss=float("nan")
        )


def contents(recording: rldbg.Recording) -> dict[str, object]:
    """Every value of a recording as JSON, NaN and Inf as text."""
    return {
        str(record.key): _plain({"samples": list(map(str, record.samples)), **record.fields})
        for record in recording.records()
    }


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if hasattr(value, "offsets"):
        return [_plain(row) for row in value]
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value


if __name__ == "__main__":
    version = HERE / sys.argv[1]
    for file_format in FORMATS:
        write(version / file_format, file_format)
        found = contents(rldbg.open(version / file_format))
        (version / file_format / "index.json").unlink(missing_ok=True)
    # One record per line; the test reads it from every format.
    lines = (f"{json.dumps(key)}: {json.dumps(values)}" for key, values in found.items())
    (version / "contents.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
