"""A recipe small enough for unit tests: the whole loop in this process, one tiny layer, a handful of samples."""

import pytest

from rldbg.core import Run
from rldbg.trainer import parse_recipe, train

KINDS = (
    "trajectory",
    "old_log_probs",
    "forward_data",
    "loss",
    "param",
    "gradient",
    "is_loss_debug",
    "batch_inputs",
)
EVERYTHING = {
    "enable_data_dump": True,
    "dump_format": "safetensors",
    "capsule": True,
    "dump_options": dict.fromkeys(KINDS, True),
}
PROBLEMS = '{"prompt": "1+1=", "answer": "2"}\n{"prompt": "2+1=", "answer": "3"}\n{"prompt": "9+8=", "answer": "17"}\n'


def merged(base, changes):
    result = dict(base)
    for key, value in changes.items():
        result[key] = merged(base[key], value) if isinstance(value, dict) and isinstance(base.get(key), dict) else value
    return result


class Trainer:
    """Makes recipes, and trains them into folders of its own."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "problems.jsonl").write_text(PROBLEMS)

    def recipe(self, *, allow_partial=False, **changes):
        small = {
            "name": "small",
            "steps": 2,
            "model": {"tiny": {"hidden_size": 16, "layers": 1, "heads": 2}},
            "data": {"task": str(self.folder / "problems.jsonl"), "prompts_per_step": 3, "samples_per_prompt": 4},
            "warm_start": {"max_steps": 20, "until_success": 0.3, "batch_size": 8, "learning_rate": 0.01},
            "algorithm": {"entropy_coeff": 0.01},
            # `rerun` repeats a step on the CPU; bit for bit only what was trained there.
            "policy": {"ranks": 1, "micro_batch_size": 4, "device": "cpu"},
            "inference": {"device": "cpu"},
            "cluster": {"in_process": True},
        }
        return parse_recipe(merged(small, changes), source="test", allow_partial=allow_partial)

    def __call__(self, name, *, resume=None, **changes):
        """Trains, recording everything unless told otherwise, and gives the run folder."""
        loaded = self.recipe(**({"debug": EVERYTHING} | changes))
        return train(loaded, Run.create(name=name, path=self.folder / name), resume=resume).run


@pytest.fixture(scope="session")
def trainer_in():
    """A trainer in a folder of one's own."""
    return Trainer


@pytest.fixture
def trained(tmp_path):
    return Trainer(tmp_path)


@pytest.fixture(scope="session")
def base_run(tmp_path_factory):
    """One run of two steps that many tests look at."""
    return Trainer(tmp_path_factory.mktemp("base"))("base")
