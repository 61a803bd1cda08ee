"""What the optimizers of both sides differ in, each found by replaying candidates on its recorded gradients."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rldbg.analysis.explain.evidence import Evidence, Explanation, Recomputed
from rldbg.analysis.explain.optimizer_fits import (
    AS_GOOD_AS_ANY,
    BETAS,
    CLIPS,
    EPSILONS,
    FIT,
    KINDS,
    ROUNDINGS,
    Optimizer,
    fit_of,
    fitting,
    history_of,
    identify,
    with_rate_of,
)
from rldbg.analysis.explain.optimizer_rules import ADAM, AMSGRAD, History, OptimizerRule, moments_of
from rldbg.analysis.explain.passes import SideStep

# A fit this many times worse than the other side's, on gradients and parameters of the same precision, is rejected.
_WORSE = 30.0


def optimizers(evidence: Evidence) -> Iterator[Explanation]:
    """The two sides' optimizers differ in one of their numbers."""
    # A clip and an epsilon ten times as large are one optimizer where all gradients are clipped: of those that fit
    # equally well, take the two that have most in common.
    in_a, in_b = identify(evidence.a), identify(evidence.b)
    if bool(in_a) != bool(in_b):
        label = "B" if in_a else "A"
        right = in_a or in_b
        found = _started_anew(evidence, right, label) or _pulled_back(evidence, right, label)
        yield from found or _by_tensor(evidence, right, label)
        return
    pairs = [(a, b, list(_differences(a, b))) for a, b in _alike(in_a, in_b)]
    if not pairs:
        return
    a, b, differences = min(pairs, key=most_alike)
    if not differences and (kinds := [_largest_moments(side) for _, side in evidence.sides]) in _ONE_OF_THEM:
        words = [AMSGRAD if kind else ADAM for kind in kinds]
        said = f"the optimizer is {words[0]} in A and {words[1]} in B"
        facts = {"a": words[0], "b": words[1]}
        yield Explanation("optimizer-kind", said, max(a.residual, b.residual), FIT, facts, together="optimizer")
        return
    if not differences:
        # Of few elements, some tensors' own settings do not show in a fit of all.
        found = [*_by_tensor(evidence, [a], "B"), *_by_tensor(evidence, [b], "A")]
        yield from found if len({item.parameters["side"] for item in found}) == 1 else ()
        return
    alternatives = [found for *_, found in pairs if [item[0] for item in found] == [item[0] for item in differences]]
    residual, made = max(a.residual, b.residual), _applied(evidence.b, a, b)
    alike = max(AS_GOOD_AS_ANY, _WORSE * min(a.residual, b.residual), ROUNDINGS * max(a.rounding, b.rounding))
    noise = min(alike, max(a.noise, b.noise))
    for name, text, one, other in differences:
        known = {"a": one, "b": other}
        values = [[item[side] for found in alternatives for item in found if item[0] == name] for side in (2, 3)]
        said = f"{text} {_one_of(one, values[0])} in A and {_one_of(other, values[1])} in B"
        yield Explanation(name, said, residual, noise, known, together="optimizer", recomputed=made)


def most_alike(pair: tuple[Optimizer, Optimizer, list[tuple[str, str, object, object]]]) -> tuple[int, float]:
    """By how many differences, and by how much the ratio of the learning rates changes from update to update: one that
    follows each update's gradient is a clip."""
    a, b, differences = pair
    ratios = [two / one for one, two in zip(a.rates, b.rates, strict=False) if one]
    return len(differences), round(float(np.ptp(ratios)) if ratios else 0.0, 2)


def _alike(in_a: list[Optimizer], in_b: list[Optimizer]) -> Iterator[tuple[Optimizer, Optimizer]]:
    """All pairs of the two sides' optimizers, and those that a clip brings to one learning rate."""
    for a, b in itertools.product(in_a, in_b):
        yield a, b
        slower, faster = with_rate_of(b, a), with_rate_of(a, b)
        if slower is not None:
            yield slower, b
        if faster is not None:
            yield a, faster


