"""Real trainings under the watcher: nothing fires on ten clean ones, and each planted collapse fires in time."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from collapses import COLLAPSES, UNSEEN, planted
from rldbg.core import Run
from rldbg.trainer import Reporting, read_recipe, train
from rldbg.tripwire import WATCHED_KINDS, Watcher, WatchSettings

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]
OVERRIDES = ("++cluster.in_process=true", "policy.ranks=1", "++debug.enable_data_dump=true", "++debug.keep_last=8")
BEGIN = {"entropy-punished": 16}


class Enough(Exception):
    """The steps that are looked at are done."""


@contextmanager
def until_enough() -> Iterator[None]:
    try:
        yield
    except Enough:
        return


def watched(
    folder: Path, *, seed: int = 0, steps: int = 112, collapse: str = "", begin: int = 0
) -> tuple[Watcher, dict]:
    kinds = [f"++debug.dump_options.{kind}=true" for kind in WATCHED_KINDS if not kind.endswith("metrics")]
    watcher = Watcher(folder / "recording", WatchSettings())
    rewards: dict[int, float] = {}

    def ended(step: int, metrics: dict[str, float]) -> None:
        rewards[step] = metrics["reward/mean"]
        watcher.look()
        if step + 1 >= steps:
            raise Enough

    recipe = read_recipe("arithmetic", [*OVERRIDES, *kinds, f"seed={seed}"])
    with planted(collapse, begin), until_enough():
        train(recipe, Run.create(name="watched", path=folder), reporting=Reporting(on_step=ended))
    watcher.look(ended=True)
    return watcher, rewards


@pytest.mark.parametrize("seed", range(10))
def test_nothing_fires_on_a_clean_training(tmp_path: Path, seed: int) -> None:
    watcher, _ = watched(tmp_path / "run", seed=seed)
    assert watcher.steps == 112
    assert [event.message for event in watcher.events] == []


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", [*COLLAPSES, *UNSEEN])
def test_a_collapse_fires_before_the_reward_has_halved(tmp_path: Path, name: str, seed: int) -> None:
    begin = BEGIN.get(name, 40)
    watcher, rewards = watched(tmp_path / "run", seed=seed, steps=begin + 40, collapse=name, begin=begin)
    before = min(rewards[step] for step in range(begin - 5, begin + 1))
    halved = next((step for step, reward in rewards.items() if step > begin and reward < 0.5 * before), math.inf)
    assert watcher.events, "nothing fired"
    # Some of those that were written after the rules halve the reward from one step to the next.
    latest = halved - 1 if name in COLLAPSES else halved
    assert begin <= watcher.events[0].step <= latest
