"""The tripwire's arithmetic: what is unusual after what came before, and how often noise alone looks unusual."""

import math

import numpy as np
import pytest

from rldbg.tripwire import WatchRule, built_in_rules
from rldbg.tripwire.detector import Detector
from rldbg.tripwire.measures import MEASURES


def caught(rule: WatchRule, values: list[float]) -> list[int]:
    detector = Detector(rule)
    return [number for number, value in enumerate(values) if detector.look(value) is not None]


def rule(**changes: object) -> WatchRule:
    return WatchRule("r", "x", **{"moves": "down", "cause": "", "sigmas": 6, "factor": 1.2} | changes)  # type: ignore[arg-type]


NOISY = [1.0, 1.02, 0.99, 1.01, 0.98, 1.03, 1.0, 0.99, 1.01, 1.0]


def test_a_fall_is_caught_at_its_first_step_and_said_once() -> None:
    assert caught(rule(), [*NOISY, 0.7, 0.6, 0.5]) == [10]


def test_a_move_in_the_other_direction_is_not_caught() -> None:
    assert caught(rule(), [*NOISY, 1.4, 1.5]) == []
    assert caught(rule(moves="up"), [*NOISY, 1.4]) == [10]


def test_a_jump_is_caught_in_either_direction() -> None:
    assert caught(rule(moves="either", factor=1), [*NOISY, 2.0]) == [10]
    assert caught(rule(moves="either", factor=1), [*NOISY, -2.0]) == [10]


def test_a_trend_alone_is_usual() -> None:
    assert caught(rule(), [1.0 * 0.97**step for step in range(100)]) == []


def test_a_single_outlier_in_the_history_changes_nothing() -> None:
    assert caught(rule(), [*NOISY[:5], 9.0, *NOISY[5:], 0.7]) == [11]


def test_too_little_history_is_not_judged() -> None:
    assert caught(rule(history=8), [*NOISY[:7], 0.1]) == []
    assert caught(rule(history=8), [*NOISY[:8], 0.1]) == [8]


def test_two_steps_in_a_row_are_asked_for() -> None:
    assert caught(rule(in_a_row=2), [*NOISY, 0.7, 1.0, 0.7, 0.7]) == [13]


def test_a_number_that_is_not_finite_needs_no_history() -> None:
    finite = rule(moves="not-finite")
    assert caught(finite, [math.nan]) == [0]
    assert caught(finite, [1.0, math.inf, math.nan]) == [1]
    assert caught(rule(), [*NOISY, math.nan]) == []


def test_a_slow_fall_is_caught_against_the_best_of_the_run() -> None:
    slow = rule(moves="declines", sigmas=3, factor=1.4, in_a_row=2)
    falling = [1.0] * 12 + [1.0 - 0.02 * step for step in range(40)]
    assert caught(rule(), falling) == []
    (step, *_) = caught(slow, falling)
    assert 0.5 < falling[step] < 0.75
    assert caught(slow, [0.1 + 0.01 * step for step in range(90)]) == []


def test_what_lasts_is_caught_once_and_again_after_it_has_ended() -> None:
    fallen, finite = rule(moves="declines", sigmas=3, in_a_row=2, history=8), rule(moves="not-finite", history=4)
    assert len(caught(fallen, [*NOISY, *[0.5, 0.52, 0.49] * 60])) == 1
    again = caught(fallen, [*NOISY, *[0.5, 0.52, 0.49] * 4, *NOISY, *[0.5, 0.52, 0.49] * 4])
    assert len(again) == 2 and again[1] > 2 * len(NOISY)
    assert caught(finite, [1.0, *[math.nan] * 30, 1.0, math.nan, *[1.0] * 4, math.nan]) == [1, 37]


