"""What prime-rl's orchestrator sent to its trainers: rollouts/step_<N>/rank_<R>.bin, a MessagePack list.

Each item is a micro-batch: a list of fields in a fixed order, those at the end left out when they are absent. Its
sequences lie one behind the other; the last one includes the padding, which is not trained on.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rldbg.recording.formats.malformed import Malformed

_FIELDS = (
    *("input_ids", "loss_mask", "advantages", "inference_logprobs", "position_ids", "sequence_lengths"),
    *("temperatures", "env_names", "seq_lens", "ref_logprobs", "routed_experts", "mm_kwargs", "mm_token_type_ids"),
    *("rl_weights", "ce_weights", "ref_kl_weights"),
)
_FEWEST = _FIELDS.index("seq_lens") + 1
_MOST = 65_536
"""More micro-batches than any step has: a file that claims them is another one."""
_PER_TOKEN = {
    "input_ids": "token_ids",
    "loss_mask": "loss_mask",
    "advantages": "advantages",
    "inference_logprobs": "inference_logprobs",
    "position_ids": "position_ids",
    "temperatures": "temperatures",
    "ref_logprobs": "ref_logprobs",
    "rl_weights": "rl_weights",
    "ce_weights": "ce_weights",
    "ref_kl_weights": "ref_kl_weights",
}
"""prime-rl's name in a micro-batch: its name in a token export."""


def micro_batches(start: bytes) -> int:
    """How many micro-batches a file says it has, from its first bytes; 0 when it is not such a file."""
    outer, rest = _list_size(start)
    inner, _ = _list_size(rest)
    return outer if _FEWEST <= inner <= 2 * len(_FIELDS) and outer <= _MOST else 0


def _list_size(start: bytes) -> tuple[int, bytes]:
    if start[:1] and 0x90 <= start[0] <= 0x9F:
        return start[0] & 0x0F, start[1:]
    width = {0xDC: 2, 0xDD: 4}.get(start[0] if start else 0, 0)
    return int.from_bytes(start[1 : 1 + width], "big"), start[1 + width :]


def sequences(content: Any, micro: int) -> list[dict[str, Any]]:
    """The sequences of one micro-batch, each with the names that a token export has."""
    if not isinstance(content, list) or micro >= len(content):
        raise Malformed(f"no micro-batch {micro}")
    before = sum(len(_lengths(batch)) for batch in content[:micro])
    batch, lengths = _named(content[micro]), _lengths(content[micro])
    ends = np.cumsum(lengths, dtype=np.int64)
    tokens = len(batch["input_ids"])
    if len(ends) and ends[-1] != tokens:
        raise Malformed(f"sequences of {int(ends[-1])} tokens in a micro-batch of {tokens}")
    return [
        _sequence(batch, slice(int(end) - length, int(end)), number) | {"export_sequence_idx": before + number}
        for number, (end, length) in enumerate(zip(ends, lengths, strict=True))
    ]


def _named(batch: Any) -> dict[str, Any]:
    if not isinstance(batch, list) or len(batch) < _FEWEST:
        raise Malformed("a micro-batch lacks fields")
    return dict(zip(_FIELDS, batch, strict=False))


def _lengths(batch: Any) -> Sequence[int]:
    lengths = _named(batch)["sequence_lengths"]
    if not isinstance(lengths, list) or not all(isinstance(length, int) and length >= 0 for length in lengths):
        raise Malformed("a micro-batch has no lengths of its sequences")
    return lengths


def _sequence(batch: Mapping[str, Any], place: slice, number: int) -> dict[str, Any]:
    tokens = len(batch["input_ids"])
    columns = {theirs: batch.get(name) for name, theirs in _PER_TOKEN.items()}
    row: dict[str, Any] = {
        name: values[place]
        for name, values in columns.items()
        if isinstance(values, list | np.ndarray) and len(values) == tokens
    }
    names = batch["env_names"] if isinstance(batch["env_names"], list) else []
    at = place.start if len(names) == tokens else number
    return row | {"env_name": names[at] if at < len(names) else None}
