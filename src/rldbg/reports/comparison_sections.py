"""The JSON report of the NexRL document: `sections`, in its shape and under its names, beside rldbg's own result.

Numbers are those of the document's script. Where that looks at five trajectories and at the ranks it was told of, this
covers all of them; old log probs, which one side has for the whole step, are compared with each micro-batch's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rldbg.recording import Record, Recording

# The document's own limits.
_ATOL, _RTOL = 1e-5, 1e-4
_PART = 1 << 13
_FORWARD = ("log_probs", "entropy", "response_mask")
_LOSSES = ("loss", "pg_loss", "entropy_loss")
_IS_LOSS = ("log_probs", "old_log_probs", "advantages", "prob_ratio", "elementwise_loss", "effective_valid")
_TOKENS = "input_tokens"
_Cell = tuple[int, int]


def document_report(
    sides: Mapping[str, Recording],
    directories: Mapping[str, str | None],
    step: int,
    *,
    num_ranks: int | None,
    num_micros: int | None,
) -> dict[str, Any]:
    base, remote, weaver = (_Dump(sides.get(name), step) for name in directories)
    cells = sorted(
        cell
        for cell in base.cells() | weaver.cells()
        if (num_ranks is None or cell[0] < num_ranks) and (num_micros is None or cell[1] < num_micros)
    )
    self_hosted, remote_api, service = directories.values()
    return {
        "self_hosted_dir": self_hosted,
        "remote_api_dir": remote_api,
        "weaver_dir": service,
        "num_ranks": len({rank for rank, _ in cells}),
        "num_micros": len({micro for _, micro in cells}),
        "sections": [
            _trajectories(base, remote),
            _by_cell("forward_data", cells, base, weaver, _FORWARD),
            _by_cell("loss_data", cells, base, weaver, _LOSSES),
            _is_loss_debug(cells, base, weaver),
            _datums(remote),
        ],
    }


def datums_section(remote: Recording | None, step: int) -> dict[str, Any]:
    """The only section that the report in the terminal shows beside our own result."""
    return _datums(_Dump(remote, step))


class _Dump:
    """The records of one side at one step, each read when it is needed; nothing if there is no such side."""

    def __init__(self, recording: Recording | None, step: int) -> None:
        self._recording, self._step = recording, step

    def has(self, kind: str) -> bool:
        return self._recording is not None and bool(self._recording.entries(kind, self._step))

    def records(self, kind: str) -> list[Record]:
        return [] if self._recording is None else list(self._recording.records(kind, self._step))

    def cells(self) -> set[_Cell]:
        kinds = ("forward_data", "loss", "is_loss_debug")
        entries = [] if self._recording is None else [self._recording.entries(kind, self._step) for kind in kinds]
        return {(entry.rank, entry.micro) for found in entries for entry in found}

    def cell(self, kind: str, cell: _Cell) -> dict[str, Any]:
        """The fields of a micro-batch; empty if it has none."""
        record = None if self._recording is None else next(self._recording.records(kind, self._step, *cell), None)
        return {name: record.array(name) for name in record.fields} if record else {}


def _trajectories(base: _Dump, remote: _Dump) -> dict[str, Any]:
    section: dict[str, Any] = {"section": "trajectories"}
    kind = "prepared_trajectories" if remote.has("prepared_trajectories") else "trajectory"
    if not base.has("trajectory") or not remote.has(kind):
        return section | {"status": "remote_api_not_found" if base.has("trajectory") else "self_hosted_not_found"}
    ours, theirs = _samples(base.records("trajectory")), _samples(remote.records(kind))
    section |= {"sh_num_trajectories": len(ours), "ra_num_trajectories": len(theirs)}
    if len(ours) != len(theirs):
        return section | {"status": "count_mismatch"}
    section["trajectory_comparisons"] = [
        {
            "index": index,
            "tokens_match": np.array_equal(one[0], other[0]),
            "sh_tokens_len": len(one[0]),
            "ra_tokens_len": len(other[0]),
            "loss_mask_match": np.array_equal(one[1], other[1]),
            "sh_reward": float(one[2]),
            "ra_reward": float(other[2]),
        }
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True))
    ]
    return section | {"status": "compared"}


def _samples(records: Sequence[Record]) -> list[tuple[Any, Any, Any]]:
    """Tokens, mask and reward of each sample."""
    columns = ([record.rows(name) for name in ("tokens", "loss_mask", "reward")] for record in records)
    return [row for column in columns for row in zip(*column, strict=True)]


def _by_cell(name: str, cells: Sequence[_Cell], base: _Dump, weaver: _Dump, fields: Sequence[str]) -> dict[str, Any]:
    kind = "loss" if name == "loss_data" else name
    compared = _scalars if kind == "loss" else _tensors
    parts = []
    for cell in cells:
        left, right = base.cell(kind, cell), weaver.cell(kind, cell)
        part = {"section": name, **_status(left, right, "weaver_not_found")}
        if left and right:
            part["comparisons"] = [compared(field, left.get(field), right.get(field)) for field in fields]
        parts.append(part | {"rank": cell[0], "micro": cell[1]})
    return {"section": f"{name}_all", "comparisons": parts}


def _is_loss_debug(cells: Sequence[_Cell], base: _Dump, weaver: _Dump) -> dict[str, Any]:
    old = [record.array("old_log_probs") for record in base.records("old_log_probs")]
    whole = old[0] if len(old) == 1 else None
    parts, start = [], 0
    for cell in cells:
        right = weaver.cell("is_loss_debug", cell)
        left = base.cell("is_loss_debug", cell) or base.cell("loss", cell)
        rows = len(right.get("old_log_probs", ()))
        if whole is not None and "old_log_probs" not in left:
            left = left | {"old_log_probs": whole[start : start + rows]}
        start += rows
        part = {"section": "is_loss_debug", **_status(left, right, "weaver_debug_not_found")}
        if left and right:
            part["comparisons"] = [_tensors(field, left.get(field), right.get(field)) for field in _IS_LOSS]
            part["comparisons"].append(_scalars("loss", left.get("loss"), right.get("loss")))
        parts.append(part | {"rank": cell[0], "micro": cell[1]})
    return {"section": "is_loss_debug_all", "comparisons": parts}


def _datums(remote: _Dump) -> dict[str, Any]:
    records = remote.records("datums")
    tokens = [list(record.rows(_TOKENS)) for record in records if _TOKENS in record.fields]
    if not tokens:
        return {"section": "datums_analysis", "status": "not_found"}
    inputs = [name for name in records[0].fields if name != _TOKENS]
    return {
        "section": "datums_analysis",
        "num_datums": sum(map(len, tokens)),
        "first_datum_keys": [_TOKENS, "loss_fn_inputs"],
        "loss_fn_inputs_keys": inputs,
        "input_tokens_len": len(tokens[0][0]) if tokens[0] else 0,
        "status": "analyzed",
    }


def _status(left: Any, right: Any, absent: str) -> dict[str, Any]:
    return {"status": "compared" if left and right else absent if left else "self_hosted_not_found"}


def _one_missing(name: str, left: Any, right: Any) -> dict[str, Any] | None:
    if left is not None and right is not None:
        return None
    if left is None and right is None:
        return {"name": name, "status": "both_none"}
    number, value = ("2", right) if left is None else ("1", left)
    known = {f"s{number}": float(value)} if np.ndim(value) == 0 else {f"t{number}_shape": list(np.shape(value))}
    return {"name": name, "status": "first_none" if left is None else "second_none"} | known


def _tensors(name: str, left: Any, right: Any) -> dict[str, Any]:
    missing = _one_missing(name, left, right)
    if missing is not None:
        return missing
    one, other = np.asarray(left), np.asarray(right)
    shapes = {"name": name, "t1_shape": list(one.shape), "t2_shape": list(other.shape)}
    if one.shape != other.shape:
        return shapes | {"status": "shape_mismatch"}
    # Most tensors of two good runs are equal: then one side's numbers are the other's.
    same = one.dtype == other.dtype and np.array_equal(one, other)
    a = _Spread(one.ravel())
    b = a if same else _Spread(other.ravel())
    result = shapes | {"status": "compared"} | _gaps(a, b)
    for label, spread in (("t1", a), ("t2", b)):
        result |= {f"{label}_{name}": value for name, value in spread.numbers().items()}
    if a.count > 1 and a.squares > 0 and b.squares > 0:
        product = a.squares if same else sum(float(x @ y) for x, y in zip(a.centred(), b.centred(), strict=True))
        result["correlation"] = product / math.sqrt(a.squares) / math.sqrt(b.squares)
    return result


def _gaps(a: _Spread, b: _Spread) -> dict[str, Any]:
    """How far the numbers of two tensors are apart."""
    largest, total, is_close = 0.0, 0.0, True
    for x, y in zip(a.doubles(), b.doubles(), strict=True) if a is not b else ():
        gap = np.abs(x - y)
        largest, total = float(np.maximum(largest, gap.max())), total + float(gap.sum())
        is_close = is_close and bool(((gap <= _ATOL + _RTOL * np.abs(y)) | (x == y)).all())
    return {"max_diff": largest, "mean_diff": total / max(a.count, 1), "is_close": is_close}


class _Spread:
    """Mean, deviation and limits of flat values, in double precision: part by part, because parts that fit the
    processor's cache need no memory of the system."""

    def __init__(self, values: np.ndarray) -> None:
        self._values, self.count = values, values.size
        self._mean = sum(float(part.sum()) for part in self.doubles()) / max(self.count, 1)
        self.squares = sum(float(part @ part) for part in self.centred())

    def doubles(self) -> Iterator[np.ndarray]:
        return (self._values[first : first + _PART].astype(np.float64) for first in range(0, self.count, _PART))

    def centred(self) -> Iterator[np.ndarray]:
        return (part - self._mean for part in self.doubles())

    def numbers(self) -> dict[str, float]:
        return {
            "mean": self._mean,
            "std": math.sqrt(self.squares / (self.count - 1)) if self.count > 1 else 0.0,
            "min": float(self._values.min()) if self.count else math.inf,
            "max": float(self._values.max()) if self.count else -math.inf,
        }


def _scalars(name: str, left: Any, right: Any) -> dict[str, Any]:
    missing = _one_missing(name, left, right)
    if missing is not None:
        return missing
    one, other = (float(np.asarray(value).reshape(-1)[0]) for value in (left, right))
    gap = abs(one - other)
    return {"name": name, "status": "compared", "s1": one, "s2": other, "diff": gap, "is_close": gap < _ATOL}