def _started_anew(evidence: Evidence, known: list[Optimizer], label: str) -> list[Explanation]:
    """The other side's optimizer, whose moments are reset before some updates."""
    side, rule = evidence.b if label == "B" else evidence.a, known[0].rule
    history, places = history_of(side), side.updates("param")
    if history is None:
        return []
    for last in range(1, len(history.gradients)):
        part = _until(history, last + 1)
        if not fit_of(part, moments_of(part, rule), rule).fits:
            rule = rule._replace(resets=(*rule.resets, last))
            if not fit_of(part, moments_of(part, rule), rule).fits:
                return []
    found = fit_of(history, moments_of(history, rule), rule)
    late = [places[place] for place in rule.resets if place < len(places)]
    if not late or len(rule.resets) == len(history.gradients) - 1:
        return []
    where = ", ".join(f"step {step} epoch {epoch} mini-batch {mini}" for step, (epoch, mini) in late[:3])
    text = f"{label}'s optimizer state was reset before the update of {where}"
    facts = {"side": label, "updates": [[step, *update] for step, update in late]}
    return [Explanation("optimizer-reset", text, found.residual, found.noise, facts, together="optimizer")]


def _pulled_back(evidence: Evidence, known: list[Optimizer], label: str) -> list[Explanation]:
    """The other side's optimizer, whose parameters are then averaged with those before the step of the run."""
    history, rule = history_of(evidence.b if label == "B" else evidence.a), known[0].rule
    if history is None or not history.step_starts:
        return []
    moments, anchor = moments_of(history, rule), 0
    shares: list[float] = []
    residual = 0.0
    for place in range(min(history.step_starts), len(moments)):
        # In the first update of a step the parameters before it are those before the step.
        anchor = place - 1 if place in history.step_starts else anchor
        before = history.parameters[place - 1]
        moved = history.parameters[place] - before
        direction = moments[place][0] / (moments[place][1] + rule.epsilon)
        columns = [-direction, -history.shrinking(place - 1, rule), history.parameters[anchor] - before]
        table = np.stack(columns[: 2 if anchor == place - 1 else 3], axis=1)
        weights = np.linalg.lstsq(table, moved, rcond=None)[0].tolist()
        left = moved - table @ weights
        residual = max(residual, float(np.linalg.norm(left)) / max(float(np.linalg.norm(moved)), 1e-30))
        shares += weights[2:]
    if not shares or residual > FIT or not min(shares) > _SAME_SHARE or np.ptp(shares) > _SAME_SHARE * max(shares):
        return []
    share = float(np.median(shares))
    text = (
        f"after every update {label}'s parameters are {1 - share:.3g} times those of the other side's optimizer plus "
        f"{share:.3g} times those before the step: an average of weights is trained on"
    )
    facts = {"side": label, "share": share}
    return [Explanation("weights-averaged", text, residual, FIT, facts, together="optimizer")]


_SAME_SHARE = 0.02


def _until(history: History, count: int) -> History:
    columns = ("gradients", "norms", "largest", "tensor_norms", "parameters")
    return replace(history, **{name: getattr(history, name)[:count] for name in columns})


def _applied(side: SideStep, a: Optimizer, b: Optimizer) -> Recomputed | None:
    """How far B's gradients move its parameters by A's optimizer and by its own, beside how far they moved."""
    history = history_of(side)
    if history is None or {a.rule.clips, b.rule.clips} - {"norm", "largest element"}:
        return None
    by_a, by_b = _movements(history, a), _movements(history, b)
    count = min(len(by_a), len(by_b), len(history.parameters) - 1)
    moved = np.diff(history.parameters, axis=0)
    parts = [np.concatenate(part[:count]) for part in (by_a, moved, by_b)]
    return Recomputed(parts[0], parts[1], parts[2], ("B's steps by A's optimizer", "B's steps"))


def _movements(history: History, optimizer: Optimizer) -> list[np.ndarray]:
    """What an optimizer adds to the parameters in each step from the second one on."""
    rule = optimizer.rule
    if rule.clips == "largest element":
        history = replace(history, norms=history.largest)
    moments = moments_of(history, rule)[1:]
    return [
        -rate * (mean / (size + rule.epsilon) + optimizer.decay * history.shrinking(place, rule))
        for place, (rate, (mean, size)) in enumerate(zip(optimizer.rates, moments, strict=False))
    ]


