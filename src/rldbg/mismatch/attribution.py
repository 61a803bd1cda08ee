"""`explain_mismatch`: which cause accounts for what share of the gap between rollout and trainer.

Causes are tried one after the other, exact ones first. A cause that holds claims the tokens it explains; the next
causes see the rest. What no cause claims is reported as unexplained.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from rldbg.analysis import NOISE, Gap, Side, confined_to
from rldbg.core import Finding, IncompleteDataError, Severity
from rldbg.mismatch import input_causes, noise_causes, sampling_causes, value_causes, weight_causes
from rldbg.mismatch.claims import Claim, Unexplained
from rldbg.mismatch.metrics import MismatchMetrics, by_part, metrics_of
from rldbg.mismatch.token_table import TRAINER, TokenTable, table_of_pair, table_of_run
from rldbg.recording import Recording

_RULES = (*value_causes.RULES, *input_causes.RULES, *weight_causes.RULES, *sampling_causes.RULES, *noise_causes.RULES)
_TOKENS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class TokenProof:
    """A token that shows a cause: both log probs."""

    where: str
    rollout: float
    trainer: float


@dataclass(frozen=True, slots=True)
class MismatchCause:
    """What accounts for a share of the gap, and the tokens that show it."""

    id: str
    text: str
    share: float
    tokens: int
    proof: tuple[TokenProof, ...]
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MismatchReport:
    """The gap, its metrics, and its causes, the largest share first. Shares add up to 1 with `unexplained`."""

    title: str
    metrics: MismatchMetrics
    parts: dict[str, dict[str, MismatchMetrics]]
    causes: tuple[MismatchCause, ...]
    unexplained: MismatchCause | None
    findings: tuple[Finding, ...] = ()
    """Steps that could not be read; the rest is of the others."""

    @property
    def agrees(self) -> bool:
        """Whether rollout and trainer differ by rounding at most."""
        return not self.causes and self.unexplained is None

    def to_dict(self) -> dict[str, Any]:
        found = [finding.to_dict() for finding in self.findings]
        return {"verdict": "agree" if self.agrees else "differ", **asdict(self), "findings": found}


def explain_mismatch(
    trainer: Recording, rollout: Recording | None = None, *, steps: Iterable[int] | None = None
) -> MismatchReport:
    """Explains the gap of one run, or of the trainer of one recording and the rollout of another with the same
    samples. Steps that cannot be read are left out and reported, unless they are all."""
    try:
        return _explained(trainer, rollout, steps)
    except IncompleteDataError:
        recorded = Side(trainer, "A").steps()
        chosen = sorted(recorded if steps is None else recorded & set(steps))
        unreadable = {}
        for step in chosen:
            try:
                _explained(trainer, rollout, [step])
            except IncompleteDataError as error:
                unreadable[step] = _unreadable(step, error)
        if len(unreadable) in (0, len(chosen)):
            raise
        report = _explained(trainer, rollout, [step for step in chosen if step not in unreadable])
        return replace(report, findings=tuple(unreadable.values()))


def _explained(trainer: Recording, rollout: Recording | None, steps: Iterable[int] | None) -> MismatchReport:
    table = table_of_run(trainer, steps) if rollout is None else table_of_pair(trainer, rollout, steps)
    title = trainer.title if rollout is None else f"{trainer.title} and {rollout.title}"
    causes, rest = _attributed(table)
    return MismatchReport(title, metrics_of(table.rollout, table.trainer), by_part(table), causes, rest)


def _unreadable(step: int, error: IncompleteDataError) -> Finding:
    meaning = "this step cannot be read: the numbers are of the other steps"
    hints = (error.hint,) if error.hint else ()
    return Finding("unreadable", Severity.ERROR, f"step {step}", (error.message,), meaning, hints)


def _attributed(table: TokenTable) -> tuple[tuple[MismatchCause, ...], MismatchCause | None]:
    state = Unexplained.all_of(table)
    total = float(state.size.sum())
    if not (state.size > NOISE).any():
        return (), None
    found: list[MismatchCause] = []
    for rule in _RULES:
        for claim in rule(state):
            # Of the tokens a claim covers, those that show it best are where it removes most.
            worth = state.size[claim.rows] - np.minimum(state.size[claim.rows], claim.left)
            share = state.take(claim) / total
            found.append(_cause(table, claim, share, worth))
    rest = float(state.size.sum()) / total
    left = _unexplained(state, rest) if rest > 0.005 and (state.size > NOISE).any() else None
    return tuple(sorted(found, key=lambda item: -item.share)), left


def _cause(table: TokenTable, claim: Claim, share: float, worth: np.ndarray) -> MismatchCause:
    best = claim.rows[np.argsort(-worth, kind="stable")[:_TOKENS_SHOWN]]
    return MismatchCause(claim.id, claim.text, share, len(claim.rows), _proofs(table, best), claim.parameters)


def _unexplained(state: Unexplained, share: float) -> MismatchCause:
    worst = np.argsort(-state.size, kind="stable")[:_TOKENS_SHOWN]
    part = confined_to(_gaps(state))
    where = f", {part.text} only" if part is not None else ""
    text = f"no cause that a recording alone can show accounts for this{where}; --probe runs experiments"
    count = int((state.size > NOISE).sum())
    return MismatchCause("unexplained", text, share, count, _proofs(state.table, worst))


def _gaps(state: Unexplained) -> list[Gap]:
    found = []
    for number, place in enumerate(state.table.places):
        rows = state.table.rows(number)
        source = place.tokens.quantities[TRAINER].source
        found.append(Gap(place.tokens, state.table.position[rows], state.size[rows] > NOISE, source))
    return found


def _proofs(table: TokenTable, rows: np.ndarray) -> tuple[TokenProof, ...]:
    return tuple(TokenProof(table.where(row), float(table.rollout[row]), float(table.trainer[row])) for row in rows)
