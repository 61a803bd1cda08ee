"""Hypotheses about the tokens of a rollout: changed, cut, copied, or from another step."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from rldbg.analysis.explain.contexts import NOISE
from rldbg.analysis.explain.evidence import Evidence, Explanation, SamplePair, largest
from rldbg.analysis.explain.passes import SideStep
from rldbg.analysis.explain.subsets import turn_of
from rldbg.analysis.samples import common_prefix, token_bytes
from rldbg.analysis.tokens import SampleTokens, read_tokens
from rldbg.core import SampleId


def prompt_changed(evidence: Evidence) -> Iterator[Explanation]:
    """The same samples have different prompts."""
    if any(_copied(evidence, wrong) for _, _, wrong in evidence.directions):
        return
    # Where an answer loses its only token, the text behind it seems to belong to the prompt.
    pairs = [pair for pair in evidence.changed if not _is_in_answer(_lost(*pair), pair)]
    prompts = [(a.tokens[: a.prompt_length], b.tokens[: b.prompt_length]) for a, b in pairs]
    changed = [(a, b) for a, b in prompts if not np.array_equal(a, b)]
    # Equal tokens with a different mask only look like a different prompt.
    moved = sum(a.prompt_length != b.prompt_length for a, b in evidence.samples)
    if not changed or moved > sum(a.prompt_length != b.prompt_length for a, b in evidence.changed):
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
    share = len(changed) / len(evidence.samples)
    yield Explanation("prompt-changed", text, parameters={"samples": len(changed)}, share=share)


def retokenised(evidence: Evidence) -> Iterator[Explanation]:
    """Different tokens in an answer with the log probs of the same samples: they were changed after sampling."""
    changed, residual, turns = 0, 0.0, set()
    for a, b in evidence.changed:
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
        turns.add(int(turn_of(a.loss_mask)[place]))
    if changed > 1:
        where = f", from turn {min(turns)} on" if min(turns) > 1 else ""
        text = (
            f"{changed} samples have different tokens but the same log probs{where}: tokens were changed after sampling"
        )
        yield Explanation("retokenised", text, residual, NOISE, {"samples": changed, "first_turn": min(turns)})


def environment_changed(evidence: Evidence) -> Iterator[Explanation]:
    """Samples first differ in text that the policy did not sample, after the prompt."""
    changed, kept = 0, 0
    for a, b in evidence.changed:
        place = common_prefix(a.tokens, b.tokens)
        inside = [place < len(x.tokens) and place > x.prompt_length and not x.loss_mask[place] for x in (a, b)]
        same_answers = np.array_equal(a.tokens[a.loss_mask != 0], b.tokens[b.loss_mask != 0])
        # Where one side lacks the text, an answer's token stands in its place.
        if place < max(a.prompt_length, b.prompt_length) or not (all(inside) or (any(inside) and same_answers)):
            return
        changed += 1
        kept += same_answers
    if changed:
        after = "with the same answers: it was changed after sampling" if kept == changed else "before later answers"
        text = f"{changed} samples have different environment text (a tool's or a template's), {after}"
        yield Explanation("environment-changed", text, parameters={"samples": changed, "same_answers": kept})


def turns_cut(evidence: Evidence) -> Iterator[Explanation]:
    """One side's conversations end after fewer turns, and are the beginnings of the other side's."""
    for label, right, wrong in evidence.directions:
        pairs = [(pair[right], pair[wrong]) for pair in evidence.samples]
        shorter = [(a, b) for a, b in pairs if len(b.tokens) < len(a.tokens) and len(b.answers) < len(a.answers)]
        if not shorter:
            continue
        limit = max((len(b.answers) for _, b in pairs), default=0)
        begins = all(np.array_equal(a.tokens[: len(b.tokens)], b.tokens) for a, b in pairs)
        if begins and all(len(b.answers) == limit for _, b in shorter):
            text = f"{label}'s conversations end after {limit} turns, the other side's do not ({len(shorter)} samples)"
            yield Explanation("turns-cut", text, parameters={"side": label, "turns": limit, "samples": len(shorter)})


def of_another_step(evidence: Evidence) -> Iterator[Explanation]:
    """One side trains on the samples that the other had at an earlier or later step."""
    sides = (evidence.a, evidence.b)
    alike = len(evidence.samples) - len(evidence.changed)
    for label, right, wrong in evidence.directions:
        if len(sides[wrong].samples) - alike < 4:
            continue
        have = _token_sets(sides[wrong].samples)
        here = _token_sets(sides[right].samples)
        odd = have - here
        if len(odd) < 4:
            continue
        for step in sorted(sides[right].side.steps("trajectory"), key=lambda step: abs(step - evidence.step)):
            there = _token_sets(read_tokens(sides[right].side, step)) if step != evidence.step else set()
            if len(odd & there) >= 0.9 * len(odd):
                what = "the samples" if len(odd) == len(have) else f"{len(odd)} samples"
                text = f"{label} has {what} of step {step} at step {evidence.step}"
                yield Explanation("samples-of-another-step", text, parameters={"side": label, "step": step})
                return


def _token_sets(samples: Mapping[SampleId, SampleTokens]) -> set[bytes]:
    return {np.asarray(sample.tokens, dtype="<i8").tobytes() for sample in samples.values()}


def duplicated(evidence: Evidence) -> Iterator[Explanation]:
    """On one side certain samples of every group are copies of others, with their log probs."""
    copies = [_copies(side) for _, side in evidence.sides]
    for (label, _), (mine, groups), (other, _) in zip(evidence.sides, copies, reversed(copies), strict=True):
        fixed = sorted(pair for pair, count in mine.items() if count >= 0.9 * groups and other[pair] <= 0.5 * groups)
        if fixed and groups >= 3:
            pairs = ", ".join(f"{one} and {two}" for one, two in fixed[:3])
            text = f"in {label}, samples {pairs} of each group are equal: copies, or the same random numbers"
            yield Explanation("samples-duplicated", text, parameters={"side": label, "pairs": fixed})


def _copies(side: SideStep) -> tuple[Counter[tuple[int, int]], int]:
    """How often two samples of a group, by their numbers in it, have equal tokens; and the number of groups."""
    groups: dict[str, list[SampleTokens]] = defaultdict(list)
    for sample in side.samples.values():
        groups[sample.sample.group_id].append(sample)
    counted: Counter[tuple[int, int]] = Counter()
    for members in groups.values():
        # Of equal samples, a few tokens are equal too.
        alike: dict[tuple[int, ...], list[SampleTokens]] = defaultdict(list)
        for member in sorted(members, key=lambda item: item.sample.run_id):
            size = len(member.tokens)
            alike[(size, *member.tokens[[size // 2, 2 * size // 3, -1]].tolist()) if size else (0,)].append(member)
        for some in alike.values():
            for one, two in itertools.combinations(some, 2):
                if np.array_equal(one.tokens, two.tokens):
                    counted[one.sample.run_id, two.sample.run_id] += 1
    return counted, len(groups)


def repeated(evidence: Evidence) -> Iterator[Explanation]:
    """In the place of some samples, one side has others of its own batch once more."""
    for label, _, wrong in evidence.directions:
        copied = _copied(evidence, wrong)
        if copied:
            copy, model = copied[0]
            text = f"{len(copied)} samples of {label} equal others of its batch, for example {copy} and {model}"
            text += ": copies, or the same random numbers"
            yield Explanation("samples-copied", text, parameters={"side": label, "samples": len(copied)})


def _copied(evidence: Evidence, wrong: int) -> list[tuple[SampleId, SampleId]]:
    """The samples of one side that differ from the other's, each with an unchanged one of its own side that it equals;
    empty unless all of them do so and there are two or more."""
    if len(evidence.changed) < 2:
        return []
    alike = {token_bytes(pair[wrong].tokens): pair[wrong].sample for pair in evidence.unchanged}
    found = [(pair[wrong].sample, alike.get(token_bytes(pair[wrong].tokens))) for pair in evidence.changed]
    copied = [(copy, model) for copy, model in found if model is not None]
    return copied if len(copied) == len(found) else []


def tokens_lost(evidence: Evidence) -> Iterator[Explanation]:
    """One side lacks a token within answers that the other has, and has what follows it."""
    for label, right, wrong in evidence.directions:
        lost = [(pair, _lost(*pair)) for pair in evidence.changed]
        known = {item for pair, item in lost if item is not None and len(pair[wrong].tokens) < len(pair[right].tokens)}
        tokens = {item.tokens for item in known}
        are_inside = all(_is_in_answer(item, pair) for pair, item in lost)
        if lost and are_inside and None not in {item for _, item in lost} and len(tokens) == 1 and known:
            what = ", ".join(map(str, next(iter(tokens))))
            some = f"{len(lost)} of {len(evidence.samples)} samples"
            text = f"{label}'s answers lack the token {what} before text that follows it on the other side ({some})"
            facts = {"side": label, "tokens": list(next(iter(tokens))), "samples": len(lost)}
            yield Explanation("tokens-lost", text, parameters=facts, together=_LOST)


class _Lost(NamedTuple):
    place: int
    tokens: tuple[int, ...]


def _lost(a: SampleTokens, b: SampleTokens) -> _Lost | None:
    """Where the shorter sequence lacks tokens of the longer one, and which; None if more than that differs."""
    shorter, longer = sorted((a.tokens, b.tokens), key=len)
    count, place = len(longer) - len(shorter), common_prefix(a.tokens, b.tokens)
    if not 0 < count <= _FEW_TOKENS or not np.array_equal(longer[place + count :], shorter[place:]):
        return None
    return _Lost(place, tuple(longer[place : place + count].tolist()))


def _is_in_answer(lost: _Lost | None, pair: SamplePair) -> bool:
    """Whether the lost tokens are an answer's, and something follows them."""
    longer = max(pair, key=lambda sample: len(sample.tokens))
    if lost is None or lost.place + len(lost.tokens) >= len(longer.tokens):
        return False
    return bool(longer.loss_mask[lost.place : lost.place + len(lost.tokens)].all())


