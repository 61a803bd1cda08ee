"""The rules over real trainings of the embedded trainer (`trainings.json`): clean runs of 112 steps, and runs with a
planted collapse of tests/collapses.py. tests/integration/test_watch_trainings.py trains them anew."""

import json
import math
from pathlib import Path

import pytest

from collapses import COLLAPSES
from rldbg.tripwire import Judge, StepMeasures, built_in_rules

RUNS = json.loads((Path(__file__).parent / "trainings.json").read_text(encoding="utf-8"))
CLEAN = sorted(name for name in RUNS if name.startswith("clean-"))
PLANTED = sorted(RUNS.keys() - CLEAN)
PLANTED_AT = {"entropy-punished-1": 16, "gradient-sign-flipped-1": 40, "rewarded-for-length-1": 40}


def events(name: str) -> list[tuple[int, str]]:
    run = RUNS[name]
    judge = Judge(built_in_rules())
    found = []
    for number in range(len(run["loss"])):
        row = {key: values[number] for key, values in run.items() if key != "first_step"}
        values = {key: math.nan if value == "nan" else value for key, value in row.items() if value is not None}
        step = run["first_step"] + number
        found += [(step, alarm.rule.id) for alarm in judge.step(step, StepMeasures(values, {}))]
    return found


@pytest.mark.parametrize("name", CLEAN)
def test_nothing_fires_on_a_clean_run(name: str) -> None:
    assert len(RUNS[name]["reward"]) == 112
    assert events(name) == []


def test_all_collapses_are_recorded() -> None:
    assert {run.rpartition("-")[0] for run in PLANTED} == set(COLLAPSES)


@pytest.mark.parametrize("run", PLANTED)
def test_a_collapse_fires_before_the_reward_has_halved(run: str) -> None:
    begin = PLANTED_AT.get(run, 54)
    rewards = dict(enumerate(RUNS[run]["reward"], RUNS[run]["first_step"]))
    before = [rewards[step] for step in range(begin - 5, begin + 1)]
    halved = next((step for step in sorted(rewards) if step > begin and rewards[step] < 0.5 * min(before)), math.inf)
    fired = events(run)
    assert fired, "nothing fired"
    assert begin <= fired[0][0] < halved
