"""Which sample of one recording is which sample of the other, at one step.

By `(group_id, run_id)` where both sides share keys; else by prompt, pairing the responses with the longest common
prefix, so that one wrong token does not make a sample unaligned. Samples with equal tokens are interchangeable.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rldbg.analysis.side import Side
from rldbg.core import SampleId, prompt_hash
from rldbg.recording import IDS_FROM, Record

# Kinds whose records say which tokens a sample has, the most informative first.
_TOKEN_SOURCES = (
    ("trajectory", "tokens"),
    ("prepared_trajectories", "tokens"),
    ("datums", "input_tokens"),
    ("forward_data", "input_ids"),
    ("batch_inputs", "input_ids"),
)


class StepSamples:
    """The samples of one recording at one step: their tokens and prompts, as far as recorded.

    Everything is read on first use: where both sides share sample ids, tokens are never read.
    """

    def __init__(self, side: Side, step: int) -> None:
        self._side, self._step = side, step

    @classmethod
    def read(cls, side: Side, step: int) -> StepSamples:
        return cls(side, step)

    def _records(self) -> Iterator[tuple[Record, str]]:
        """The records that say which tokens samples have, of the most informative kind recorded."""
        for kind, name in _TOKEN_SOURCES:
            found = False
            for record in self._side.records(kind, self._step):
                if name in record.fields and len(record.samples):
                    found = True
                    yield record, name
            if found:
                return

    @cached_property
    def made_up_ids(self) -> bool:
        """Ids that a layout made from the order of a file say nothing about another file.

        It makes all ids of a kind in one way: one record is enough to know.
        """
        for kind, _ in _TOKEN_SOURCES:
            first = next((record for record in self._side.records(kind, self._step) if record.samples), None)
            if first is not None:
                return IDS_FROM in first.extra
        return False

    @cached_property
    def tokens(self) -> dict[SampleId, np.ndarray]:
        return self._known[0]

    @cached_property
    def prompts(self) -> dict[SampleId, str]:
        return self._known[1]

    @cached_property
    def _known(self) -> tuple[dict[SampleId, np.ndarray], dict[SampleId, str]]:
        sequences: dict[SampleId, np.ndarray] = {}
        prompts: dict[SampleId, str] = {}
        for record, name in self._records():
            masks = list(record.rows("loss_mask")) if "loss_mask" in record.fields else None
            for row, (sample, tokens) in enumerate(zip(record.samples, record.rows(name), strict=False)):
                if sample in sequences:
                    continue
                sequences[sample] = np.asarray(tokens)
                if record.prompt_hashes:
                    prompts[sample] = record.prompt_hashes[row]
                elif masks is not None:
                    prompts[sample] = hash_of_prompt(tokens, masks[row])
        return sequences, prompts


def hash_of_prompt(tokens: np.ndarray, loss_mask: np.ndarray) -> str:
    """The hash of the tokens before the first trained one."""
    trained = np.flatnonzero(loss_mask)
    length = int(trained[0]) if trained.size else len(tokens)
    return prompt_hash(np.asarray(tokens[:length], dtype="<i8").tobytes())


@dataclass(frozen=True, slots=True)
class SamplePairs:
    """How samples of A map to samples of B, by what, and which are left over."""

    method: str
    to_b: Mapping[SampleId, SampleId]
    only_a: tuple[SampleId, ...] = ()
    only_b: tuple[SampleId, ...] = ()


def pair_samples(a: Iterable[SampleId], b: Iterable[SampleId], in_a: StepSamples, in_b: StepSamples) -> SamplePairs:
    """Pairs the samples that records of both sides name at one step."""
    left, right = list(dict.fromkeys(a)), list(dict.fromkeys(b))
    shared = set(left) & set(right)
    trusted = shared and not (in_a.made_up_ids or in_b.made_up_ids)
    if trusted or not (in_a.prompts and in_b.prompts):
        return SamplePairs(
            "ids",
            {sample: sample for sample in left if sample in shared},
            tuple(sample for sample in left if sample not in shared),
            tuple(sample for sample in right if sample not in shared),
        )
    pairs = _pair_by_prompt(left, right, in_a, in_b)
    taken = set(pairs.values())
    return SamplePairs(
        "prompt",
        pairs,
        tuple(sample for sample in left if sample not in pairs),
        tuple(sample for sample in right if sample not in taken),
    )


def _pair_by_prompt(
    left: list[SampleId], right: list[SampleId], in_a: StepSamples, in_b: StepSamples
) -> dict[SampleId, SampleId]:
    groups_a, groups_b = _by_prompt(left, in_a), _by_prompt(right, in_b)
    pairs: dict[SampleId, SampleId] = {}
    for prompt, members in groups_a.items():
        pairs |= _pair_group(members, groups_b.get(prompt, []), in_a.tokens, in_b.tokens)
    return pairs


def _by_prompt(samples: list[SampleId], known: StepSamples) -> dict[str, list[SampleId]]:
    groups: dict[str, list[SampleId]] = defaultdict(list)
    for sample in samples:
        if sample in known.prompts:
            groups[known.prompts[sample]].append(sample)
    return groups


def _pair_group(
    members_a: list[SampleId],
    members_b: list[SampleId],
    tokens_a: Mapping[SampleId, np.ndarray],
    tokens_b: Mapping[SampleId, np.ndarray],
) -> dict[SampleId, SampleId]:
    """Equal responses first, in order of occurrence; then the longest common prefix wins."""
    pairs: dict[SampleId, SampleId] = {}
    waiting: dict[bytes, list[SampleId]] = defaultdict(list)
    for sample in members_b:
        waiting[token_bytes(tokens_b[sample])].append(sample)
    for sample in members_a:
        equal = waiting.get(token_bytes(tokens_a[sample]))
        if equal:
            pairs[sample] = equal.pop(0)
    rest_a = [sample for sample in members_a if sample not in pairs]
    rest_b = [sample for queue in waiting.values() for sample in queue]
    ranked = sorted(
        (
            (-common_prefix(tokens_a[a], tokens_b[b]), place_a, place_b)
            for place_a, a in enumerate(rest_a)
            for place_b, b in enumerate(rest_b)
        )
    )
    used_a: set[int] = set()
    used_b: set[int] = set()
    for _, place_a, place_b in ranked:
        if place_a not in used_a and place_b not in used_b:
            pairs[rest_a[place_a]] = rest_b[place_b]
            used_a.add(place_a)
            used_b.add(place_b)
    return pairs


def token_bytes(tokens: np.ndarray) -> bytes:
    """Equal for equal tokens, whatever their dtype."""
    return np.asarray(tokens, dtype="<i8").tobytes()


def common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """How many leading tokens two sequences share."""
    length = min(len(a), len(b))
    unequal = np.flatnonzero(a[:length] != b[:length])
    return int(unequal[0]) if unequal.size else length
