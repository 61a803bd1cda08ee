# ruff: noqa: F841, RUF059 - variables of functions are what is read
"""Trainers by stubs of the shape of their sources (TRL 1.16.0, transformers 5.22.2): AsyncGRPOTrainer, which runs
itself in tests/frameworks, and losses that a user's class computes."""

from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from rldbg.frameworks import plan_for, recorded
from rldbg.recording import open as open_recording

torch = pytest.importorskip("torch")


class RolloutQueueDataset:
    """The second sample was made by the weights before."""

    def __init__(self):
        self.metrics = {"sample/staleness_max": []}

    def model_version_fn(self):
        return 2

    def __iter__(self):
        for number in range(2):
            self.metrics["sample/staleness_max"].append(float(number))
            yield sample([1, 2], [3 + number, 9], 1.0) | {"completion_mask": np.array([0, 0, 1, 0])}


class DataCollatorForRollout:
    def torch_call(self, examples):
        return {"rows": len(examples[0])}


class AsyncGRPOTrainer:
    def __init__(self):
        self.args = SimpleNamespace(gradient_accumulation_steps=2, weight_sync_steps=1)
        self.state = SimpleNamespace(global_step=0)
        self.accelerator = SimpleNamespace(num_processes=2)
        self.model = torch.nn.Linear(2, 1)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        if "token_index" in inputs:
            # Its variables, which are what is recorded.
            token_index, segment_id = inputs["token_index"], inputs["segment_id"]
            input_ids, position_ids, shift_labels = (inputs[key] for key in ("ids", "position_ids", "shift_labels"))
            tree_kwargs = inputs["tree_kwargs"]
            log_probs = entropy = old_log_probs = advantages = coef_1 = per_token_loss = -1.0 * torch.arange(3)
            nanmin(log_probs)
        return torch.tensor(0.5)


def nanmin(values):
    return values.min()


def sample(prompt, response, reward):
    ids, zeros = [*prompt, *response], [0.0] * len(prompt)
    return {
        "input_ids": np.array(ids),
        "completion_mask": np.array([0] * len(prompt) + [1] * len(response)),
        "old_log_probs": np.array(zeros + [-0.5] * len(response), np.float32),
        "advantage": reward - 0.5,
        "group_id": 0,
        "metrics": {"reward": reward, "rewards/exact": reward},
    }


@pytest.fixture
def hooked(tmp_path, monkeypatch):
    module = ModuleType("trl.experimental.async_grpo.async_grpo_trainer")
    for each in (DataCollatorForRollout, AsyncGRPOTrainer, RolloutQueueDataset):
        setattr(module, each.__name__, type(each.__name__, (), dict(each.__dict__)))
    module.nanmin = nanmin
    hooks = recorded.ProcessHooks(plan_for(tmp_path))
    hooks.hook(module)
    monkeypatch.setitem(globals(), "nanmin", module.nanmin)
    return hooks, module


@pytest.fixture
def recording(hooked, tmp_path):
    """Two micro-batches of the first step and one of the next, each with two ranks' rows of one sample."""
    hooks, module = hooked
    trainer, collator = module.AsyncGRPOTrainer(), module.DataCollatorForRollout()
    for number in range(3):
        rows = [SimpleNamespace(samples=[sample([1, 2], [3 + number, rank], float(rank))]) for rank in range(2)]
        assert collator.torch_call([rows]) == {"rows": 2}
    for number in range(3):
        trainer.state.global_step = number // 2
        assert float(trainer.compute_loss(None, {"global_n_tokens": torch.tensor([8.0, 8.0])})) == 0.5
    hooks.recorded.recorder().close()
    return open_recording(tmp_path)


def test_collated_samples_belong_to_the_step_that_trains_on_them(recording):
    samples = {step: list(recording.records("trajectory", step)) for step in recording.steps("trajectory")}
    assert {step: [each.key.micro for each in records] for step, records in samples.items()} == {0: [0, 1], 1: [0]}
    first = samples[0][0]
    assert [row.tolist() for row in first.rows("tokens")] == [[1, 2, 3, 0], [1, 2, 3, 1]]
    assert first.array("reward").tolist() == [0.0, 1.0]
    (prepared,) = recording.records("prepared_trajectories", 1)
    assert [row.tolist() for row in prepared.rows("advantages")] == [[-0.5] * 4, [0.5] * 4]
    (old,) = recording.records("old_log_probs", 1)
    assert [row.tolist() for row in old.rows("old_log_probs")] == [[-0.5, -0.5]] * 2


def test_what_is_taken_from_the_queue_knows_the_weights_that_made_it(hooked, tmp_path):
    hooks, module = hooked
    trainer, collator = module.AsyncGRPOTrainer(), module.DataCollatorForRollout()
    trainer.state.global_step = 7
    collator.torch_call([[SimpleNamespace(samples=list(module.RolloutQueueDataset()))]])
    hooks.recorded.recorder().close()
    (record,) = open_recording(tmp_path).records("trajectory")
    assert (record.key.step, record.policy_version) == (7, 0), "a training that continues has sent its weights once"
    assert [row.tolist() for row in record.rows("policy_versions")] == [[-1, -1, 1], [-1, -1, 0]]
    assert [row.tolist() for row in record.rows("tokens")] == [[1, 2, 3], [1, 2, 4]], "up to the last trained token"