def clean_runs(count: int, steps: int = 200, *, may_fall: bool = True) -> list[list[float]]:
    """A measure of runs without a fault: a tenth of noise around 1, normal and with heavy tails, with and without a
    trend."""
    random = np.random.default_rng(0)
    trends = [1.0 ** np.arange(steps), 0.98 ** np.arange(steps), 1.01 ** np.arange(steps)]
    runs = []
    for number in range(count):
        noise = random.standard_normal(steps) if number % 2 else random.standard_t(4, steps) / math.sqrt(2)
        trend = trends[number % 3] if may_fall or number % 3 != 1 else trends[0]
        runs.append(((1 + 0.1 * noise) * trend).tolist())
    return runs


@pytest.mark.parametrize(
    "item", [item for item in built_in_rules() if item.moves != "not-finite"], ids=lambda item: item.id
)
def test_false_alarms_stay_within_the_stated_rate(item: WatchRule) -> None:
    runs = clean_runs(24, may_fall=item.moves != "declines")
    alarms = sum(len(caught(item, values)) for values in runs)
    expected = item.per_1000_steps * len(runs) * len(runs[0]) / 1000
    assert alarms <= expected + 3 * math.sqrt(expected), f"{alarms} alarms where {expected:g} are stated"


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_measure_that_is_not_finite_is_caught(measure: str, value: float) -> None:
    rules = [item for item in built_in_rules() if item.measure == measure]
    assert [item.moves for item in rules if caught(item, [*NOISY, value])] == ["not-finite"]


def by_id(name: str) -> WatchRule:
    return next(item for item in built_in_rules() if item.id == name)


def alarms_of(name: str, runs: list[list[float]]) -> float:
    """Per 1,000 steps."""
    return 1000 * sum(len(caught(by_id(name), run)) for run in runs) / sum(map(len, runs))


def test_a_reward_of_few_samples_is_noisy_though_it_stays_the_same_for_a_while() -> None:
    assert caught(by_id("reward-drop"), [0.0] * 5 + [0.0625] * 6 + [0.0]) == []
    random = np.random.default_rng(0)
    sparse = [(random.binomial(16, 0.05 + 0.3 * np.arange(300) / 300) / 16).tolist() for _ in range(40)]
    assert alarms_of("reward-drop", sparse) <= by_id("reward-drop").per_1000_steps
    # A fall from what is usual is seen nevertheless.
    learnt = (random.binomial(16, 0.9, 30) / 16).tolist()
    assert caught(by_id("reward-drop"), [*learnt, 0.0625]) == [30]


@pytest.mark.parametrize(
    ("name", "usual", "collapsed"),
    [("grad-norm-jump", 1.0, 100.0), ("kl-jump", 0.02, 2.0), ("mismatch-jump", 1e-3, 0.1)],
)
def test_heavy_tails_are_usual_for_positive_measures(name: str, usual: float, collapsed: float) -> None:
    random = np.random.default_rng(0)
    runs = [(usual * np.exp(random.normal(0, 0.55, 300))).tolist() for _ in range(40)]
    assert alarms_of(name, runs) <= 0.3
    assert sum(bool(caught(by_id(name), [*run[:30], collapsed])) for run in runs) >= 36
    # Where there is little noise, much less is unusual.
    assert caught(by_id(name), [*(usual * value for value in NOISY), 30 * usual]) == [10]


def test_every_rule_says_why_and_what_to_look_at() -> None:
    for item in built_in_rules():
        assert item.cause
        assert item.look.format(recording="R", step=3).startswith("rldbg ")


def test_two_steps_of_a_steep_fall_are_enough_where_a_slow_one_needs_three() -> None:
    fall = rule(moves="declines", sigmas=3, factor=1.1, in_a_row=3, steep_sigmas=8)
    assert caught(fall, [*NOISY, 0.7, 0.6, 0.5]) == [11]
    assert caught(fall, [*NOISY, 0.88, 0.87, 0.86, 0.85]) == [12]
    assert caught(fall, [*NOISY, 0.4, 1.0, 0.4, 1.0]) == []
