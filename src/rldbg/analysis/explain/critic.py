"""Advantages of a critic: by which rule they follow from its values and the rewards.

Generalised advantage estimation is linear: with values v, rewards r of single tokens and advantages d before they are
whitened, `d[t] + v[t] = r[t] + gamma v[t+1] + gamma lambda d[t+1]`. So its numbers are solved for on each side alone,
over all tokens but the last ones of samples, and a rule is believed only when it gives every one of those tokens.
Advantages without returns are whitened ones: `d = spread * a + mean`, which is linear as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from rldbg.analysis.explain.evidence import Evidence, Explanation, applied, fit_factor, largest, small
from rldbg.analysis.explain.passes import SideStep
from rldbg.analysis.tokens import SampleTokens

# Of the largest value: sums over a few hundred tokens in float32.
_ROUNDING = 1e-4
_PRECISE = 2e-3
# More equations than unknowns, so that a fit says something.
_SPARE = 6
_UNKNOWN = "something else"


class _Row(NamedTuple):
    """One sample at its trained tokens."""

    sample: SampleTokens
    advantages: np.ndarray
    values: np.ndarray
    returns: np.ndarray | None
    kl: np.ndarray | None


class Rule(NamedTuple):
    """How one side's advantages were made, in words, and the advantages before whitening."""

    parts: dict[str, str]
    raw: list[np.ndarray]


def _rows(side: SideStep) -> list[_Row]:
    found = []
    for sample in side.samples.values():
        held = sample.trained("advantages", "values")
        if held is None or sample.reward is None or not len(held[0]):
            continue
        returns, kl = (sample.trained(*names) for names in (("returns",), ("old_log_probs", "ref_log_probs")))
        columns = [None if item is None or len(item[0]) != len(held[0]) else item for item in (returns, kl)]
        found.append(
            _Row(
                sample,
                held[0].astype(np.float64),
                held[1].astype(np.float64),
                None if columns[0] is None else columns[0][0].astype(np.float64),
                None if columns[1] is None else columns[1][0].astype(np.float64) - columns[1][1],
            )
        )
    return found


def rule_of(side: SideStep) -> Rule | None:
    """None where values were not recorded, one advantage holds for all tokens, or no rule gives them."""
    rows = _rows(side)
    if not any(len(row.advantages) > 1 and largest(row.advantages - row.advantages[0]) > 0 for row in rows):
        return None
    has_kl = all(row.kl is not None for row in rows) and any(largest(row.kl) > 0 for row in rows if row.kl is not None)
    has_returns = all(row.returns is not None for row in rows)
    for direct, placed, kind in itertools.product(
        (True, False) if has_returns else (False,), _PLACED, _KL if has_kl else (None,)
    ):
        solved = _solve(rows, placed, kind, direct=direct) or (_without_values(rows, placed) if direct else None)
        if solved is not None:
            parts, raw = solved
            parts |= {"the token that gets the reward": placed, "whitening": _whitened(rows, raw)}
            if has_returns:
                parts["returns minus values"] = "advantages before whitening" if direct else _targets(rows)
            return Rule(parts, raw)
    return None


_PLACED = ("the last one", "the first one", "each one, in equal parts")
_KL: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "k1": lambda gap: gap,
    "k2": lambda gap: gap**2 / 2,
    "k3": lambda gap: np.exp(-gap) + gap - 1,
    "the absolute log ratio": np.abs,
}


def _rewards_of(row: _Row, placed: str) -> np.ndarray:
    """The reward of each token; of the last one, too."""
    made = np.zeros(len(row.advantages))
    reward = float(row.sample.reward or 0.0)
    if placed == _PLACED[0]:
        made[-1] = reward
    elif placed == _PLACED[1]:
        made[0] = reward
    else:
        made[:] = reward / len(made)
    return made


_Solved = tuple[dict[str, str], list[np.ndarray]]


