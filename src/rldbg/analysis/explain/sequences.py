"""Hypotheses about the tokens and masks of a rollout: changed, cut, or masked differently after sampling."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from rldbg.analysis.explain.contexts import NOISE
from rldbg.analysis.explain.evidence import Evidence, Explanation, for_samples, largest
from rldbg.analysis.samples import common_prefix
from rldbg.analysis.tokens import SampleTokens

# Says whether a sample's mask is wrong in one known way: (right, wrong, positions that differ).
_MaskFault = Callable[[SampleTokens, SampleTokens, np.ndarray], bool]


def _prompt(right: SampleTokens, wrong: SampleTokens, places: np.ndarray) -> bool:
    added = bool((places < right.prompt_length).all() and (wrong.loss_mask[places] != 0).all())
    return added and not _any_drawn(wrong, places)


def _any_drawn(sample: SampleTokens, places: np.ndarray) -> bool:
    """Whether the policy sampled any of these tokens, as far as recorded."""
    versions = sample.quantities.get("policy_versions")
    return versions is not None and bool((versions.values[places - versions.start] >= 0).any())


def _earlier_answers(right: SampleTokens, wrong: SampleTokens, places: np.ndarray) -> bool:
    last = np.flatnonzero(np.diff(np.append(0, right.loss_mask != 0).astype(int)) == 1)[-1]
    return bool((places < last).all() and not wrong.loss_mask[places].any() and wrong.loss_mask[last])


def _environment(right: SampleTokens, wrong: SampleTokens, places: np.ndarray) -> bool:
    added = bool((places > right.prompt_length).all() and (wrong.loss_mask[places] != 0).all())
    versions = wrong.quantities.get("policy_versions")
    if versions is not None:
        return added and not _any_drawn(wrong, places)
    return added and bool(places.max() < np.flatnonzero(right.loss_mask)[-1])


def _end(right: SampleTokens, _wrong: SampleTokens, places: np.ndarray) -> bool:
    return len(places) == 1 and int(places[0]) == int(np.flatnonzero(right.loss_mask)[-1])


def _start(right: SampleTokens, _wrong: SampleTokens, places: np.ndarray) -> bool:
    return len(places) == 1 and int(places[0]) == right.prompt_length


def _moved(right: SampleTokens, wrong: SampleTokens, _places: np.ndarray) -> bool:
    a, b = right.loss_mask != 0, wrong.loss_mask != 0
    return bool(np.array_equal(a[:-1], b[1:]) or np.array_equal(a[1:], b[:-1]))


def _ends_of_runs(right: SampleTokens, _wrong: SampleTokens, places: np.ndarray) -> bool:
    ends = np.flatnonzero(np.diff(np.append(right.loss_mask != 0, False).astype(int)) == -1)
    return set(places.tolist()) <= set(ends.tolist())


def _all_off(_right: SampleTokens, wrong: SampleTokens, _places: np.ndarray) -> bool:
    return not np.any(wrong.loss_mask)


_MASK_FAULTS: tuple[tuple[str, _MaskFault, str], ...] = (
    ("samples-masked-out", _all_off, "'s loss mask leaves whole samples out"),
    ("prompt-in-mask", _prompt, "'s loss mask also covers prompt tokens"),
    ("environment-in-mask", _environment, "'s loss mask also covers environment tokens after the prompt"),
    ("mask-off-at-end", _end, "'s loss mask leaves out the last trained token of a sample"),
    ("mask-off-at-end", _ends_of_runs, "'s loss mask leaves out the last token of an answer"),
    ("last-answer-only", _earlier_answers, "'s loss mask leaves out all answers of a conversation but the last"),
    ("mask-off-at-start", _start, "'s loss mask leaves out the first response token"),
    ("mask-shifted", _moved, "'s loss mask is off by one position"),
)


def masks(evidence: Evidence) -> Iterator[Explanation]:
    """Equal tokens, different masks: where do they differ?"""
    for label, right, wrong in evidence.directions:
        changed = [
            (pair[right], pair[wrong], np.flatnonzero((pair[0].loss_mask != 0) != (pair[1].loss_mask != 0)))
            for pair in evidence.samples
            if np.array_equal(pair[0].tokens, pair[1].tokens)
            and not np.array_equal(pair[0].loss_mask != 0, pair[1].loss_mask != 0)
        ]
        for name, fault, text in _MASK_FAULTS:
            faulty = sum(fault(*item) for item in changed)
            if faulty:
                facts = {"side": label, "samples": faulty}
                yield for_samples(name, f"{label}{text} ({faulty} samples)", faulty, len(changed), facts)
            if faulty == len(changed):
                break


def prompt_changed(evidence: Evidence) -> Iterator[Explanation]:
    """The same samples have different prompts."""
    prompts = [(a.tokens[: a.prompt_length], b.tokens[: b.prompt_length]) for a, b in evidence.samples]
    changed = [(a, b) for a, b in prompts if not np.array_equal(a, b)]
    if not changed or any(np.array_equal(a.tokens, b.tokens) for a, b in evidence.samples):
        return
    longer = {len(b) - len(a) for a, b in changed}
    places = {common_prefix(a, b) for a, b in changed}
    tail = {common_prefix(a[::-1], b[::-1]) == min(len(a), len(b)) for a, b in changed}
    detail = ""
    if longer == {0}:
        detail = f": of equal length, different from token {min(places)} on"
    elif len(longer) == 1:
        extra = next(iter(longer))
        who, count = ("B", extra) if extra > 0 else ("A", -extra)
        where = "before" if tail == {True} else "within or after"
        detail = f": {who} has {count} more token(s) {where} the other's prompt"
    text = f"{len(changed)} samples have different prompts{detail}"
    yield Explanation("prompt-changed", text, parameters={"samples": len(changed)}, share=len(changed) / len(prompts))


def retokenised(evidence: Evidence) -> Iterator[Explanation]:
    """Different tokens with the log probs of the same samples: the text was tokenised again after sampling."""
    changed, residual = 0, 0.0
    for a, b in evidence.samples:
        if np.array_equal(a.tokens, b.tokens):
            continue
        mine, theirs = (sample.quantities.get("rollout_log_probs") for sample in (a, b))
        if mine is None or theirs is None or a.prompt_length != b.prompt_length:
            return
        length = min(len(a.tokens), len(b.tokens))
        if length <= a.prompt_length or not np.array_equal(a.tokens[: a.prompt_length], b.tokens[: b.prompt_length]):
            return
        place = common_prefix(a.tokens, b.tokens)
        if place >= length or not (a.loss_mask[place] and b.loss_mask[place]):
            return
        one, other = (item.values[a.prompt_length : length].astype(np.float64) for item in (mine, theirs))
        changed, residual = changed + 1, max(residual, largest(one - other))
    if changed:
        text = f"{changed} samples have different tokens but the same log probs: they were tokenised again"
        yield Explanation("retokenised", text, residual, NOISE, {"samples": changed})


def _answers(sample: SampleTokens) -> list[np.ndarray]:
    """The runs of trained tokens."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], (sample.loss_mask != 0).astype(int), [0]])))
    return [sample.tokens[start:stop] for start, stop in zip(edges[::2], edges[1::2], strict=True)]


