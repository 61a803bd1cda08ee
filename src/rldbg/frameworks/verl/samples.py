"""verl's batches as plain rows: jagged tensors, stacks of objects, metrics, and which sample a row is."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rldbg.core import SampleId
from rldbg.frameworks.verl.turns import OUTPUT, TURNS

_AGGREGATIONS = {
    "token-mean": ("token_mean", "batch_num_tokens"),
    "seq-mean-token-mean": ("sequence_mean", "global_batch_size"),
}


PADDING = "padding#"


def ids_of(data: Any) -> list[SampleId]:
    """(index in the data set and step, number of the rollout): verl's own uid is a new one in each run.

    Of a rollout that gives several sequences the last is named so; the earlier ones, whose prompts are their own, are a
    group named after it. Rows that verl adds to fill a batch have the index of a real sample, and a uid that says so.
    """
    index, session, step = (_objects(data[name]) for name in ("index", "session_id", "global_steps"))
    names = data.keys()
    uids = _objects(data["uid"]) if "uid" in names else [""] * len(index)
    held = _objects(data["extra_fields"]) if "extra_fields" in names else [None] * len(index)
    found = []
    for i, n, s, uid, extra in zip(index, session, step, uids, held, strict=True):
        sample = SampleId(f"{PADDING}{s}" if str(uid).startswith("pad") else f"{i}#{s}", int(n))
        output, outputs = _output_of(extra)
        found.append(sample if output == outputs - 1 else SampleId(str(sample), output))
    return found


def columns_of(samples: Sequence[SampleId]) -> dict[str, list[Any]]:
    """The columns that `ids_of` reads, for a batch of these samples."""
    columns: dict[str, list[Any]] = {name: [] for name in ("index", "global_steps", "session_id", "extra_fields")}
    for sample in samples:
        index, place = sample.group_id.rsplit("#", 1)
        step, _, session = place.partition("/")
        extra = {OUTPUT: [sample.run_id, sample.run_id + 2]} if session else {}
        values = (index, int(step), int(session) if session else sample.run_id, extra)
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
    return columns


def _output_of(extra: Any) -> tuple[int, int]:
    """Which of how many sequences of its rollout a row is."""
    number, count = extra.get(OUTPUT, (0, 1)) if isinstance(extra, Mapping) else (0, 1)
    return int(number), int(count)


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


def numbers_of(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that are numbers."""
    return {name: found for name, value in metrics.items() if (found := float_or_none(value)) is not None}


def extras_of(data: Any, row: int) -> dict[str, Any]:
    """What verl knows of a sample in addition to its tokens: its turns, and the result of the reward function."""
    names = data.keys()
    extra: dict[str, Any] = {}
    if "num_turns" in names:
        extra["num_turns"] = int(_objects(data["num_turns"])[row])
    held = _objects(data["extra_fields"])[row] if "extra_fields" in names else None
    if not isinstance(held, Mapping):
        return extra
    output, outputs = _output_of(held)
    if outputs > 1:
        extra |= {"output": output, "outputs": outputs}
    if held.get(TURNS):
        extra["turns"] = list(held[TURNS])
    if given := held.get("reward_extra_info"):
        said = {str(name): item.item() if hasattr(item, "item") else item for name, item in given.items()}
        extra["rewards"] = {name: item for name, item in said.items() if isinstance(item, bool | int | float | str)}
    return extra


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