def _without_values(rows: list[_Row], placed: str) -> _Solved | None:
    """Advantages that are discounted rewards: values are in the returns only."""
    raw = [row.returns - row.values for row in rows if row.returns is not None]
    later = np.concatenate([part[1:] for part in raw])
    target = np.concatenate([part[:-1] - _rewards_of(row, placed)[:-1] for row, part in zip(rows, raw, strict=True)])
    decay = fit_factor(later, target)
    if len(target) <= _SPARE or decay < _PRECISE or not small(target - decay * later, _ROUNDING * largest(target)):
        return None
    return {"the baseline": "nothing", "gamma times lambda": _number(decay)}, raw


def _targets(rows: list[_Row]) -> str:
    gaps = [row.returns - row.values - row.advantages for row in rows if row.returns is not None]
    return "whitened advantages" if small(np.concatenate(gaps), _ROUNDING * 10) else ""


def _solve(rows: list[_Row], placed: str, kl: str | None, *, direct: bool) -> _Solved | None:
    """Gamma, lambda and the weight of the KL that give all tokens but the last ones; None when none do."""
    columns: list[np.ndarray] = []
    targets: list[np.ndarray] = []
    for row in rows:
        v, reward = row.values, _rewards_of(row, placed)[:-1]
        terms = [v[1:]]
        if direct:
            assert row.returns is not None
            d = row.returns - v
            terms += [d[1:]]
            targets.append(row.returns[:-1] - reward)
        else:
            terms += [row.advantages[1:], -row.advantages[:-1], np.ones(len(reward))]
            targets.append(v[:-1] - reward)
        if kl is not None:
            assert row.kl is not None
            terms.append(-_KL[kl](row.kl)[:-1])
        columns.append(np.stack(terms))
    matrix, target = np.concatenate(columns, 1).T, np.concatenate(targets)
    if len(target) < matrix.shape[1] + _SPARE or not (np.isfinite(matrix).all() and np.isfinite(target).all()):
        return None
    found, _, rank, _ = np.linalg.lstsq(matrix, target, rcond=1e-9)
    noise = _ROUNDING * max(largest(target), largest(matrix))
    if rank < matrix.shape[1] or not small(matrix @ found - target, noise):
        return None
    # How far rounding may have moved each number: no rule is read from numbers that tokens do not determine.
    moved = np.sqrt(np.diag(np.linalg.inv(matrix.T @ matrix))) * noise
    gamma, spread = float(found[0]), 1.0 if direct else float(found[2])
    if max(moved[:2]) > _PRECISE * max(1.0, abs(spread)) or abs(gamma) < _PRECISE or spread <= 0:
        return None
    decay = float(found[1]) / spread
    parts = {"the baseline": "values", "gamma": _number(gamma), "lambda": _number(decay / gamma)}
    if kl is not None:
        parts["KL coefficient in the reward"] = _number(float(found[-1]))
        if abs(found[-1]) > _PRECISE:
            parts["KL estimator in the reward"] = kl
    if direct:
        raw = [row.returns - row.values for row in rows if row.returns is not None]
    elif abs(decay - 1) > _PRECISE:
        mean = float(found[3]) / (decay - 1)
        raw = [spread * row.advantages + mean for row in rows]
    else:
        raw = [spread * row.advantages for row in rows]
    parts["value after the last token"] = _last(rows, raw, placed, gamma, kl, float(found[-1]) if kl else 0.0)
    return parts, raw


def _number(value: float) -> str:
    return f"{round(value, 3) + 0.0:g}"


def _last(rows: list[_Row], raw: list[np.ndarray], placed: str, gamma: float, kl: str | None, weight: float) -> str:
    """What stands for the value behind a sample's end."""
    left = []
    for row, d in zip(rows, raw, strict=True):
        penalty = weight * float(_KL[kl](row.kl)[-1]) if kl is not None and row.kl is not None else 0.0
        left.append(float(d[-1] + row.values[-1] - _rewards_of(row, placed)[-1] + penalty))
    gap, own = np.asarray(left), np.asarray([float(row.values[-1]) for row in rows])
    noise = 10 * _ROUNDING * max(1.0, largest(own))
    if small(gap, noise):
        return "0"
    return "that of the last token" if small(gap - gamma * own, noise) else _UNKNOWN


