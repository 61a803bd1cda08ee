"""Sampling one token per row: which tokens are possible, how often, and which log prob is reported."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from rldbg.algorithms import sample_tokens, top_tokens
from rounding import near


@dataclass(frozen=True)
class Rule:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    logprob_mode: str = "temperature"


def test_the_three_modes_of_logprobs():
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]] * 4)
    base = Rule(temperature=2.0, top_k=2)
    modes = [replace(base, logprob_mode=mode) for mode in ("temperature", "raw", "sampled")]
    sampled = sample_tokens(logits, [*modes, replace(base, temperature=0.0)], np.array([0.99, 0.99, 0.99, 0.5]))
    assert sampled.token_b.tolist() == [3, 3, 3, 3]
    scaled, raw = torch.log_softmax(logits[0] / 2, -1), torch.log_softmax(logits[0], -1)
    kept = torch.log_softmax(torch.tensor([1.0, 1.5]), -1)
    assert sampled.logprob_b.tolist() == near([float(value) for value in (scaled[3], raw[3], kept[1], raw[3])])
    top = top_tokens(sampled.log_probs_bv, [0, 0, 4, 1])
    assert [token for token, _ in top[2]][:2] == [3, 2] and top[0] == [] and len(top[3]) == 1
    assert top[2][2][1] == float("-inf"), "what top-k left out cannot be sampled"


@pytest.mark.parametrize(
    ("settings", "possible"),
    [
        (Rule(top_k=1), {3}),
        (Rule(top_k=2), {2, 3}),
        (Rule(top_k=2**70), {0, 1, 2, 3}),
        (Rule(top_p=0.6), {3}),
        (Rule(top_p=0.7), {2, 3}),
        (Rule(min_p=0.3), {2, 3}),
        (Rule(), {0, 1, 2, 3}),
    ],
)
def test_what_can_be_sampled(settings, possible):
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]]).expand(999, 4)
    tokens = sample_tokens(logits, [settings] * 999, np.arange(999) / 999).token_b.tolist()
    assert set(tokens) == possible
    share = torch.softmax(torch.where(torch.tensor([n in possible for n in range(4)]), logits[0], -torch.inf), -1)
    assert np.bincount(tokens, minlength=4) / 999 == pytest.approx(share.numpy(), abs=2e-3)
