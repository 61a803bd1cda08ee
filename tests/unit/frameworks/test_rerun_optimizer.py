"""What a recorded step needs to run again: an optimizer's state, recorded on request, and no engine."""

import sys
from types import ModuleType

import pytest

from rldbg import Recorder
from rldbg.frameworks.rerun import load_learning_rate, load_optimizer, parameters_after
from rldbg.frameworks.trl.rerun import without_engine
from rldbg.recording import open as open_recording

torch = pytest.importorskip("torch")


def trained(steps, lr=0.1):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for number in range(steps):
        update(model, optimizer, number)
    return model, optimizer


def update(model, optimizer, number):
    optimizer.zero_grad()
    model(torch.full((2, 3), float(number + 1))).sum().backward()
    optimizer.step()


def test_a_step_continues_with_the_recorded_state(tmp_path):
    model, optimizer = trained(3)
    kinds = ("param", "optimizer_state", "training_metrics")
    with Recorder(tmp_path, kinds=kinds, parameter_patterns=(".",)) as recorder:
        recorder.record_parameters(5, model)
        recorder.record_optimizer(5, model, optimizer)
        recorder.record("training_metrics", step=6, metrics={"learning_rate": 0.025})
    recording = open_recording(tmp_path)
    again, fresh = trained(0)
    named = dict(again.named_parameters())
    with torch.no_grad():
        for name, value in parameters_after(recording, 5, named).items():
            named[name].copy_(torch.from_numpy(value.copy()))
    load_optimizer(fresh, named, recording, 5)
    load_learning_rate(fresh, recording, "training_metrics", 6)
    optimizer.param_groups[0]["lr"] = 0.025
    for each in ((model, optimizer), (again, fresh)):
        update(*each, 3)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, named[name]), name


def test_nobody_pays_for_it_who_did_not_ask(tmp_path):
    model, optimizer = trained(1)
    with Recorder(tmp_path, parameter_patterns=(".",)) as recorder:
        recorder.record_optimizer(0, model, optimizer)
    assert list(open_recording(tmp_path).records("optimizer_state")) == []


def test_a_trainer_that_runs_again_asks_no_engine(monkeypatch):
    module = ModuleType("some.trainer")
    module.VLLMGeneration = lambda *_, **__: pytest.fail("it would wait for its server")
    monkeypatch.setitem(sys.modules, "some.trainer", module)
    own = type("Own", (type("Trainer", (), {"__module__": "some.trainer"}),), {"__module__": __name__})
    without_engine(own())
    engine = module.VLLMGeneration(mode="server")
    assert engine.vllm_client.get_server_info()["model_config"]["logprobs_mode"] == "processed_logprobs"
    assert engine.sync_weights() is None