def _whitened(rows: list[_Row], raw: list[np.ndarray]) -> str:
    """How advantages follow from those before whitening."""
    have, every = np.concatenate([row.advantages for row in rows]), np.concatenate(raw)
    lengths = [len(part) for part in raw]
    own = np.repeat([part.mean() for part in raw], lengths), np.repeat([part.std() for part in raw], lengths)
    mean, spread = every.mean(), every.std()
    with np.errstate(all="ignore"):
        ways = {
            "none": every,
            "mean and standard deviation of all tokens": (every - mean) / spread,
            "mean and sample standard deviation of all tokens": (every - mean) / every.std(ddof=1),
            "standard deviation of all tokens only": every / spread,
            "mean of all tokens only": every - mean,
            "mean and standard deviation of each sample": (every - own[0]) / own[1],
            "mean of each sample only": every - own[0],
        }
    fits = [name for name, made in ways.items() if small(have - made, _PRECISE * max(1e-6, largest(have)) / 2)]
    if fits:
        return fits[0]
    factor = fit_factor(every, have)
    return f"times {factor:.4g}" if small(have - factor * every, _PRECISE * largest(have)) else ""


def estimation(evidence: Evidence) -> Iterator[Explanation]:
    """Both sides' advantages follow from their critics' values, by different rules."""
    a, b = (rule_of(side) for _, side in evidence.sides)
    if a is None or b is None:
        yield from _token_rewards(evidence)
        return
    both = {name: (a.parts[name], b.parts[name]) for name in a.parts if name in b.parts}
    apart = {name: values for name, values in both.items() if values[0] != values[1]}
    # What a side does that no rule tells is not a difference between rules.
    if not apart or any("" in values or _UNKNOWN in values for values in apart.values()):
        return
    text = "; ".join(f"{name} is {one} in A and {other} in B" for name, (one, other) in apart.items())
    facts = {name: list(values) for name, values in apart.items()}
    yield Explanation("advantage-estimation", f"advantages follow from the critic's values: {text}", parameters=facts)


def _token_rewards(evidence: Evidence) -> Iterator[Explanation]:
    """One factor between the rewards of all tokens but the last ones, told by returns and values with the gamma and
    lambda of a step without such rewards: those of a KL penalty whose reference was not recorded."""
    earlier = [
        next(filter(None, (rule_of(SideStep(side.side, step)) for step in sorted(side.side.steps()))), None)
        for _, side in evidence.sides
    ]
    numbers = [{} if rule is None else {name: rule.parts.get(name) for name in ("gamma", "lambda")} for rule in earlier]
    if numbers[0] != numbers[1] or None in numbers[0].values() or not numbers[0]:
        return
    gamma, decay = float(numbers[0]["gamma"] or 0), float(numbers[0]["lambda"] or 0)
    columns = []
    for pair in evidence.samples:
        rewards = []
        for sample in pair:
            held = sample.trained("values", "returns")
            if held is None:
                return
            v, target = held[0].astype(np.float64), held[1].astype(np.float64)
            rewards.append(target[:-1] - gamma * v[1:] - gamma * decay * (target - v)[1:])
        if len(rewards[0]) == len(rewards[1]):
            columns.append(np.stack(rewards))
    given, recorded = np.concatenate(columns, 1) if columns else np.empty((2, 0))
    factor = fit_factor(given, recorded)
    if given.size > _SPARE and abs(factor - 1) > _PRECISE and factor != 0:
        text = f"the rewards of tokens before the last, such as a KL penalty's, are in B A's times {factor:.4g}"
        noise = 1e-2 * largest(recorded)
        yield applied("token-rewards-scaled", text, given, recorded, factor * given, noise, {"factor": factor})


HYPOTHESES = {"advantage": (estimation,)}