def end_token_lost(evidence: Evidence) -> Iterator[Explanation]:
    """One token ends the answers of one side and never occurs on the other."""
    for label, right, wrong in evidence.directions:
        first = [(pair[right].answers[:1], pair[wrong].answers[:1]) for pair in evidence.samples]
        whole = [(a[0], b[0]) for a, b in first if a and b]
        lost = [a for a, b in whole if len(b) == len(a) - 1 and np.array_equal(a[:-1], b)]
        ends = {int(a[-1]) for a in lost}
        if len(lost) < 2 or len(ends) > 1:
            continue
        same = sum(np.array_equal(a, b) for a, b in whole)
        if len(lost) + same == len(whole) and not any(end in b for _, b in whole for end in ends):
            end = next(iter(ends))
            text = f"{label}'s answers lack the token {end} that ends them on the other side"
            yield Explanation("end-token-lost", text, parameters={"side": label, "token": end}, together=_LOST)


def truncated(evidence: Evidence) -> Iterator[Explanation]:
    """One side's answers are the beginnings of the other's, cut at one length."""
    for label, right, wrong in evidence.directions:
        first = [(pair[right].answers[:1], pair[wrong].answers[:1]) for pair in evidence.samples]
        whole = [(a[0], b[0]) for a, b in first if a and b]
        cut = [(a, b) for a, b in whole if len(b) < len(a)]
        if not cut:
            continue
        limit = max(len(b) for _, b in whole)
        beginnings = all(np.array_equal(a[: len(b)], b) for a, b in whole)
        if beginnings and all(len(b) == limit for _, b in cut):
            text = f"{label}'s answers end after {limit} tokens where the other side's continue ({len(cut)} samples)"
            yield Explanation("truncated", text, parameters={"side": label, "limit": limit, "samples": len(cut)})


