"""A recording as a trainer's own rollout function: the recorded tokens for exactly the same prompts, or an error."""

from types import SimpleNamespace

import pytest

from rldbg.core import IncompleteDataError
from rldbg.recording import Recorder
from rldbg.replay import rollout_function

PROMPTS = {"a": [1, 2], "b": [3]}
TRAINER = SimpleNamespace(processing_class=lambda text: {"input_ids": PROMPTS[text]})


@pytest.fixture
def recorded(tmp_path):
    with Recorder(tmp_path) as recorder:
        for step in (0, 1):
            recorder.record(
                "trajectory",
                step=step,
                samples=[("a", 1), ("b", 0), ("a", 0)],
                tokens=[[1, 2, 10 + step], [3, 20, 21, 22], [1, 2, 11, 12]],
                loss_mask=[[0, 0, 1], [0, 1, 0, 1], [0, 0, 1, 1]],
                logprobs=[[0, 0, -1.0], [0, -2.0, 0, -3.0], [0, 0, -4.0, -5.0]],
                reward=[1.0, 2.0, 3.0],
            )
    return tmp_path


def test_each_prompt_gets_its_samples_in_order(recorded):
    rollout = rollout_function(recorded)

    first = rollout(["a", "b", "a"], TRAINER)
    second = rollout(["a"], TRAINER)

    assert first["prompt_ids"] == [[1, 2], [3], [1, 2]]
    assert first["completion_ids"] == [[11, 12], [20, 21, 22], [10]]
    assert first["logprobs"] == [[-4.0, -5.0], [-2.0, 0.0, -3.0], [-1.0]]
    assert first["env_mask"] == [[1, 1], [1, 0, 1], [1]], "what an environment said is not trained on"
    assert first["recorded_reward"] == [3.0, 2.0, 1.0]
    assert second["completion_ids"] == [[11, 12]], "the second step"


def test_nothing_is_made_up(recorded):
    rollout = rollout_function(recorded)
    with pytest.raises(IncompleteDataError, match="no trajectory left for the prompt 'b' at step 0"):
        rollout(["b", "b"], TRAINER)
    rollout(["a"], TRAINER)
    with pytest.raises(IncompleteDataError, match="2 steps of trajectories, all of them used"):
        rollout(["a"], TRAINER)
