"""Losses and gradients must not depend on how a batch is cut."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rldbg.core import SampleId, UsageError
from rldbg.replay import Trajectory
from rldbg.trainer.model import build_model
from rldbg.trainer.settings import (
    AlgorithmSettings,
    ModelSettings,
    OptimizerSettings,
    PolicySettings,
    Recipe,
    TinyModel,
)
from rldbg.trainer.shards import check_divisible, cut, micro_batches, places, prepare
from rldbg.trainer.steps import apply_gradients, forward, learning_rate, make_optimizer, train_micro_batch
from rounding import LOG_PROB_ATOL, LOG_PROB_RTOL, UNIT_ROUNDOFF

VOCABULARY = 12


def model(dtype="float32"):
    return build_model(ModelSettings(tiny=TinyModel(16, 1, 2), dtype=dtype), vocabulary_size=VOCABULARY, seed=0)


def trajectories(count=12, seed=0):
    generator = np.random.default_rng(seed)
    made = []
    for number in range(count):
        prompt, response = generator.integers(1, 5), generator.integers(1, 6)
        made.append(
            Trajectory(
                SampleId(f"g{number // 4}", number % 4),
                generator.integers(2, VOCABULARY, size=prompt + response),
                np.asarray([0] * prompt + [1] * response),
                float(generator.integers(0, 2)),
                np.zeros(prompt + response, dtype=np.float32),
            )
        )
    return made


def gradients(recipe, algorithm, micro_size):
    """Loss and gradient of one mini-batch, added up over ranks and micro-batches."""
    policy = model()
    batch = prepare(trajectories(), algorithm, max_length=8)
    with torch.no_grad():
        whole = next(micro_batches(batch, size=99, pad_id=0))
        old = forward(policy, whole.batch).log_probs + 0.1
    rows = [row[:length].numpy() for row, length in zip(old, whole.batch.response_lengths.tolist(), strict=True)]
    total = 0.0
    for shards in cut(batch.with_old_log_probs(rows), recipe):
        for micro in micro_batches(shards[0].batch, size=micro_size, pad_id=0):
            _, terms = train_micro_batch(policy, micro, algorithm, denominator=shards[0].denominator)
            total += float(terms.loss.detach())
    return total, {name: parameter.grad for name, parameter in policy.named_parameters()}


@pytest.mark.parametrize(
    ("aggregation", "loss", "advantages"),
    [("token_mean", "ppo", "grpo"), ("sequence_mean", "importance_sampling", "dapo"), ("sum", "ppo", "dapo")],
)
def test_ranks_and_micro_batches_add_up_to_the_whole(aggregation, loss, advantages):
    algorithm = AlgorithmSettings(advantages=advantages, loss=loss, aggregation=aggregation, entropy_coeff=0.01)
    recipes = [Recipe(algorithm=algorithm, policy=PolicySettings(ranks=ranks)) for ranks in (1, 2, 3)]
    loss_1, gradients_1 = gradients(recipes[0], algorithm, 99)
    # The error of a mean is that of one token; that of a sum is that of all of them.
    tokens = sum(item.response_length for item in trajectories()) if aggregation == "sum" else 1
    for recipe, micro_size in ((recipes[1], 4), (recipes[2], 3)):
        loss_n, gradients_n = gradients(recipe, algorithm, micro_size)
        assert loss_n == pytest.approx(loss_1, rel=LOG_PROB_RTOL, abs=tokens * LOG_PROB_ATOL)
        for name, gradient in gradients_1.items():
            atol = 400 * UNIT_ROUNDOFF * float(gradient.abs().max())
            torch.testing.assert_close(gradients_n[name], gradient, rtol=1000 * UNIT_ROUNDOFF, atol=atol)


def test_padding_does_not_show_in_log_probs():
    policy = model()
    batch = prepare(trajectories(), AlgorithmSettings(), max_length=8)
    with torch.no_grad():
        together = forward(policy, next(micro_batches(batch, size=99, pad_id=0)).batch).log_probs
        alone = [forward(policy, micro.batch).log_probs[0] for micro in micro_batches(batch, size=1, pad_id=0)]
    for row, single in zip(together, alone, strict=True):
        torch.testing.assert_close(row[: len(single)], single, rtol=LOG_PROB_RTOL, atol=LOG_PROB_ATOL)


def test_dapo_leaves_out_groups_that_teach_nothing():
    same = [replace(item, reward=1.0) if item.sample.group_id == "g1" else item for item in trajectories()]
    batch = prepare(same, AlgorithmSettings(advantages="dapo"), max_length=8)
    assert batch.trained.tolist() == [
        item.sample.group_id != "g1" and batch.trained[0 if item.sample.group_id == "g0" else 8] for item in same
    ]
    micro = next(micro_batches(batch, size=99, pad_id=0))
    assert micro.batch.response_mask[4:8].sum() == 0


def test_bfloat16_trains_with_float32_losses():
    policy = model("bfloat16")
    batch = prepare(trajectories(), AlgorithmSettings(), max_length=8)
    result, terms = train_micro_batch(policy, next(micro_batches(batch, size=99, pad_id=0)), AlgorithmSettings())
    assert result.log_probs.dtype == terms.loss.dtype == torch.float32
    assert {parameter.grad.dtype for parameter in policy.parameters()} == {torch.bfloat16}


def test_an_update_lowers_the_loss_on_its_own_batch():
    policy, algorithm = model(), AlgorithmSettings()
    batch = prepare(trajectories(), algorithm, max_length=8)
    micro = next(micro_batches(batch, size=99, pad_id=0))
    with torch.no_grad():
        micro = replace(micro, old_log_probs=forward(policy, micro.batch).log_probs)
    optimizer = make_optimizer(policy.parameters(), OptimizerSettings())
    losses = []
    for _ in range(3):
        _, terms = train_micro_batch(policy, micro, algorithm)
        losses.append(float(terms.loss.detach()))
        assert apply_gradients(policy, optimizer, rate=1e-3, max_grad_norm=1.0) > 0
    assert losses[2] < losses[1] < losses[0]
    assert all(parameter.grad is None for parameter in policy.parameters())


def test_the_learning_rate_rises_then_falls_to_its_end():
    settings = OptimizerSettings(learning_rate=1.0, final_learning_rate=0.1, warmup_steps=4)
    rates = [learning_rate(settings, step, 14) for step in range(14)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0] and rates[4] == 1.0 and rates[-1] == pytest.approx(0.1)
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert learning_rate(OptimizerSettings(learning_rate=0.5), 0, 1) == 0.5


def test_places_cover_every_row_once_and_differ_by_at_most_one():
    for samples in (12, 13, 7):
        layout = places(samples, ranks=2, mini_batches=3)
        rows = sorted(row for rank in layout for part in rank for row in part)
        assert rows == list(range(samples))
        sizes = [len(part) for rank in layout for part in rank]
        assert max(sizes) - min(sizes) <= 1


def test_a_batch_that_does_not_divide_is_a_clear_error():
    with pytest.raises(UsageError, match="9 samples") as caught:
        check_divisible(9, Recipe(policy=PolicySettings(ranks=2)))
    assert "multiple of 2" in caught.value.hint