def ends_lost(evidence: Evidence) -> Iterator[Explanation]:
    """Some samples of one side are the other's without their last tokens, equally many of each, with their log probs.

    An engine that stops for itself stops at a length or after a token, not so many tokens before the end.
    """
    for label, right, wrong in evidence.directions:
        cut = [(pair[right], pair[wrong]) for pair in evidence.changed]
        missing = {len(a.tokens) - len(b.tokens) for a, b in cut}
        if len(cut) < _FEWEST_CUT or len(missing) != 1 or min(missing) < 1:
            continue
        (count,) = missing
        kept = all(np.array_equal(a.tokens[: len(b.tokens)], b.tokens) for a, b in cut)
        within = all(np.count_nonzero(a.loss_mask[-count - 1 :]) > count for a, _ in cut)
        lengths = {len(b.answers[-1]) for _, b in cut if b.answers}
        if kept and within and len(lengths) > 1:
            some = f"{len(cut)} of {len(evidence.samples)} samples"
            text = f"{label}'s last answers lack their last {count} tokens ({some})"
            yield Explanation("answer-cut", text, parameters={"side": label, "tokens": count, "samples": len(cut)})


_FEWEST_CUT, _FEW_TOKENS = 4, 2
# That a token is lost and that it is lost wherever it ends an answer is one statement.
_LOST = "token lost"

HYPOTHESES = {
    "trajectory": (
        *(prompt_changed, retokenised, environment_changed, truncated, turns_cut, end_token_lost, ends_lost),
        *(of_another_step, duplicated, repeated, tokens_lost),
    )
}