def end_token_lost(evidence: Evidence) -> Iterator[Explanation]:
    """One token ends the answers of one side and never occurs on the other."""
    for label, right, wrong in evidence.directions:
        first = [(_answers(pair[right])[:1], _answers(pair[wrong])[:1]) for pair in evidence.samples]
        whole = [(a[0], b[0]) for a, b in first if a and b]
        lost = [a for a, b in whole if len(b) == len(a) - 1 and np.array_equal(a[:-1], b)]
        same = sum(np.array_equal(a, b) for a, b in whole)
        ends = {int(a[-1]) for a in lost}
        everywhere = len(lost) >= 2 and len(ends) == 1 and len(lost) + same == len(whole)
        if everywhere and not any(end in b for _, b in whole for end in ends):
            end = next(iter(ends))
            text = f"{label}'s answers lack the token {end} that ends them on the other side"
            yield Explanation("end-token-lost", text, parameters={"side": label, "token": end})


def truncated(evidence: Evidence) -> Iterator[Explanation]:
    """One side's answers are the beginnings of the other's, cut at one length."""
    for label, right, wrong in evidence.directions:
        first = [(_answers(pair[right])[:1], _answers(pair[wrong])[:1]) for pair in evidence.samples]
        whole = [(a[0], b[0]) for a, b in first if a and b]
        cut = [(a, b) for a, b in whole if len(b) < len(a)]
        limit = max((len(b) for _, b in whole), default=0)
        beginnings = all(np.array_equal(a[: len(b)], b) for a, b in whole)
        if cut and beginnings and all(len(b) == limit for _, b in cut):
            text = f"{label}'s answers end after {limit} tokens where the other side's continue ({len(cut)} samples)"
            yield Explanation("truncated", text, parameters={"side": label, "limit": limit, "samples": len(cut)})


HYPOTHESES = {"trajectory": (masks, prompt_changed, retokenised, truncated, end_token_lost)}
