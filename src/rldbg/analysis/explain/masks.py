"""Hypotheses about loss masks: a rule says which mask a sample would get, and must give every sample its own.

Rules are made of few parts: which tokens (prompt, environment text, answers, the first or last of each) in which turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from rldbg.analysis.explain.evidence import Evidence, Explanation, SamplePair, for_samples
from rldbg.analysis.explain.subsets import turn_of
from rldbg.analysis.tokens import SampleTokens

_TURNS = 6
# The mask that a fault makes of the right one; the sample tells what is prompt.
_Rule = Callable[[np.ndarray, int], np.ndarray]


def masks(evidence: Evidence) -> Iterator[Explanation]:
    """Equal tokens, different masks: by which rule?"""
    pairs = evidence.unchanged
    changed = [pair for pair in pairs if not np.array_equal(pair[0].loss_mask != 0, pair[1].loss_mask != 0)]
    if not changed:
        return
    found: list[Explanation] = []
    for label, right, wrong in evidence.directions:
        if _may_be_right(changed, right, wrong):
            rules = [item for item in _rules() if all(_gives(item[2], pair[right], pair[wrong]) for pair in pairs)]
            facts = {"side": label, "samples": len(changed)}
            found += [
                Explanation(name, f"{label}'s loss mask {text} ({len(changed)} samples)", parameters=facts)
                for name, text in {name: text for name, text, _ in reversed(rules)}.items()
            ]
    yield from found
    for label, right, wrong in () if found else evidence.directions:
        if _may_be_right(changed, right, wrong):
            yield from _loosely(label, [(pair[right], pair[wrong]) for pair in changed])
            yield from _of_one_token(label, [(pair[right], pair[wrong]) for pair in pairs], len(changed))


def _may_be_right(changed: list[SamplePair], right: int, wrong: int) -> bool:
    """Whether one side's masks may be the right ones: they cover only tokens that the policy sampled, and what the
    other side covers in addition is not sampled; as far as versions, or the rollout's log probs, say so."""
    for pair in changed:
        own, other = pair[right].loss_mask != 0, pair[wrong].loss_mask != 0
        sampled = _sampled(pair[right], "policy_versions", lambda values: values >= 0)
        if sampled is not None and (own & ~sampled).any():
            return False
        if sampled is None:
            sampled = _sampled(pair[right], "rollout_log_probs", lambda values: values != 0)
            # Where text that nobody trains on has log probs as well, they say nothing.
            if sampled is None or (sampled & ~own & ~other).any():
                continue
        extra = own & ~other
        if (other & ~own & sampled).any() or (extra.any() and not sampled[extra].any()):
            return False
    return True


def _sampled(sample: SampleTokens, quantity: str, rule: Callable[[np.ndarray], np.ndarray]) -> np.ndarray | None:
    values = sample.quantities.get(quantity)
    if values is None:
        return None
    found = np.zeros(len(sample.tokens), bool)
    found[values.start : values.start + len(values.values)] = rule(values.values)
    return found


def _gives(rule: _Rule, right: SampleTokens, wrong: SampleTokens) -> bool:
    mask = right.loss_mask != 0
    return np.array_equal(rule(mask, right.prompt_length), wrong.loss_mask != 0)


def _without(part: Callable[[np.ndarray], np.ndarray]) -> _Rule:
    return lambda mask, _: mask & ~part(mask)


def _edges(mask: np.ndarray, *, first: bool) -> np.ndarray:
    steps = np.diff(np.concatenate([[0], mask.astype(int), [0]]))
    found: np.ndarray = steps[:-1] == 1 if first else steps[1:] == -1
    return found


def _environment(mask: np.ndarray) -> np.ndarray:
    """The environment tokens between two answers, numbered by the answer before."""
    places = np.flatnonzero(mask)
    inside = np.zeros(len(mask), bool)
    if places.size:
        inside[places[0] : places[-1]] = True
    number = np.cumsum(np.diff(np.concatenate([[0], mask.astype(int)])) == 1)
    between: np.ndarray = np.where(inside & ~mask, number, 0)
    return between


def _last(mask: np.ndarray) -> np.ndarray:
    turns = turn_of(mask)
    last: np.ndarray = (turns > 0) & (turns == turns.max(initial=0))
    return last