_ONE_OF_THEM = ([True, False], [False, True])
_CLEARLY = 0.3


def _largest_moments(side: SideStep) -> bool | None:
    """Whether AMSGrad fits far better than AdamW, or far worse; None where neither does.

    They differ in elements whose gradients become smaller only, too little for one to be refuted by itself.
    """
    history = history_of(side)
    assert history is not None
    fits = [
        min((item.residual for item in fitting(history, CLIPS, kinds)), default=np.inf)
        for kinds in (KINDS[: len(BETAS)], [(AMSGRAD, betas, EPSILONS) for betas in BETAS])
    ]
    if fits[1] <= _CLEARLY * fits[0]:
        return True
    return False if fits[0] <= _CLEARLY * fits[1] else None


def _by_tensor(evidence: Evidence, known: list[Optimizer], label: str) -> Iterator[Explanation]:
    """The other side's optimizer with a learning rate or a weight decay of its own for some tensors."""
    side, right = (evidence.b, known[0]) if label == "B" else (evidence.a, known[0])
    rate = float(np.median(right.rates))
    rule = right.rule._replace(shrinks_matrices_only=False)
    fits: dict[str, Optimizer] = {}
    usual_decay: dict[str, float] = {}
    for name in side.tensors_of("param", side.updates("param")[0]):
        history = history_of(side, name)
        if history is not None:
            fits[name] = fit_of(history, moments_of(history, rule), rule)
            shrinks = history.in_matrix.all() or not right.rule.shrinks_matrices_only
            usual_decay[name] = right.decay if shrinks else 0.0
    if len(fits) < 2 or max(item.residual for item in fits.values()) > FIT:
        return
    rates = {name: float(np.median(item.rates)) for name, item in fits.items()}
    decays = {name: item.decay for name, item in fits.items() if abs(rates[name] - rate) <= 0.02 * rate}
    residual = max(item.residual for item in fits.values())
    for id, what, values, usual, expected, apart in (
        ("learning-rate", "learning rate", rates, rate, dict.fromkeys(rates, rate), 0.02 * rate),
        ("weight-decay", "weight decay", decays, right.decay, usual_decay, 5e-3),
    ):
        odd = {name: value for name, value in values.items() if abs(value - expected[name]) > apart}
        if 0 < len(odd) < len(values) and np.ptp(list(odd.values())) <= max(apart, 0.02 * abs(usual)):
            names = ", ".join(sorted(odd)[:4]) + (f" and {len(odd) - 4} more" if len(odd) > 4 else "")
            text = f"{label}'s {what} is {np.median(list(odd.values())):.4g} for {names}, and {usual:.4g} for the rest"
            facts = {"side": label, "names": sorted(odd), "rest": usual}
            yield Explanation(id, text, residual, FIT, facts, together="optimizer")


