"""verl's batches as plain rows: jagged tensors, stacks of objects, metrics, and which sample a row is."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from rldbg.core import SampleId

_AGGREGATIONS = {
    "token-mean": ("token_mean", "batch_num_tokens"),
    "seq-mean-token-mean": ("sequence_mean", "global_batch_size"),
}


PADDING = "padding#"


def ids_of(data: Any) -> list[SampleId]:
    """(index in the data set and step, number of the rollout): verl's own uid is a new one in each run.

    Rows that verl adds to fill a batch have the index of a real sample, and a uid that says so.
    """
    index, session, step = (_objects(data[name]) for name in ("index", "session_id", "global_steps"))
    uids = _objects(data["uid"]) if "uid" in data.keys() else [""] * len(index)  # noqa: SIM118 - a TensorDict is no mapping
    return [
        SampleId(f"{PADDING}{s}" if str(uid).startswith("pad") else f"{i}#{s}", int(n))
        for i, n, s, uid in zip(index, session, step, uids, strict=True)
    ]


def rows_of(value: Any) -> list[np.ndarray]:
    """The rows of a tensor, jagged or not, on the host."""
    return [
        row.detach().cpu().float().numpy() if row.is_floating_point() else row.cpu().numpy() for row in value.unbind()
    ]


def padded(value: Any) -> Any:
    """[B, R] with zeros behind each row."""
    return value.to_padded_tensor(0) if getattr(value, "is_nested", False) else value


def float_or_none(value: Any) -> float | None:
    """A metric as a number: verl's are numbers, tensors, lists of one, and objects that hold either."""
    value = value.aggregate() if hasattr(value, "aggregate") else value
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None


def loss_facts(loss_function: Any, data: Any) -> dict[str, Any]:
    """How one number is made of the loss of each token; all parts of a mini-batch share the denominator."""
    config = getattr(loss_function, "keywords", {}).get("config")
    mode = getattr(config, "loss_agg_mode", None)
    facts: dict[str, Any] = {} if mode is None else {"loss_agg_mode": mode}
    if mode in _AGGREGATIONS:
        name, total = _AGGREGATIONS[mode]
        whole = float_or_none(_scalar(data, total))
        facts["aggregation"] = name
        if whole:
            facts["denominator"] = whole
    return facts


def ranks_of(data: Any) -> float:
    """verl multiplies the loss of a rank by their number, because FSDP averages gradients over ranks."""
    return float_or_none(_scalar(data, "dp_size")) or 1.0


def _scalar(data: Any, name: str) -> Any:
    value = data[name] if name in data.keys() else None  # noqa: SIM118 - a TensorDict is no mapping
    return getattr(value, "data", value) if not isinstance(value, Mapping) else None


def _objects(column: Any) -> list[Any]:
    return list(column.tolist()) if hasattr(column, "tolist") else list(column)
