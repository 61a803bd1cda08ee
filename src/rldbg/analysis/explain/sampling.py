"""Hypotheses about how the rollout chose its tokens: seeds, shared random numbers, greedy or truncated choices."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np

from rldbg.analysis.explain import contexts
from rldbg.analysis.explain.evidence import Evidence, Explanation
from rldbg.analysis.explain.passes import SideStep
from rldbg.analysis.explain.subsets import ends, turn_of
from rldbg.analysis.samples import common_prefix
from rldbg.analysis.tokens import SampleTokens

# Standard deviations beyond which a count is no accident, of one count and of the many that are looked at in clean
# runs; of sampled tokens, how many must agree on a direction.
_SIGMAS = 3.0
_NO_ACCIDENT = 5.0
_FEWEST_CHOICES = 5
_MOSTLY = 0.75
_FEWEST_AVOIDED = 8
_SETTINGS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def other_choice(evidence: Evidence) -> Iterator[Explanation]:
    """Different tokens sampled from the same distribution: by other random numbers, or by another rule.

    With independent random numbers a sample of A occurs again in B with its own probability. If far more are equal than
    that, the random numbers are the same ones, and what chooses tokens by them is not.
    """
    turns = [turn for a, b in evidence.samples if (turn := _turn_of_a_draw(a, b))]
    gaps = _shared_gaps(evidence)
    if len(turns) < 2 or len(gaps) < 2 or max(gaps) > contexts.NOISE:
        return
    equal, expected, spread = _repeated_by_chance(evidence, min(turns))
    facts = {"samples_that_differ": len(turns), "equal": equal, "equal_by_chance": expected}
    where = f", from turn {min(turns)} on" if min(turns) > 1 else ""
    copied = [(label, count) for label, side in evidence.sides if (count := _copies_of_others(evidence, label))]
    if copied:
        text = f"{copied[0][1]} of {copied[0][0]}'s samples that differ are equal to another one of their group"
        yield Explanation("samples-agree", f"{text}: copies, or the same random numbers", parameters=facts, share=0.5)
        return
    odd = [(label, found) for label, side in evidence.sides if (found := _agree_too_often(side)) is not None]
    if odd:
        label, (same, by_chance) = odd[0]
        text = (
            f"samples of one group choose the same token {same} times in {label} where independent random numbers "
            f"would {by_chance:.0f} times: they share random numbers, are copies, or a token is not sampled"
        )
        yield Explanation("samples-agree", text, parameters={**facts, "side": label}, share=0.5)
        return
    steps = np.asarray([step for a, b in evidence.samples if (step := _likelier(a, b)) is not None])
    # Independent choices are the likelier ones of one side as often as of the other.
    is_even = abs((steps > 0).sum() - (steps < 0).sum()) <= _SIGMAS * math.sqrt(len(steps))
    if equal <= expected + _SIGMAS * spread + 1 and is_even:
        text = (
            f"{len(turns)} of {len(evidence.samples)} samples have different tokens{where}, sampled from the same "
            f"probabilities (equal at all {len(gaps)} tokens both sampled): different random numbers, "
            "by another seed or by how each sample's are derived from it"
        )
        share = min(len(turns) / len(evidence.samples) + 0.5, 1)
        yield Explanation("seed", text, max(gaps), contexts.NOISE, facts, share)
        return
    label, likelier = ("B", steps > 0) if (steps > 0).sum() >= (steps < 0).sum() else ("A", steps < 0)
    text = (
        f"{equal} samples are equal where different random numbers would leave {expected:.0f}, and the log probs of "
        f"all tokens both sampled are the same: the same random numbers choose different tokens{where}"
    )
    avoiding = _avoids_repetition(evidence)
    if avoiding is not None:
        label, of, all_of = avoiding
        text += f". In {of} of {all_of} the other side repeats a token of the context and {label} does not: a penalty"
        yield Explanation("repetition-penalty", text, parameters={**facts, "side": label})
    # Tokens outside the part that is sampled from are the less likely ones.
    elif len(steps) >= _FEWEST_CHOICES and likelier.mean() >= _MOSTLY:
        text += (
            f". Those of {label} are the likelier ones: it samples from a part of the vocabulary (top-k, top-p, min-p)"
        )
        yield Explanation("truncated-support", text, parameters={**facts, "side": label})
    elif len(turns) >= _FEWEST_AVOIDED:
        yield Explanation("sampling-rule", text, parameters=facts)
    else:
        text = (
            f"{len(turns)} samples differ, at tokens that were sampled from the same probabilities: too few to say why"
        )
        yield Explanation("samples-agree", text, parameters=facts, share=0.5)


def _avoids_repetition(evidence: Evidence) -> tuple[str, int, int] | None:
    """The side that chooses a new token wherever the other repeats one and they differ, how often, and of how many."""
    repeats = []
    for a, b in evidence.samples:
        if _turn_of_a_draw(a, b):
            place = common_prefix(a.tokens, b.tokens)
            repeats.append([int(sample.tokens[place]) in sample.tokens[:place] for sample in (a, b)])
    only_a = sum(one and not other for one, other in repeats)
    only_b = sum(other and not one for one, other in repeats)
    label, often, seldom = ("B", only_a, only_b) if only_a >= only_b else ("A", only_b, only_a)
    # By chance both are as frequent.
    return (label, often, often + seldom) if often >= _FEWEST_AVOIDED and seldom <= often // 10 else None


def _copies_of_others(evidence: Evidence, label: str) -> int:
    """How many of a side's samples that differ from the other side's are equal to another of their group, if most are
    and few of the other side's."""
    place = "AB".index(label)
    changed = evidence.changed
    counts = []
    for side in (place, 1 - place):
        groups: dict[str, list[bytes]] = defaultdict(list)
        for pair in evidence.samples:
            groups[pair[side].sample.group_id].append(pair[side].tokens.tobytes())
        own = (groups[pair[side].sample.group_id].count(pair[side].tokens.tobytes()) > 1 for pair in changed)
        counts.append(sum(own))
    return counts[0] if 2 * counts[0] > len(changed) and 2 * counts[1] < counts[0] else 0


