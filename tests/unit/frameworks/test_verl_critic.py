"""A critic of verl beside the policy in one process, by stubs of the shape of their sources (verl 0.9.1)."""

import sys
from types import ModuleType

import numpy as np
import pytest

from rldbg.frameworks import plan_for, recorded
from rldbg.recording import open as open_recording

torch = pytest.importorskip("torch")

NAMES = {"index": [5, 6], "session_id": [0, 0], "global_steps": [1, 1]}
ROWS = torch.tensor([[1.0, 2.0], [3.0, 0.0]])


class FSDPEngine:
    def __init__(self, output):
        self.module, self.output = torch.nn.Linear(2, 1, bias=False), output
        self.module.weight.grad = torch.ones(1, 2)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.5)

    def get_data_parallel_size(self):
        return 1

    def optimizer_step(self):
        return 1.5


class FSDPEngineWithLMHead(FSDPEngine):
    def forward_step(self, micro_batch, loss_function, forward_only):
        return None, {"model_output": self.output, "loss": 0.25, "metrics": {"vf_clipfrac": 0.5}}


class TrainingWorker:
    def __init__(self, engine):
        self.engine = engine

    def train_mini_batch(self, data):
        self.train_batch(data)

    def train_batch(self, data):
        self.engine.forward_step(data, None, forward_only=False)
        self.engine.optimizer_step()


def module(name, **members):
    made = ModuleType(name)
    vars(made).update(members)
    return made


@pytest.fixture
def recording(tmp_path, monkeypatch):
    """The critic's update comes first, as in verl's steps."""
    padding = module("verl.workers.utils.padding", no_padding_2_padding=lambda value, _data: value)
    settings = module("verl.utils.tensordict_utils", get=lambda data, key, default: default)
    for each in (padding, settings):
        monkeypatch.setitem(sys.modules, each.__name__, each)
    engines = [type(each.__name__, each.__bases__, dict(each.__dict__)) for each in (FSDPEngine, FSDPEngineWithLMHead)]
    engines[1] = type("FSDPEngineWithLMHead", (engines[0],), dict(FSDPEngineWithLMHead.__dict__))
    workers = type("TrainingWorker", (), dict(TrainingWorker.__dict__))
    hooks = recorded.ProcessHooks(plan_for(tmp_path))
    hooks.hook(
        module("verl.workers.engine.fsdp.transformer_impl", FSDPEngine=engines[0], FSDPEngineWithLMHead=engines[1])
    )
    hooks.hook(module("verl.workers.engine_workers", TrainingWorker=workers))

    class Batch(dict):
        shape = (2,)

    columns = ("response_mask", "old_log_probs", "advantages", "values", "returns")
    batch = Batch(NAMES | dict.fromkeys(columns, ROWS) | {"dp_size": 1})
    for output in ({"values": ROWS + 1}, {"log_probs": -ROWS}):
        workers(engines[1](output)).train_mini_batch(batch)
    hooks.recorded.recorder().close()
    return open_recording(tmp_path)


def test_the_critic_has_a_loss_of_its_own(recording):
    (record,) = recording.records("value_loss")
    assert np.array_equal(record.array("values"), ROWS + 1)
    assert np.array_equal(record.array("old_values"), ROWS) and np.array_equal(record.array("returns"), ROWS)
    assert record.fields["loss"] == 0.25 and record.fields["metrics"] == {"vf_clipfrac": 0.5}
    (policy,) = recording.records("loss")
    assert policy.samples == record.samples and len(record.samples) == 2


@pytest.mark.parametrize("kind", ["gradient", "param"])
def test_parameters_of_both_are_told_apart_at_the_same_step(recording, kind):
    found = [(record.key.step, record.fields["param_name"]) for record in recording.records(kind)]
    assert sorted(found) == [(1, "critic.weight"), (1, "weight")]
    assert len({record.key for record in recording.records(kind)}) == 2


def test_the_policys_update_alone_has_metrics(recording):
    (record,) = recording.records("update_metrics")
    assert record.fields["metrics"] == {"grad_norm": 1.5, "learning_rate": 0.5}
