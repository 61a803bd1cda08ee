"""Sampling: log probs are those of the distribution drawn from, seeds decide alone, stops stop."""

import numpy as np
import pytest
import torch

from rldbg.training_service.errors import ServiceRequestError
from rldbg.training_service.sampling import ClientSamplingSettings, Continuation, prompt_logprobs

VOCABULARY = 11
PROMPT = np.asarray([3, 4, 5])


class Bigram(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(1)))

    def forward(self, input_ids, past_key_values=None, use_cache=False):
        return type("Output", (), {"logits": self.table[input_ids], "past_key_values": None})()


def draw(count=4, limit=6, seed=0, stop=frozenset(), report=0, decode=str, **settings):
    continuation = Continuation(Bigram(), PROMPT, count, ClientSamplingSettings(**settings), seed=seed, top_k=report)
    return continuation.run(limit, stop, decode)


def log_probs(last, **settings):
    """The distribution after `last`, worked out with numpy."""
    logits = Bigram().table.detach().numpy()[last].astype(np.float64) / settings.get("temperature", 1.0)
    probs = np.exp(logits - logits.max())
    probs /= probs.sum()
    order = np.argsort(-probs, kind="stable")
    keep = np.ones(VOCABULARY, bool)
    if settings.get("top_k", -1) > 0:
        keep[order[settings["top_k"] :]] = False
    if settings.get("top_p", 1.0) < 1:
        before = np.cumsum(probs[order]) - probs[order]
        keep[order[before >= settings["top_p"]]] = False
    probs = np.where(keep, probs, 0)
    with np.errstate(divide="ignore"):
        return np.log(probs / probs.sum())


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.6}, {"top_k": 5, "top_p": 0.8, "temperature": 2.0}]
)
def test_log_probs_are_those_of_the_distribution_that_was_drawn_from(settings):
    for sequence in draw(**settings):
        last = PROMPT[-1]
        for token, logprob in zip(sequence.tokens, sequence.logprobs, strict=True):
            assert logprob == pytest.approx(log_probs(last, **settings)[token], abs=1e-5)
            last = token


def test_the_numbers_drawn_have_the_distribution():
    first = [sequence.tokens[0] for sequence in draw(count=20_000, limit=1)]
    expected = np.exp(log_probs(PROMPT[-1]))
    np.testing.assert_allclose(np.bincount(first, minlength=VOCABULARY) / len(first), expected, atol=0.015)


def test_greedy_takes_the_likeliest_and_reports_the_models_own_log_prob():
    (sequence,) = draw(count=1, temperature=0.0)
    last = PROMPT[-1]
    for token, logprob in zip(sequence.tokens, sequence.logprobs, strict=True):
        assert token == int(log_probs(last).argmax())
        assert logprob == pytest.approx(log_probs(last).max(), abs=1e-5)
        last = token


def test_a_sample_depends_on_seed_prompt_and_its_number_alone():
    assert draw(count=2, seed=5) == draw(count=4, seed=5)[:2]
    assert draw(count=4, seed=5) != draw(count=4, seed=6)


def test_stop_tokens_and_texts_end_a_sample_and_keep_the_token():
    everything = frozenset(range(VOCABULARY))
    assert all(len(item.tokens) == 1 and item.stop_reason == "stop" for item in draw(stop=everything))
    assert all(len(item.tokens) == 6 and item.stop_reason == "length" for item in draw())
    letters = "abcdefghijk"
    text = draw(count=1)[0].tokens
    stop = letters[text[2]]
    (sequence,) = draw(count=1, decode=lambda tokens: "".join(letters[t] for t in tokens), stop_texts=(stop,))
    assert letters[sequence.tokens[-1]] == stop and stop not in [letters[t] for t in sequence.tokens[:-1]]


def test_the_likeliest_tokens_are_reported_with_the_models_own_log_probs():
    (sequence,) = draw(count=1, report=3, temperature=2.0)
    assert sequence.top.token_ids.shape == (6, 3)
    best = np.argsort(-log_probs(PROMPT[-1]))[:3]
    assert sequence.top.token_ids[0].tolist() == best.tolist()
    np.testing.assert_allclose(sequence.top.logprobs[0], log_probs(PROMPT[-1])[best], atol=1e-5)


def test_prompt_log_probs_start_with_none():
    values, top = prompt_logprobs(Bigram(), PROMPT, top_k=2)
    assert np.isnan(values[0])
    assert values[1] == pytest.approx(log_probs(3)[4], abs=1e-5)
    assert top.token_ids.shape == (3, 2) and np.isnan(top.logprobs[0]).all()


def test_stop_in_both_protocols_spelling():
    assert ClientSamplingSettings.parse({}).stop_at_end
    assert not ClientSamplingSettings.parse({"stop": []}).stop_at_end
    ids = ClientSamplingSettings.parse({"stop": [3]})
    assert ids.stop_tokens == {3} and not ids.stop_at_end
    weaver = ClientSamplingSettings.parse({"stop": ["x"], "stop_token_ids": [4]})
    assert weaver.stop_tokens == {4} and weaver.stop_texts == ("x",) and weaver.stop_at_end
    assert ClientSamplingSettings.parse({"stop": "x"}).stop_texts == ("x",)


@pytest.mark.parametrize(
    "body",
    [
        [],
        {"temperature": -1},
        {"temperature": "hot"},
        {"top_p": 0},
        {"top_p": 1.5},
        {"top_k": -2},
        {"max_tokens": 0},
        {"max_tokens": 1.5},
        {"seed": "x"},
        {"stop": {"a": 1}},
        {"stop": [[1]]},
        {"stop_token_ids": "12"},
    ],
)
def test_wrong_sampling_parameters_are_refused(body):
    with pytest.raises(ServiceRequestError):
        ClientSamplingSettings.parse(body)
