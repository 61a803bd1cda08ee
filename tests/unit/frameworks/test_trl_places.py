"""TRL counts optimizer steps; records are placed by generation, iteration, optimizer step and micro-batch."""

from types import SimpleNamespace

import pytest

from rldbg.frameworks.trl.places import first_update, place_of


def trainer(accumulated, per_generation, iterations=1):
    args = SimpleNamespace(gradient_accumulation_steps=accumulated, steps_per_generation=per_generation)
    return SimpleNamespace(args=args, num_iterations=iterations)


@pytest.mark.parametrize(
    ("accumulated", "per_generation", "iterations", "expected"),
    [
        pytest.param(1, 1, 1, [(0, 0, 0, 0), (1, 0, 0, 0), (2, 0, 0, 0)], id="one update per generation"),
        pytest.param(2, 2, 1, [(0, 0, 0, 0), (0, 0, 0, 1), (1, 0, 0, 0), (1, 0, 0, 1)], id="accumulation"),
        pytest.param(1, 2, 2, [(0, 0, 0, 0), (0, 0, 1, 0), (0, 1, 0, 0), (0, 1, 1, 0), (1, 0, 0, 0)], id="iterations"),
        pytest.param(2, 1, 1, [(0, 0, 0, 0), (0, 0, 0, 1), (1, 0, 0, 0)], id="two generations per update"),
        pytest.param(2, 1, 2, [(0, 0, 0, 0), (0, 1, 0, 1), (1, 0, 0, 0)], id="both iterations in one update"),
    ],
)
def test_micro_batches_in_order(accumulated, per_generation, iterations, expected):
    job = trainer(accumulated, per_generation, iterations)
    places = [place_of(job, *divmod(number, accumulated)) for number in range(len(expected))]
    assert [tuple(place.to_dict().values()) for place in places] == expected


def test_a_trainer_that_does_not_generate_has_optimizer_steps():
    plain = SimpleNamespace(args=SimpleNamespace(gradient_accumulation_steps=4))
    assert place_of(plain, 5, 2).to_dict() == {"step": 5, "epoch": 0, "mini_batch": 0, "micro": 2}


def test_the_first_update_of_a_step():
    assert [first_update(trainer(1, 2, 2), step) for step in range(3)] == [0, 4, 8]
    assert [first_update(trainer(2, 1), step) for step in range(3)] == [0, 1, 2]
