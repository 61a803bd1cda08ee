"""Advice that the form of the differences calls for, with the numbers: shapes, losses, tokenizers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rldbg.analysis.results import FieldResult
from rldbg.analysis.stages import Stage
from rldbg.core import Finding, Severity

_TOKENS = ("tokens", "input_tokens")
# Beyond this share of all tokens, different sampling is not the reason: the tokenizations differ.
_UNRELATED = 0.5
_OF_LOSSES = (
    "check that entropy_coeff is the same",
    "check the precision (FP16, BF16 or FP32)",
    "check that the seed is fixed",
    "record is_loss_debug on both sides: its intermediate values show where they diverge",
)


def advice(fields: Sequence[FieldResult], unaligned: Sequence[Finding]) -> Iterator[Finding]:
    """Whatever the cause is."""
    yield from _shapes(fields)
    yield from _losses(fields)
    yield from _tokenizers(fields, unaligned)


def _shapes(fields: Sequence[FieldResult]) -> Iterator[Finding]:
    found = [(field, note) for field in fields for note in sorted(field.notes) if "differ" in note]
    if found:
        shown = tuple(f"{field.kind}.{field.field}: {note}" for field, note in found[:5])
        yield Finding(
            "shape-mismatch",
            Severity.WARNING,
            ", ".join(dict.fromkeys(field.kind for field, _ in found)),
            shown,
            "sequences or tensors do not have the same lengths on both sides",
            ("check that both sides use the same padding", "check max_length on both sides"),
        )


def _losses(fields: Sequence[FieldResult]) -> Iterator[Finding]:
    different = [field for field in fields if not field.equal]
    losses = [field for field in different if field.stage is Stage.LOSS and field.field != "presence"]
    if not losses:
        return
    first = min((field.stage for field in different), key=lambda stage: stage.order)
    look = (f"look at stage {first.value} first: what differs there changes losses",)
    yield Finding(
        "loss-difference",
        Severity.WARNING,
        "loss",
        tuple(f"{field.kind}.{field.field}: largest {field.measured.max_abs:.3g}" for field in losses[:5]),
        "the losses differ by more than rounding",
        _OF_LOSSES if first is Stage.LOSS else look,
    )


def _tokenizers(fields: Sequence[FieldResult], unaligned: Sequence[Finding]) -> Iterator[Finding]:
    for field in fields:
        share = field.measured.beyond / max(1, field.measured.compared)
        if field.field in _TOKENS and not field.equal and share > _UNRELATED:
            yield _other_tokens(f"{share:.0%} of the tokens of samples with the same id differ")
            return
    paired = any(field.field in _TOKENS for field in fields)
    sides = {side for finding in unaligned for side in ("A", "B") if f"only in {side}" in finding.evidence[0]}
    if not paired and len(sides) == 2 and any(field.stage is Stage.TRAJECTORY for field in fields):
        yield _other_tokens("no prompt occurs on both sides")


def _other_tokens(evidence: str) -> Finding:
    return Finding(
        "tokenizers-differ",
        Severity.ERROR,
        "trajectory",
        (evidence,),
        "the two sides used different tokenizers, chat templates or data: their tokens cannot be compared one by one",
        (
            "compare model.path and the tokenizer of both runs (stage config)",
            "replay one run's trajectories in the other run",
        ),
    )
