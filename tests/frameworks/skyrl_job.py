"""One step of SkyRL's own trainer and policy worker on two groups, in one process. The argument is the model's folder.

Nothing of rldbg in it.
"""

import sys
import typing
from types import SimpleNamespace as Settings

import torch
import typing_extensions
from missing_packages import stub

typing.TypedDict = typing_extensions.TypedDict  # it declares generic ones, which Python 3.11 refuses
stub("flash_attn", "vllm", without=("flash_attn.ops.triton.cross_entropy",))

from skyrl.backends.skyrl_train.distributed.fsdp_strategy import FSDPStrategy  # noqa: E402
from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch  # noqa: E402
from skyrl.backends.skyrl_train.utils.ppo_utils import ppo_policy_loss  # noqa: E402
from skyrl.backends.skyrl_train.workers.model_wrapper import HFModelWrapper  # noqa: E402
from skyrl.backends.skyrl_train.workers.worker import PolicyWorkerBase  # noqa: E402
from skyrl.train.config.config import AlgorithmConfig  # noqa: E402
from skyrl.train.trainer import RayPPOTrainer  # noqa: E402


class Strategy(FSDPStrategy):
    """FSDP's own optimizer step; one process reduces nothing."""

    def __init__(self):
        self.max_norm = 0.1

    def backward(self, loss, model, optimizer, **_):
        loss.backward()

    def all_reduce(self, data, op="mean", **_):
        return data


def worker(folder):
    made = PolicyWorkerBase.__new__(PolicyWorkerBase)
    algorithm = AlgorithmConfig()
    algorithm.policy_loss_type = "regular"
    algorithm.temperature = 1.0
    made.cfg = Settings(micro_train_batch_size_per_gpu=2, max_tokens_per_microbatch=0, algorithm=algorithm)
    made.model = HFModelWrapper(folder, bf16=False)
    made.optimizer = torch.optim.SGD(made.model.parameters(), lr=1e-2)
    made.scheduler = torch.optim.lr_scheduler.ConstantLR(made.optimizer, 1.0)
    made.strategy, made.policy_loss_fn = Strategy(), ppo_policy_loss
    made.mesh_rank, made.device_mesh = Settings(dp_size=1), Settings(get_group=lambda _: None)
    return made


class Trainer(RayPPOTrainer):
    """Its ranks are in this process."""

    has_critic = False

    def __init__(self, rank):
        self.global_step = 1
        self.all_timings, self.all_metrics = {}, {}
        self.dispatch, self.rank = Settings(empty_cache=lambda: None), rank

    def _execute_training_step(self, role, data):
        result = self.rank.forward_backward(data)
        self.rank.optim_step()
        return result.metrics


def batch(rank):
    torch.manual_seed(1)
    sequences = torch.randint(3, 14, (8, 8))
    sequences[:4, :3], sequences[4:, :3] = torch.tensor([4, 5, 6]), torch.tensor([4, 5, 7])
    held = torch.ones(8, 8, dtype=torch.long)
    held[1, 6:] = 0
    drawn = held[:, 3:].clone()
    rewards = torch.tensor([1.0, 0.0, 1.0, 0.5] * 2)
    group = rewards.view(2, 4)
    advantages = ((group - group.mean(1, keepdim=True)) / group.std(1, keepdim=True)).view(8, 1) * drawn
    with torch.no_grad():
        log_probs = rank.model(sequences, 5, attention_mask=held)
    at_end = torch.zeros(8, 5)
    at_end[torch.arange(8), drawn.sum(1) - 1] = rewards
    data = TrainingInputBatch({
        "sequences": sequences, "attention_mask": held, "response_mask": drawn, "loss_mask": drawn.float(),
        "rewards": at_end, "rollout_logprobs": log_probs.clone(), "action_log_probs": log_probs,
        "base_action_log_probs": log_probs.clone(), "values": None, "returns": advantages, "advantages": advantages,
    })  # fmt: skip
    data.metadata = {"uids": ["a"] * 4 + ["b"] * 4, "response_length": 5}
    return data


def main():
    torch.cuda.current_device = lambda: "cpu"
    rank = worker(sys.argv[1])
    Trainer(rank).train_critic_and_policy(batch(rank))


main()