def _agree_too_often(side: SideStep) -> tuple[int, float] | None:
    """How often a sample has the token that another of its group has in the same context, and how often it would by
    chance: given the first one's token, each other has it with its probability. None where that is no accident."""
    first: dict[tuple[str, bytes], tuple[int, float]] = {}
    same, chances = 0, []
    for sample in side.samples.values():
        values = sample.trained("rollout_log_probs")
        for log_prob, position in zip(*values, strict=True) if values is not None else ():
            context = sample.sample.group_id, contexts.context_of(sample, position)
            token = int(sample.tokens[position])
            if context in first:
                same += token == first[context][0]
                chances.append(math.exp(min(first[context][1], 0.0)))
            else:
                first[context] = token, float(log_prob)
    by_chance, chance = float(np.sum(chances)), np.asarray(chances)
    spread = float(np.sqrt((chance * (1 - chance)).sum()))
    return (same, by_chance) if same > by_chance + _NO_ACCIDENT * spread + 1 else None


def _repeated_by_chance(evidence: Evidence, turn: int) -> tuple[int, float, float]:
    """How many samples are equal, how many would be by chance from this turn on, and the standard deviation."""
    chances, equal = [], 0
    for a, b in evidence.samples:
        values = a.trained("rollout_log_probs")
        if values is not None:
            later = turn_of(a.loss_mask)[values[1]] >= turn
            chances.append(float(np.exp(values[0][later].astype(np.float64).sum())))
            equal += np.array_equal(a.tokens, b.tokens)
    chance = np.asarray(chances)
    return equal, float(chance.sum()), float(np.sqrt((chance * (1 - chance)).sum()))


def _likelier(a: SampleTokens, b: SampleTokens) -> float | None:
    """By how much B's log prob is above A's at the first token that differs; None where none does."""
    if not _turn_of_a_draw(a, b):
        return None
    place = common_prefix(a.tokens, b.tokens)
    one, other = (sample.quantities["rollout_log_probs"] for sample in (a, b))
    return float(other.values[place - other.start]) - float(one.values[place - one.start])


def greedy(evidence: Evidence) -> Iterator[Explanation]:
    """One side never sampled a token where the other sampled a more likely one in the same context."""
    for label, right, wrong in evidence.directions:
        sides = (evidence.a, evidence.b)
        whole = _only_copies(sides[wrong])
        if _only_copies(sides[right]):
            continue
        drawn, known = (
            contexts.within(_tokens_of(sides[n], whole), "old_log_probs", "old_log_probs") for n in (wrong, right)
        )
        if any(len(tokens) > 1 for tokens in drawn.values()) or all(len(tokens) < 2 for tokens in known.values()):
            continue
        pairs = [
            (next(iter(mine.values()))[0], value)
            for context, mine in drawn.items()
            for token, (value, _) in known.get(context, {}).items()
            if token not in mine
        ]
        if len(pairs) >= 4 and all(mine >= theirs - contexts.NOISE for mine, theirs in pairs):
            text = (
                f"{label} always has the most likely token{'' if whole else ' at the start of an answer'}: none of "
                f"{len(pairs)} others sampled in the same contexts is more likely. Its engine is greedy"
                f"{'' if whole else ' there'}"
            )
            yield Explanation("greedy", text, parameters={"side": label, "contexts": len(pairs)})


