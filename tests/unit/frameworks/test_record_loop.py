"""`rldbg.record_loop`: an ordinary loop of torch, and one of Accelerate, recorded in five lines."""

import sys

import pytest

import rldbg

torch = pytest.importorskip("torch")


def small_model():
    torch.manual_seed(0)
    return torch.nn.Linear(4, 2)


def records(folder, kind):
    return sorted(rldbg.open(folder).records(kind=kind), key=lambda record: record.key)


def places(folder, kind):
    return [(record.key.step, record.key.mini_batch, record.key.micro) for record in records(folder, kind)]


def train(model, optimizer, steps, *, scale=100.0, clip=1.0, parts=2):
    norms = []
    for number in range(steps):
        with rldbg.step(number):
            for part in range(parts):
                loss = scale * model(torch.ones(3, 4) * (part + 1)).pow(2).mean()
                loss.backward()
            norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), clip)))
            optimizer.step()
            optimizer.zero_grad()
    return norms


def test_losses_raw_gradients_parameters_and_metrics(tmp_path):
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with rldbg.record_loop(model, optimizer, tmp_path):
        norms = train(model, optimizer, 2)

    assert places(tmp_path, "loss") == [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1)]
    raw = [
        sum(float(record.fields["norm"]) ** 2 for record in records(tmp_path, "gradient") if record.key.step == step)
        for step in (0, 1)
    ]
    assert [total**0.5 for total in raw] == pytest.approx(norms), "before clipping"
    assert norms[0] > 1
    last = [record for record in records(tmp_path, "param") if record.key.step == 1]
    assert {record.fields["param_name"] for record in last} == {"weight", "bias"}
    weight = next(record for record in last if record.fields["param_name"] == "weight")
    assert (weight.array("param") == model.weight.detach().numpy()).all()
    metrics = records(tmp_path, "training_metrics")[0].fields["metrics"]
    assert metrics == {"learning_rate": 0.01, "grad_norm": pytest.approx(norms[0])}


def test_steps_that_are_counted_anew_in_each_epoch_go_on(tmp_path, caplog):
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with rldbg.record_loop(model, optimizer, tmp_path):
        for _ in range(3):
            train(model, optimizer, 2, parts=1)
    assert [step for step, _, _ in places(tmp_path, "loss")] == [0, 1, 2, 3, 4, 5]
    assert [record.getMessage() for record in caplog.records] == [
        "step 0 begins after step 1: it is recorded as the next one"
    ]


@pytest.mark.parametrize("clip", [0.1, None])
def test_gradients_of_a_closure_are_those_of_its_own_backward_pass(tmp_path, clip):
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    raw = []

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(3, 4)).pow(2).mean()
        loss.backward()
        raw.append(model.weight.grad.clone())
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        return loss

    with rldbg.record_loop(model, optimizer, tmp_path):
        for _ in range(2):
            optimizer.step(closure)

    found = [record for record in records(tmp_path, "gradient") if record.fields["param_name"] == "weight"]
    assert [record.array("gradient").tolist() for record in found] == [value.tolist() for value in raw]


def test_gradients_are_those_before_values_are_clipped(tmp_path):
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with rldbg.record_loop(model, optimizer, tmp_path):
        (100 * model(torch.ones(1, 1))).sum().backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)
        optimizer.step()
    (gradient,) = records(tmp_path, "gradient")
    assert float(gradient.fields["norm"]) == 100.0


def test_clipping_after_the_optimizer_step_is_not_taken_for_the_next_gradient(tmp_path):
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    raw = []
    with rldbg.record_loop(model, optimizer, tmp_path):
        for _ in range(2):
            optimizer.zero_grad()
            (100 * model(torch.ones(3, 4)).pow(2).mean()).backward()
            raw.append(model.weight.grad.clone().numpy())
            optimizer.step()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    found = [record for record in records(tmp_path, "gradient") if record.fields["param_name"] == "weight"]
    assert [record.array("gradient").tolist() for record in found] == [value.tolist() for value in raw]


def test_training_is_the_same_and_torch_is_given_back(tmp_path):
    before = torch.Tensor.backward, torch.nn.utils.clip_grad_norm_
    results = []
    for folder in (None, tmp_path):
        model = small_model()
        optimizer = torch.optim.Adam(model.parameters())
        with rldbg.record_loop(model, optimizer, folder):
            train(model, optimizer, 3)
        results.append(model.weight.detach().clone())
    assert torch.equal(*results)
    assert (torch.Tensor.backward, torch.nn.utils.clip_grad_norm_) == before
    assert not hasattr(sys, "_rldbg_loop")


def test_optimizer_steps_are_steps_unless_told_otherwise(tmp_path):
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with rldbg.record_loop(model, optimizer, tmp_path) as loop:
        for _ in range(2):
            model(torch.ones(1, 4)).sum().backward()
            loop.record("rewards_seen", reward=torch.ones(3))
            optimizer.step()
        with rldbg.step(7):
            for _ in range(2):
                model(torch.ones(1, 4)).sum().backward()
                optimizer.step()
    assert places(tmp_path, "loss") == [(0, 0, 0), (1, 0, 0), (7, 0, 0), (7, 1, 0)]
    assert [record.key.step for record in records(tmp_path, "rewards_seen")] == [0, 1]


def test_nothing_is_recorded_outside_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with rldbg.record_loop(model, optimizer) as loop:
        train(model, optimizer, 1)
    assert loop.recorder is None
    assert not list(tmp_path.iterdir())


def test_the_run_says_where_to_record(tmp_path, monkeypatch):
    from rldbg.frameworks import plan_for

    monkeypatch.setenv("RLDBG_RECORD_HOOKS", plan_for(tmp_path, ("loss",)).to_text())
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with rldbg.record_loop(model, optimizer):
        train(model, optimizer, 1)
    assert {entry.kind for entry in rldbg.open(tmp_path).entries()} == {"loss"}


def test_an_error_in_a_hook_ends_the_recording_and_not_the_loop(tmp_path, monkeypatch, caplog):
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with rldbg.record_loop(model, optimizer, tmp_path) as loop:
        monkeypatch.setattr(loop, "record", lambda *_, **__: 1 / 0)
        train(model, optimizer, 2)
    assert caplog.text.count("training continues: ZeroDivisionError") == 1


def test_a_loop_of_accelerate_counts_only_real_updates(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = small_model()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    with rldbg.record_loop(model, optimizer, tmp_path):
        for number in range(4):
            with accelerator.accumulate(model):
                accelerator.backward(model(torch.ones(2, 4) * number).pow(2).mean())
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                optimizer.zero_grad()
    assert places(tmp_path, "loss") == [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1)]
    assert [record.key.step for record in records(tmp_path, "training_metrics")] == [0, 1]