def test_the_pass_is_recorded_by_sample_from_the_tree_that_they_share(hooked, tmp_path):
    """[5, 6, 7] and [5, 6, 8, 9], of which the last two are trained on: 5 is forwarded once, 6 once per next token."""
    hooks, module = hooked
    inputs = {
        "ids": torch.tensor([[5, 6, 7, 6, 8, 9]]),
        "position_ids": torch.tensor([[0, 1, 2, 1, 2, 3]]),
        "shift_labels": torch.tensor([[6, 7, -100, 8, 9, -100]]),
        "token_index": torch.tensor([1, 3, 4]),
        "segment_id": torch.tensor([0, 1, 1]),
        "tree_kwargs": {
            "tree_kv_index": torch.tensor([0, 0, 1, 2, 0, 3, 4, 5]),
            "tree_cu_seqlens_q": torch.tensor([0, 1, 3, 6]),
            "tree_cu_seqlens_k": torch.tensor([0, 1, 4, 8]),
            "tree_max_seqlen_q": 3,
        },
        "global_n_tokens": torch.tensor([3.0]),
    }
    module.AsyncGRPOTrainer().compute_loss(None, inputs)
    hooks.recorded.recorder().close()
    (record,) = open_recording(tmp_path).records("is_loss_debug")
    assert [row.tolist() for row in record.rows("log_probs")] == [[0.0], [-1.0, -2.0]]
    (record,) = open_recording(tmp_path).records("forward_data")
    assert [row.tolist() for row in record.rows("input_ids")] == [[5, 6, 7], [5, 6, 8, 9]]


def test_equal_samples_of_two_micro_batches_are_two_samples(hooked, tmp_path):
    """[5, 6] whose 6 is trained on, in both micro-batches of a step, and again in the next step."""
    hooks, module = hooked
    trainer, collator = module.AsyncGRPOTrainer(), module.DataCollatorForRollout()
    tree = {"tree_kv_index": [0], "tree_cu_seqlens_q": [0, 1], "tree_cu_seqlens_k": [0, 1]}
    inputs = {
        "ids": torch.tensor([[5]]),
        "position_ids": torch.tensor([[0]]),
        "shift_labels": torch.tensor([[6]]),
        "token_index": torch.tensor([0]),
        "segment_id": torch.tensor([0]),
        "tree_kwargs": {name: torch.tensor(value) for name, value in tree.items()},
        "global_n_tokens": torch.tensor([1.0]),
    }
    for _ in range(3):
        collator.torch_call([[SimpleNamespace(samples=[sample([5], [6], 1.0)])]])
    for number in range(3):
        trainer.state.global_step = number // 2
        trainer.compute_loss(None, inputs)
    hooks.recorded.recorder().close()
    names = {
        kind: [sample for record in open_recording(tmp_path).records(kind) for sample in record.samples]
        for kind in ("trajectory", "is_loss_debug")
    }
    assert names["trajectory"] == names["is_loss_debug"]
    assert len(set(names["trajectory"])) == 3


def test_losses_say_by_what_they_are_divided(recording):
    losses = [(record.key.step, record.key.micro, record.fields["loss"]) for record in recording.records("loss")]
    assert losses == [(0, 0, 0.5), (0, 1, 0.5), (1, 0, 0.5)]
    info = next(recording.records("loss")).fields["extra_info"]
    assert info == {"aggregation": "token_mean", "denominator": 8.0}


def test_the_loss_of_any_trainer_is_recorded_while_it_trains(tmp_path):
    class Trainer:
        """Of transformers: a subclass may override the loss, and call that of its base class or not."""

        args = SimpleNamespace(gradient_accumulation_steps=2, to_dict=dict)
        state = SimpleNamespace(global_step=0)
        model = torch.nn.Linear(2, 1)

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss = torch.tensor(float(inputs["value"]))
            return (loss, "outputs") if return_outputs else loss

    module = ModuleType("transformers.trainer")
    module.Trainer = Trainer
    hooks = recorded.ProcessHooks(plan_for(tmp_path))
    hooks.hook(module)
    for value in range(2):
        inputs = {"value": value, "input_ids": torch.tensor([[1, 2], [1, 2]])}
        result = Trainer().compute_loss(Trainer.model, inputs, return_outputs=True)
        assert result == (torch.tensor(float(value)), "outputs")
    Trainer.model.eval()
    Trainer().compute_loss(Trainer.model, {"value": 9})
    hooks.recorded.recorder().close()
    records = list(open_recording(tmp_path).records("loss"))
    assert [sample.run_id for sample in records[0].samples] == [0, 1], "rows are named by their tokens"
    losses = [(record.key.step, record.key.micro, record.fields["loss"]) for record in records]
    assert losses == [(0, 0, 0.0), (0, 1, 1.0)]
