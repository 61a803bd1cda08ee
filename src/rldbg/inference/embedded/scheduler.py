"""Continuous batching: before every token, new sequences join and finished ones leave.

An iteration is at most one forward pass over the prompts that are waiting and one over a token of everything that runs.
Its invariant: row i of the cache belongs to running[i].
"""

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import Any

from rldbg.algorithms import log_softmax, sample_tokens, top_tokens
from rldbg.inference.backend import ModelCard, WeightVersion
from rldbg.inference.embedded.forward import ForwardPasses
from rldbg.inference.embedded.sequence import Sequence
from rldbg.inference.generation import Finish
from rldbg.inference.keyed_random import uniform


@dataclass(frozen=True, slots=True)
class Limits:
    """Most sequences at once, most places of the cache, most prompt tokens of one forward pass."""

    running: int = 256
    cache_tokens: int = 1 << 20
    prefill_tokens: int = 8192


class Scheduler:
    """Decides what the next forward pass computes. Used by one thread."""

    def __init__(self, passes: ForwardPasses, card: ModelCard, limits: Limits) -> None:
        self._passes = passes
        self._card = card
        self._limits = limits
        self.running: list[Sequence] = []
        self._in_step: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.version = WeightVersion()
        self.generated_tokens = 0

    @property
    def busy(self) -> bool:
        return bool(self.running or self.waiting)

    def step(self) -> list[Sequence]:
        """One iteration; the sequences that got a token."""
        admitted = self._admit()
        self._in_step = [*admitted, *self.running]
        if admitted:
            self._prefill(admitted)
            self._remove_finished()
        if self.running:
            self._decode()
            self._remove_finished()
        return self._taken_out()

    def abort(self, matches: Callable[[Sequence], bool], message: str) -> list[Sequence]:
        """Ends matching sequences; those without a token get the message that clients expect."""
        ended = [item for item in (*self.running, *self.waiting) if matches(item)]
        for item in ended:
            item.finish = Finish("abort", message=message if item.tokens else f"Abort before prefill: {message}")
        self._remove_finished()
        self.waiting = deque(item for item in self.waiting if item.finish is None)
        return ended

    def drop(self) -> list[Sequence]:
        """Forgets everything that runs, in whatever state a failed forward pass left it; all that was in that step."""
        self.running = []
        self._passes.cache.clear()
        return self._taken_out()

    def _taken_out(self) -> list[Sequence]:
        items, self._in_step = self._in_step, []
        return items

    def retract(self) -> None:
        """Everything that runs waits again, before the others; it continues from its tokens with a new cache."""
        self.waiting.extendleft(reversed(self.running))
        self.running = []
        self._passes.cache.clear()

    def _admit(self) -> list[Sequence]:
        """The longest run of waiting sequences that fits; at least one when nothing runs."""
        admitted: list[Sequence] = []
        longest = max((item.reserved for item in self.running), default=0)
        width = 0
        while self.waiting and len(self.running) + len(admitted) < self._limits.running:
            item = self.waiting[0]
            longest, width = max(longest, item.reserved), max(width, len(item.known))
            count = len(admitted) + 1
            too_much = (len(self.running) + count) * longest > self._limits.cache_tokens
            too_wide = count * width > self._limits.prefill_tokens
            if (admitted and (too_much or too_wide)) or (self.running and too_much):
                break
            admitted.append(self.waiting.popleft())
        return admitted

    def _prefill(self, admitted: list[Sequence]) -> None:
        scored = [item for item in admitted if item.job.prompt_from is not None and not item.prompt_logprobs]
        self.running += admitted
        logits_bv, logits_btv = self._passes.prefill([item.known for item in admitted], all_logits=bool(scored))
        for row, item in enumerate(admitted):
            if item in scored:
                _score_prompt(item, logits_btv[row])
        self._sample(admitted, logits_bv)

    def _decode(self) -> None:
        logits_bv = self._passes.decode([item.tokens[-1] for item in self.running])
        self._sample(self.running, logits_bv)

    def _sample(self, items: list[Sequence], logits_bv: Any) -> None:
        numbers = uniform([item.job.seed for item in items], [item.job.position + len(item.tokens) for item in items])
        settings = [item.job.settings for item in items]
        sampled = sample_tokens(logits_bv, settings, numbers, adjusted(logits_bv, items))
        tops = top_tokens(sampled.log_probs_bv, [item.job.top_logprobs for item in items])
        number, text = self.version.number, self._card.text
        tokens, logprobs = sampled.token_b.tolist(), sampled.logprob_b.tolist()
        for item, token, logprob, top in zip(items, tokens, logprobs, tops, strict=True):
            if item.limit:
                item.add(token, logprob, number, top, text)
            else:
                item.finish = Finish("length")
        self.generated_tokens += len(items)

    def _remove_finished(self) -> None:
        for row in reversed(range(len(self.running))):
            if self.running[row].finish is not None:
                self._passes.cache.remove(row)
                last = self.running.pop()
                if row < len(self.running):
                    self.running[row] = last


def _score_prompt(item: Sequence, logits_tv: Any) -> None:
    """Log prob and rank of each prompt token under the model, None for the first; of those before `prompt_from` too."""
    import torch

    prompt = torch.tensor(item.job.prompt, device=logits_tv.device)
    log_probs_tv = log_softmax(logits_tv[: len(prompt) - 1])
    own_t1 = log_probs_tv.gather(-1, prompt[1:, None])
    scores = own_t1[:, 0].tolist()
    item.prompt_logprobs = [None, *scores]
    item.prompt_ranks = [None, *((log_probs_tv > own_t1).sum(-1) + 1).tolist()]
    if item.job.top_logprobs:
        item.prompt_top = [[], *top_tokens(log_probs_tv, [item.job.top_logprobs] * len(scores))]


def adjusted(logits_bv: Any, items: Rows[Sequence]) -> Any:
    """The logits to sample from; None if no row changes them."""
    rows = [row for row, item in enumerate(items) if item.job.settings.adjusts]
    if not rows:
        return None
    result = logits_bv.float().clone()
    for row in rows:
        _adjust(result[row], items[row])
    return result


def _adjust(logits_v: Any, item: Sequence) -> None:
    """In place, in the order of the engines: penalties, biases, then what is forbidden."""
    import torch

    settings, device = item.job.settings, logits_v.device
    if settings.penalties:
        _penalise(logits_v, item)
    if settings.logit_bias:
        ids, values = zip(*settings.logit_bias, strict=True)
        logits_v[torch.tensor(ids, device=device)] += torch.tensor(values, device=device)
    if settings.allowed_token_ids:
        allowed = torch.tensor(sorted(settings.allowed_token_ids), device=device)
        kept = logits_v[allowed]
        logits_v.fill_(float("-inf"))
        logits_v[allowed] = kept
    if item.matcher is not None:
        mask = torch.from_numpy(item.matcher.mask(len(logits_v))).to(device)
        logits_v.masked_fill_(~mask, float("-inf"))


def _penalise(logits_v: Any, item: Sequence) -> None:
    import torch

    penalties = item.job.settings.penalties
    assert penalties is not None
    if penalties.repetition != 1:
        seen = torch.tensor(sorted({*item.job.prompt, *item.tokens}), device=logits_v.device)
        values = logits_v[seen]
        logits_v[seen] = torch.where(values > 0, values / penalties.repetition, values * penalties.repetition)
    if item.tokens and (penalties.frequency or penalties.presence):
        made, counts = torch.tensor(item.tokens, device=logits_v.device).unique(return_counts=True)
        logits_v[made] -= penalties.frequency * counts + penalties.presence