def _rules() -> Iterator[tuple[str, str, _Rule]]:
    """Every exact rule: id, text, and the mask it makes."""
    for edge, name, word in ((True, "mask-off-at-start", "first"), (False, "mask-off-at-end", "last")):
        text = f"leaves out the {word} token of"

        def at(mask: np.ndarray, edge: bool = edge) -> np.ndarray:
            return _edges(mask, first=edge)

        yield name, f"{text} every answer", _without(at)
        yield name, f"{text} the last answer", _without(lambda mask, at=at: at(mask) & _last(mask))  # type: ignore[misc]
        yield name, f"{text} the first answer", _without(lambda mask, at=at: at(mask) & (turn_of(mask) == 1))  # type: ignore[misc]
        yield name, f"{text} every answer but the last", _without(lambda mask, at=at: at(mask) & ~_last(mask))  # type: ignore[misc]
        yield name, f"{text} every answer but the first", _without(lambda mask, at=at: at(mask) & (turn_of(mask) > 1))  # type: ignore[misc]
    yield "last-answer-only", "leaves out all answers but the last", lambda mask, _: _last(mask)
    yield "turn-not-trained", "leaves out all answers but the first", lambda mask, _: mask & (turn_of(mask) == 1)
    for turn in range(1, _TURNS):
        rule: _Rule = lambda mask, _, n=turn: mask & (turn_of(mask) != n)  # type: ignore[misc]  # noqa: E731
        yield "turn-not-trained", f"leaves out answer {turn}", rule
    text = "also covers environment text"
    yield "environment-in-mask", f"{text} between the answers", lambda mask, _: mask | (_environment(mask) > 0)
    yield "environment-in-mask", f"{text}: its last token", lambda mask, _: mask | _before_answers(mask)
    for turn in range(1, _TURNS):
        rule = lambda mask, _, n=turn: mask | (_environment(mask) == n)  # type: ignore[misc]  # noqa: E731
        yield "environment-in-mask", f"{text} after answer {turn}", rule
    yield "mask-shifted", "is one position early", lambda mask, _: np.append(mask[1:], False)
    yield "mask-shifted", "is one position late", lambda mask, _: np.append(False, mask[:-1])


def _before_answers(mask: np.ndarray) -> np.ndarray:
    starts = _edges(mask, first=True) & (turn_of(mask) > 1)
    before: np.ndarray = np.append(starts[1:], False)
    return before


def _of_one_token(label: str, pairs: list[tuple[SampleTokens, SampleTokens]], changed: int) -> Iterator[Explanation]:
    """One token is trained on wherever it was sampled on one side, and nowhere on the other."""
    left_out = {int(token) for a, b in pairs for token in a.tokens[(a.loss_mask != 0) & (b.loss_mask == 0)]}
    if len(left_out) == 1 and changed > 1:
        token = next(iter(left_out))
        if all(np.array_equal((a.loss_mask != 0) & (a.tokens != token), b.loss_mask != 0) for a, b in pairs):
            text = f"{label}'s loss mask leaves out every token {token} ({changed} samples)"
            yield Explanation("token-not-trained", text, parameters={"side": label, "token": token})


def _loosely(label: str, changed: list[tuple[SampleTokens, SampleTokens]]) -> Iterator[Explanation]:
    """Faults that do not follow one rule for all samples."""
    for name, text, fault in (
        ("samples-masked-out", "leaves whole samples out", _is_empty),
        ("prompt-in-mask", "also covers prompt tokens", _covers_prompt),
        ("environment-in-mask", "also covers environment tokens after the prompt", _covers_environment),
    ):
        faulty = sum(fault(right, wrong) for right, wrong in changed)
        if faulty:
            said = f"{label}'s loss mask {text} ({faulty} samples)"
            yield for_samples(name, said, faulty, len(changed), {"side": label, "samples": faulty})


def _is_empty(_right: SampleTokens, wrong: SampleTokens) -> bool:
    return not np.any(wrong.loss_mask)


def _added(right: SampleTokens, wrong: SampleTokens) -> np.ndarray | None:
    """The tokens that are trained on in addition, where none is left out."""
    one, other = right.loss_mask != 0, wrong.loss_mask != 0
    return np.flatnonzero(other & ~one) if not (one & ~other).any() else None


def _covers_prompt(right: SampleTokens, wrong: SampleTokens) -> bool:
    places = _added(right, wrong)
    return places is not None and bool((places < right.prompt_length).all())


def _covers_environment(right: SampleTokens, wrong: SampleTokens) -> bool:
    places = _added(right, wrong)
    return places is not None and bool((places > right.prompt_length).all())


HYPOTHESES = {"trajectory": (masks,)}
