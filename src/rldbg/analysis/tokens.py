"""All recorded values of the tokens of each sample at one step, on one axis: the position in the sequence.

Response-aligned values (column j of [B, R]) belong to the j-th token after the prompt; values of datums are shifted
by one, because a datum's targets are tokens[1:].
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from rldbg.analysis.side import Side
from rldbg.core import SampleId
from rldbg.recording import Record, RecordKey

_SEQUENCE_KINDS = ("trajectory", "prepared_trajectories")
RESPONSE_KINDS = ("old_log_probs", "forward_data", "is_loss_debug")


@dataclass(frozen=True, slots=True)
class Values:
    """One value per token, from position `start` of the sequence on, and the record they come from."""

    start: int
    values: np.ndarray
    source: RecordKey


@dataclass(slots=True)
class SampleTokens:
    """One sample: its tokens, mask, reward, and each per-token quantity by name (the first pass over it)."""

    sample: SampleId
    tokens: np.ndarray
    loss_mask: np.ndarray
    reward: float | None = None
    quantities: dict[str, Values] = field(default_factory=dict)
    prompt_length: int = field(init=False)
    _answers: list[np.ndarray] | None = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        trained = self.loss_mask != 0
        self.prompt_length = int(trained.argmax()) if trained.any() else len(self.tokens)

    @property
    def answers(self) -> list[np.ndarray]:
        """The runs of trained tokens. Kept: many hypotheses look at them."""
        if self._answers is None:
            trained = np.concatenate([[False], self.loss_mask != 0, [False]])
            edges = np.flatnonzero(trained[1:] != trained[:-1]).tolist()
            self._answers = [self.tokens[start:stop] for start, stop in zip(edges[::2], edges[1::2], strict=True)]
        return self._answers

    def trained(self, *names: str) -> tuple[np.ndarray, ...] | None:
        """The named quantities where a token is trained on and all of them cover it, then those positions."""
        held = [found for name in names if (found := self.quantities.get(name)) is not None]
        if len(held) < len(names):
            return None
        start = max(item.start for item in held)
        end = min([len(self.tokens), *(item.start + len(item.values) for item in held)])
        positions = np.flatnonzero(self.loss_mask[:end])
        positions = positions[positions >= start]
        return (*(item.values[positions - item.start] for item in held), positions)

    def of_rollout_and_trainer(self) -> tuple[np.ndarray, ...] | None:
        """Log probs of the engine and of the trainer's earliest recorded pass over the same tokens, and where."""
        return self.trained("rollout_log_probs", "old_log_probs") or self.trained("rollout_log_probs", "log_probs")


def read_tokens(side: Side, step: int, update: tuple[int, int] | None = None) -> dict[SampleId, SampleTokens]:
    """Every sample of a step with what is known of its tokens. Later epochs and mini-batches do not hide the first.

    With `update`, an (epoch, mini-batch), what passes over samples say is that optimizer step's.
    """
    table: dict[SampleId, SampleTokens] = {}
    for kind in _SEQUENCE_KINDS:
        for record in side.records(kind, step):
            _add_sequences(table, record)
    for record in side.records("datums", step):
        _add_datums(table, record)
    for kind in RESPONSE_KINDS:
        for record in side.records(kind, step):
            if update is None or kind == "old_log_probs" or (record.key.epoch, record.key.mini_batch) == update:
                _add_responses(table, record)
    return table


def _rows(record: Record, name: str) -> Iterator[tuple[SampleId, np.ndarray]]:
    return zip(record.samples, record.rows(name), strict=False)


def _add_sequences(table: dict[SampleId, SampleTokens], record: Record) -> None:
    if "tokens" not in record.fields or "loss_mask" not in record.fields:
        return
    masks = list(record.rows("loss_mask"))
    rewards = record.array("reward") if "reward" in record.fields else None
    for row, (sample, tokens) in enumerate(_rows(record, "tokens")):
        known = table.setdefault(sample, SampleTokens(sample, np.asarray(tokens), np.asarray(masks[row])))
        if rewards is not None and known.reward is None:
            # Lists are doubles of what tensors hold in single precision: one number for both.
            known.reward = float(np.float32(rewards[row]))
    for field_name, quantity in (
        ("logprobs", "rollout_log_probs"),
        ("advantages", "advantages"),
        ("policy_versions", "policy_versions"),
        ("values", "values"),
        ("returns", "returns"),
    ):
        if field_name in record.fields:
            for sample, values in _rows(record, field_name):
                known = table[sample]
                # One value per sample, as GRPO's advantages often are, holds for all of its trained tokens.
                per_token = np.where(known.loss_mask != 0, values, 0) if np.ndim(values) == 0 else np.asarray(values)
                if per_token.shape == known.tokens.shape:
                    known.quantities.setdefault(quantity, Values(0, per_token, record.key))
                    if quantity == "policy_versions" and not known.loss_mask.any() and (per_token >= 0).any():
                        # Nothing is trained on: the tokens that a policy made say where the prompt ends.
                        known.prompt_length = int((per_token >= 0).argmax())


def _add_datums(table: dict[SampleId, SampleTokens], record: Record) -> None:
    for field_name, quantity in (("logprobs", "rollout_log_probs"), ("advantages", "advantages")):
        if field_name not in record.fields:
            continue
        for sample, values in _rows(record, field_name):
            if sample in table:
                table[sample].quantities.setdefault(quantity, Values(1, np.asarray(values), record.key))


def _add_responses(table: dict[SampleId, SampleTokens], record: Record) -> None:
    for name in (
        "log_probs",
        "entropy",
        "old_log_probs",
        "ref_log_probs",
        "advantages",
        "prob_ratio",
        "elementwise_loss",
    ):
        if name not in record.fields:
            continue
        for sample, values in _rows(record, name):
            if sample in table:
                known = table[sample]
                start = known.prompt_length
                known.quantities.setdefault(
                    name, Values(start, np.asarray(values)[: len(known.tokens) - start], record.key)
                )