def _tokens_of(side: SideStep, whole: bool) -> list[SampleTokens]:
    """All samples of a side that have log probs, or the first tokens of their answers."""
    samples = [sample for sample in side.samples.values() if "old_log_probs" in sample.quantities]
    if whole:
        return samples
    return [replace(sample, loss_mask=np.where(ends(sample.loss_mask, first=True), 1, 0)) for sample in samples]


def group_shares_seed(evidence: Evidence) -> Iterator[Explanation]:
    """On one side all samples of every group are the same."""
    copies = [_only_copies(side) for _, side in evidence.sides]
    for (label, _), mine, other in zip(evidence.sides, copies, reversed(copies), strict=True):
        if mine and not other:
            text = f"in {label} all samples of a group are equal: they were generated with the same random numbers"
            yield Explanation("group-shares-seed", text, parameters={"side": label})


def _only_copies(side: SideStep) -> bool:
    first: dict[str, np.ndarray] = {}
    has_several = False
    for sample in side.samples.values():
        leader = first.setdefault(sample.sample.group_id, sample.tokens)
        if leader is not sample.tokens:
            if not np.array_equal(leader, sample.tokens):
                return False
            has_several = True
    return has_several


def _shared_gaps(evidence: Evidence) -> list[float]:
    """How far both sides' log probs of a token are apart, wherever both sampled it in the same context."""
    drawn = contexts.between(evidence.samples, "rollout_log_probs").values()
    return [abs(one - other) for tokens in drawn for one, other in tokens.values()]


def _turn_of_a_draw(a: SampleTokens, b: SampleTokens) -> int:
    """The turn in which two samples first differ, if by a token that both sampled with a recorded probability; or 0."""
    place = common_prefix(a.tokens, b.tokens)
    values = [sample.quantities.get("rollout_log_probs") for sample in (a, b)]
    if place >= min(len(a.tokens), len(b.tokens)) or values[0] is None or values[1] is None:
        return 0
    own = [float(item.values[place - item.start]) for item in values if item is not None]
    drawn = a.loss_mask[place] and b.loss_mask[place] and abs(own[0] - own[1]) > 1e-6
    return int(turn_of(a.loss_mask)[place]) if drawn else 0


def other_start(evidence: Evidence) -> Iterator[Explanation]:
    """Parameters of the same shape and size that are unrelated: initialised with a different seed."""
    first = [side.updates("param") for _, side in evidence.sides]
    if not first[0] or not first[1]:
        return
    tensors = [side.tensors_of("param", places[0]) for (_, side), places in zip(evidence.sides, first, strict=True)]
    names = [name for name in tensors[0] if name in tensors[1] and tensors[0][name].shape == tensors[1][name].shape]
    # Norms and biases start alike under any seed.
    wide = [name for name in names if tensors[0][name].ndim > 1]
    if not wide:
        return
    alike = [float(np.corrcoef(tensors[0][name].ravel(), tensors[1][name].ravel())[0, 1]) for name in wide]
    if max(alike) < 0.5:
        text = f"parameters are unrelated from the start (correlation at most {max(alike):.2g}): a different seed"
        yield Explanation("seed", text, parameters={"correlation": max(alike)})


def stated(evidence: Evidence) -> Iterator[Explanation]:
    """What the trajectories say of how they were sampled, where it is one value on each side."""
    sides = [_settings(side) for _, side in evidence.sides]
    for name in _SETTINGS:
        a, b = (side.get(name, set()) for side in sides)
        if len(a) == len(b) == 1 and a != b:
            facts = {"a": next(iter(a)), "b": next(iter(b))}
            text = f"the rollout's {name} is {facts['a']:g} in A and {facts['b']:g} in B, as the trajectories say"
            yield Explanation(name.replace("_", "-"), text, parameters=facts)


def _settings(side: SideStep) -> dict[str, set[float]]:
    found: dict[str, set[float]] = defaultdict(set)
    for record in side.side.records("trajectory", side.step):
        for row in cast("list[dict[str, Any]]", record.fields.get("extra_fields") or []):
            for name in _SETTINGS:
                if isinstance(row.get(name), int | float):
                    found[name].add(float(row[name]))
    return found


HYPOTHESES = {"trajectory": (stated, greedy, group_shares_seed, other_start, other_choice)}
