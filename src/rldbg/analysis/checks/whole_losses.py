"""The loss of each micro-batch against its log probs, advantages and mask, where the terms of the loss were not
recorded.

How tokens are reduced to one loss, where the ratio is clipped and what the sum is divided by is not recorded either. So
a step holds if one rule of those in use explains all of its micro-batches, up to one factor for all of them; and it is
violated if every rule agrees on a sign that the policy's losses do not have, or if whole losses, which may have terms
of entropy and KL, are what a rule gives with the wrong sign. Anything else is not decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from rldbg.analysis.checks.base import NotApplicable, StepView, Violation
from rldbg.recording import Record

_CLIPS = ((np.inf, np.inf), (0.2, 0.2), (0.2, 0.28), (0.1, 0.1), (0.3, 0.3))
_SLACK = 1e-3
_LOSSES = ("pg_loss", "loss")
_Cell = tuple[int, int, int, int]


def losses_follow_tokens(view: StepView, lacking: str) -> Iterable[Violation]:
    losses = {_cell(record): record for record in view.side.records("loss", view.step)}
    cells: list[tuple[_Cell, float, list[float]]] = []
    names = set()
    for record in view.side.records("forward_data", view.step):
        loss = losses.get(_cell(record))
        name = next((item for item in _LOSSES if loss is not None and item in loss.fields), None)
        terms = _terms(view, record)
        if loss is not None and name is not None and terms is not None:
            cells.append((_cell(record), float(loss.array(name).reshape(-1)[0]), list(_reduced(*terms))))
            names.add(name)
    if not cells:
        raise NotApplicable(lacking or "no is_loss_debug, and no losses with log probs, old log probs and advantages")
    given = np.array([loss for _, loss, _ in cells])
    expected = np.array([values for *_, values in cells])
    if any(_fits(given, column) for column in expected.T):
        return
    by_policy = names == {"pg_loss"} and all(
        loss * value < 0 and abs(value) > _SLACK for _, loss, values in cells for value in values
    )
    reversed_rule = next((n for n, column in enumerate(expected.T) if _fits(-given, column)), 0 if by_policy else None)
    # What rounding leaves of terms that cancel has any sign.
    if reversed_rule is None or np.abs(given).max() <= _SLACK:
        raise NotApplicable(
            "losses that none of the usual reductions explains, and no elementwise_loss in is_loss_debug"
        )
    (rank, micro, _, _), given_loss, values = cells[int(np.argmax(np.abs(given)))]
    yield Violation(
        f"step {view.step} rank {rank} micro {micro}",
        (
            "the loss does not have the sign of -ratio * advantage",
            f"it is {given_loss:.6g}; the terms give {values[reversed_rule]:.6g}",
        ),
    )


def _cell(record: Record) -> _Cell:
    key = record.key
    return key.rank, key.micro, key.epoch, key.mini_batch


def _terms(view: StepView, record: Record) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]] | None:
    """Ratios, advantages and log probs of the trained tokens of each sample; None if any is not known."""
    if "log_probs" not in record.fields or not record.samples:
        return None
    ratios, advantages, new = [], [], []
    for sample, log_probs in zip(record.samples, record.rows("log_probs"), strict=False):
        known = view.samples.get(sample)
        old = None if known is None else known.quantities.get("old_log_probs")
        if known is None or old is None or sample not in view.advantages:
            return None
        mask = np.asarray(known.loss_mask)[known.prompt_length :] != 0
        length = min(len(mask), len(log_probs), len(old.values))
        gap = np.asarray(log_probs, np.float64)[:length] - np.asarray(old.values, np.float64)[:length]
        new.append(np.asarray(log_probs, np.float64)[:length][mask[:length]])
        ratios.append(np.exp(gap)[mask[:length]])
        of_tokens, count = known.trained("advantages"), len(ratios[-1])
        # With a critic each token has its own.
        has_each = of_tokens is not None and len(of_tokens[0]) == count
        advantages.append(of_tokens[0] if of_tokens and has_each else np.full(count, view.advantages[sample]))
    return ratios, advantages, new


def _reduced(ratios: list[np.ndarray], advantages: list[np.ndarray], log_probs: list[np.ndarray]) -> Iterator[float]:
    """The loss by every rule: three reductions of the tokens for each clip, and for REINFORCE, which has no ratio."""
    by_token = [
        [
            np.maximum(-ratio * value, -np.clip(ratio, 1 - low, 1 + high) * value)
            for ratio, value in zip(ratios, advantages, strict=True)
        ]
        for low, high in _CLIPS
    ]
    by_token.append([-new * value for new, value in zip(log_probs, advantages, strict=True)])
    for every in by_token:
        rows = [row for row in every if row.size]
        tokens = sum(row.size for row in rows)
        yield sum(float(row.sum()) for row in rows) / max(tokens, 1)
        yield sum(float(row.mean()) for row in rows) / max(len(rows), 1)
        yield sum(float(row.sum()) for row in rows) / max(len(rows), 1)


def _fits(given: np.ndarray, expected: np.ndarray) -> bool:
    """Equal up to one positive factor; a single micro-batch has to be equal itself."""
    size = float(np.abs(expected).max(initial=0.0))
    if np.abs(given - expected).max(initial=0.0) <= _SLACK * max(size, 1e-2):
        return True
    product = float(given @ expected)
    if len(given) < 2 or product <= 0:
        return False
    factor = product / float(expected @ expected)
    return float(np.abs(given - factor * expected).max()) <= _SLACK * max(factor * size, 1e-6)
