"""The JSON report of the NexRL document: `sections`, in its shape and under its names, beside rldbg's own result.

Numbers are those of the document's script. Where that looks at five trajectories and at the ranks it was told of, this
covers all of them; old log probs, which one side has for the whole step, are held against each micro-batch's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rldbg.recording import Record, Recording

# The document's own limits.
_ATOL, _RTOL = 1e-5, 1e-4
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


class _Dump:
    """The records of one side at one step; nothing if there is no such side."""

    def __init__(self, recording: Recording | None, step: int) -> None:
        self._records: dict[str, list[Record]] = {}
        self._recording, self._step = recording, step

    def records(self, kind: str) -> list[Record]:
        if kind not in self._records:
            found = () if self._recording is None else self._recording.records(kind, self._step)
            self._records[kind] = list(found)
        return self._records[kind]

    def cells(self) -> set[_Cell]:
        kinds = ("forward_data", "loss", "is_loss_debug")
        return {(record.key.rank, record.key.micro) for kind in kinds for record in self.records(kind)}

    def cell(self, kind: str, cell: _Cell) -> dict[str, Any]:
        """The fields of a micro-batch; empty if it has none."""
        found = [record for record in self.records(kind) if (record.key.rank, record.key.micro) == cell]
        return {name: found[0].array(name) for name in found[0].fields} if found else {}


def _trajectories(base: _Dump, remote: _Dump) -> dict[str, Any]:
    section: dict[str, Any] = {"section": "trajectories"}
    left = base.records("trajectory")
    right = remote.records("prepared_trajectories") or remote.records("trajectory")
    if not left or not right:
        return section | {"status": "remote_api_not_found" if left else "self_hosted_not_found"}
    ours, theirs = list(_samples(left)), list(_samples(right))
    section |= {"sh_num_trajectories": len(ours), "ra_num_trajectories": len(theirs)}
    if len(ours) != len(theirs):
        return section | {"status": "count_mismatch"}
    section["trajectory_comparisons"] = [
        {
            "index": index,
            "tokens_match": np.array_equal(one["tokens"], other["tokens"]),
            "sh_tokens_len": len(one["tokens"]),
            "ra_tokens_len": len(other["tokens"]),
            "loss_mask_match": np.array_equal(one["loss_mask"], other["loss_mask"]),
            "sh_reward": float(one["reward"]),
            "ra_reward": float(other["reward"]),
        }
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True))
    ]
    return section | {"status": "compared"}


def _samples(records: Sequence[Record]) -> Iterator[dict[str, Any]]:
    for record in records:
        columns = [record.rows(name) for name in ("tokens", "loss_mask", "reward")]
        for tokens, mask, reward in zip(*columns, strict=True):
            yield {"tokens": np.asarray(tokens), "loss_mask": np.asarray(mask), "reward": reward}


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
    a, b = one.ravel().astype(np.float64), other.ravel().astype(np.float64)
    gap = np.abs(a - b)
    result = shapes | {"status": "compared", "max_diff": float(gap.max(initial=0)), "mean_diff": _mean(gap)}
    for label, values in (("t1", a), ("t2", b)):
        result |= {
            f"{label}_mean": _mean(values),
            f"{label}_std": float(values.std(ddof=1)) if values.size > 1 else 0.0,
            f"{label}_min": float(values.min(initial=np.inf)),
            f"{label}_max": float(values.max(initial=-np.inf)),
        }
    result["is_close"] = bool(np.allclose(a, b, atol=_ATOL, rtol=_RTOL))
    if a.size > 1 and a.std() > 0 and b.std() > 0:
        result["correlation"] = float(np.corrcoef(a, b)[0, 1])
    return result


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else 0.0


def _scalars(name: str, left: Any, right: Any) -> dict[str, Any]:
    missing = _one_missing(name, left, right)
    if missing is not None:
        return missing
    one, other = (float(np.asarray(value).reshape(-1)[0]) for value in (left, right))
    gap = abs(one - other)
    return {"name": name, "status": "compared", "s1": one, "s2": other, "diff": gap, "is_close": gap < _ATOL}