def _differences(a: Optimizer, b: Optimizer) -> Iterator[tuple[str, str, object, object]]:
    one, other = a.rule, b.rule
    kinds = [_kind(rule) for rule in (one, other)]
    if kinds[0] != kinds[1]:
        yield "optimizer-kind", "the optimizer is", kinds[0], kinds[1]
        return
    if one.restarts != other.restarts:
        words = {False: "kept from step to step", True: "reset every step"}
        yield "optimizer-reset", "the optimizer's moments are", words[one.restarts], words[other.restarts]
    if one.corrects != other.corrects:
        words = {True: "right", False: "missing"}
        text = "Adam's bias correction is"
        yield "optimizer-bias-correction", text, words[one.corrects], words[other.corrects]
    ratios = [two / one for one, two in zip(a.rates, b.rates, strict=False) if one]
    count = _other_count(ratios, one.betas) if one.kind == ADAM and one.betas == other.betas else None
    if count is not None:
        yield "optimizer-bias-correction", "Adam's bias correction is", count[0], count[1]
    elif ratios and max(abs(ratio - 1) for ratio in ratios) > 0.02:
        first = next(place for place, ratio in enumerate(ratios) if abs(ratio - 1) > 0.02)
        yield "learning-rate", "the learning rate is", a.rates[first], b.rates[first]
    if one.coupled != other.coupled:
        yield "weight-decay", "the weight decay is", _decay_text(one), _decay_text(other)
    elif abs(a.decay - b.decay) > 5e-3 or (a.decay and one.shrinks_matrices_only != other.shrinks_matrices_only):
        yield "weight-decay", "the weight decay is", _decay_of(a), _decay_of(b)
    if _may_be_clipped_alike(a, b) or _may_be_clipped_alike(b, a):
        pass
    elif one.clips != other.clips:
        in_a, in_b = (
            "not" if rule.clip is None else f"by their {rule.clips} to {_show(rule.clip)}" for rule in (one, other)
        )
        yield "gradient-clip", "gradients are clipped", in_a, in_b
    elif one.clip != other.clip:
        yield "gradient-clip", "gradients are clipped to a norm of", one.clip, other.clip
    if one.betas != other.betas:
        yield "optimizer-betas", "AdamW's betas are", one.betas, other.betas
    if one.epsilon != other.epsilon:
        yield "optimizer-epsilon", "AdamW's epsilon is", one.epsilon, other.epsilon


def _may_be_clipped_alike(one: Optimizer, other: Optimizer) -> bool:
    """Whether no gradient of one side was large enough for the other side's clip."""
    clip = other.rule.clip
    return one.rule.clip is None and other.rule.clips == "norm" and clip is not None and one.largest_norm <= clip


def _kind(rule: OptimizerRule) -> str:
    """What an optimizer is called: Adam without a first moment and without bias correction is RMSprop."""
    return f"RMSprop (smoothing {rule.betas[1]:g})" if not rule.corrects and rule.betas[0] == 0 else rule.kind


def _decay_of(optimizer: Optimizer) -> object:
    if optimizer.rule.shrinks_matrices_only and optimizer.decay:
        return f"{optimizer.decay:.4g} for matrices only (not for biases and norms)"
    return optimizer.decay


def _decay_text(rule: OptimizerRule) -> str:
    return f"{rule.coupled:g}, added to the gradient" if rule.coupled else "not in the gradient"


def _other_count(ratios: list[float], betas: tuple[float, float]) -> tuple[str, str] | None:
    """How A and B count steps, where that alone explains the ratios of their learning rates from the second step on.

    At step t Adam multiplies its rate by sqrt(1 - beta2^t) / (1 - beta1^t).
    """

    def factor(count: float) -> float:
        return float(np.sqrt(1 - betas[1] ** count) / (1 - betas[0] ** count))

    counts = {
        "missing": [1.0] * len(ratios),
        "computed with twice the step count": [factor(2 * t) for t in range(2, len(ratios) + 2)],
        "computed with a step count that is one ahead": [factor(t + 1) for t in range(2, len(ratios) + 2)],
        "computed with a step count that stays at 1": [factor(1)] * len(ratios),
    }
    right = np.asarray([factor(t) for t in range(2, len(ratios) + 2)])
    for text, made in counts.items():
        expected = np.asarray(made) / right
        for found, words in ((np.asarray(ratios), ("right", text)), (1 / np.asarray(ratios), (text, "right"))):
            if len(ratios) >= 3 and np.ptp(expected) > 0.05 and np.abs(found / expected - 1).max() <= 0.01:
                return words
    return None


def _one_of(value: object, alternatives: list[object]) -> str:
    """A number, with the others that give the same: where all gradients are clipped, Adam forgets to what."""
    others = [_show(item) for item in dict.fromkeys(alternatives) if item is not None]
    rest = [item for item in dict.fromkeys(others) if item != _show(value)]
    return f"{_show(value)} (or {', '.join(rest[:4])}, which give the same here)" if rest else _show(value)


def _show(value: object) -> str:
    if value is None:
        return "none (not clipped)"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


HYPOTHESES = {"parameter": (optimizers,)}
