import numpy as np
import pytest
import torch

from rldbg.core import SampleId
from rldbg.inference import GenerationRequest, Sampler, sample_key, uniform
from rldbg.replay import Trajectory, TrajectoryBatch
from rldbg.trainer.model import build_model
from rldbg.trainer.settings import ModelSettings, TinyModel
from rldbg.trainer.steps import forward
from rounding import LOG_PROB_ATOL, LOG_PROB_RTOL, decided, near

VOCABULARY = 12


@pytest.fixture(scope="module")
def model():
    return build_model(ModelSettings(tiny=TinyModel(16, 1, 2)), vocabulary_size=VOCABULARY, seed=3)


def requests(count, seed=0):
    generator = np.random.default_rng(seed)
    return [
        GenerationRequest(
            tuple(generator.integers(2, VOCABULARY, size=generator.integers(1, 6)).tolist()),
            sample_key(0, 5, SampleId("g", number)),
        )
        for number in range(count)
    ]


def test_random_numbers_are_uniform_and_belong_to_key_and_position():
    keys = [sample_key(0, step, SampleId(f"g{group}", 1)) for step in range(50) for group in range(40)]
    numbers = uniform(keys, [0] * len(keys))
    assert len(set(keys)) == len(keys)
    assert numbers.min() >= 0 and numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.02 and abs(numbers.var() - 1 / 12) < 0.005
    assert np.array_equal(uniform(keys[::-1], [0] * len(keys)), numbers[::-1])
    assert not np.any(uniform(keys, [1] * len(keys)) == numbers)


@pytest.mark.parametrize("change", [(1, 5, "g", 0), (0, 6, "g", 0), (0, 5, "h", 0), (0, 5, "g", 1)])
def test_every_part_of_the_key_counts(change):
    seed, step, group, run = change
    assert sample_key(seed, step, SampleId(group, run)) != sample_key(0, 5, SampleId("g", 0))


def test_the_same_batch_gives_the_same_answers_and_another_cut_the_same_tokens(model):
    sampler = Sampler(model, pad_id=0, eos_id=1)
    batch = requests(12)
    whole = sampler.generate(batch, max_new_tokens=6)
    assert whole == sampler.generate(batch, max_new_tokens=6)
    cut = [
        answer for start in range(0, 12, 5) for answer in sampler.generate(batch[start : start + 5], max_new_tokens=6)
    ]
    compared = [
        (ours, theirs)
        for request, ours, theirs in zip(batch, cut, whole, strict=True)
        if decided(model, request.prompt, theirs.tokens, numbers=numbers_of(request, len(theirs.tokens)))
    ]
    assert len(compared) > 6
    for ours, theirs in compared:
        assert ours.tokens == theirs.tokens and ours.logprobs == near(theirs.logprobs)


def numbers_of(request, count):
    return uniform([request.key] * count, range(count))


def test_answers_end_with_the_end_token_or_at_the_limit(model):
    answers = Sampler(model, pad_id=0, eos_id=1).generate(requests(200), max_new_tokens=8)
    assert {answer.finished for answer in answers} == {True, False}
    for answer in answers:
        assert answer.finished == (answer.tokens[-1] == 1)
        assert 1 not in answer.tokens[:-1]
        assert answer.finished or len(answer.tokens) == 8


def test_log_probs_are_those_of_the_model(model):
    batch = requests(10)
    answers = Sampler(model, pad_id=0, eos_id=1).generate(batch, max_new_tokens=5, temperature=0.7)
    padded = TrajectoryBatch.from_trajectories(
        [
            Trajectory(
                SampleId("g", number),
                np.asarray([*request.prompt, *answer.tokens]),
                np.asarray([0] * len(request.prompt) + [1] * len(answer.tokens)),
                0.0,
                np.asarray([0.0] * len(request.prompt) + answer.logprobs, dtype=np.float32),
            )
            for number, (request, answer) in enumerate(zip(batch, answers, strict=True))
        ]
    )
    with torch.no_grad():
        log_probs = forward(model, padded, temperature=0.7).log_probs
    mask = padded.response_mask.bool()
    torch.testing.assert_close(log_probs[mask], padded.rollout_log_probs[mask], rtol=LOG_PROB_RTOL, atol=LOG_PROB_ATOL)


def test_temperature_zero_takes_the_likeliest_token(model):
    sampler = Sampler(model, pad_id=0, eos_id=1)
    cold = sampler.generate(requests(6), max_new_tokens=3, temperature=0)
    other_keys = [GenerationRequest(request.prompt, request.key + 1) for request in requests(6)]
    assert cold == sampler.generate(other_keys, max_new_tokens=3, temperature=0)


def test_new_weights_are_used_and_named(model):
    sampler = Sampler(
        build_model(ModelSettings(tiny=TinyModel(16, 1, 2)), vocabulary_size=VOCABULARY, seed=4), pad_id=0, eos_id=1
    )
    before = sampler.generate(requests(20), max_new_tokens=4)
    sampler.load_weights(model.state_dict(), policy_version=7)
    after = sampler.generate(requests(20), max_new_tokens=4)
    assert before != after and {answer.policy_version for answer in after} == {7}
    assert sampler.generate([], max_new_tokens=4) == []
