"""One step of OpenRLHF's own modules on two groups, with a small engine in DeepSpeed's place.

Nothing of rldbg in it. The argument is the model's folder. The actor is bfloat16.
"""

import sys
from types import SimpleNamespace as Settings

import torch
from missing_packages import stub

stub("flash_attn", "vllm", "deepspeed", "torchdata", without=("flash_attn.ops.triton.cross_entropy",))

from openrlhf.models import Actor, PolicyLoss  # noqa: E402
from openrlhf.trainer.ppo_utils.experience import Experience  # noqa: E402
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker  # noqa: E402
from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer  # noqa: E402
from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer  # noqa: E402
from openrlhf.utils.deepspeed import DeepspeedStrategy  # noqa: E402

ARGS = Settings(
    algo=Settings(
        advantage=Settings(estimator="group_norm", gamma=1.0, lambd=1.0, no_std_norm=False),
        kl=Settings(use_loss=False, init_coef=0.0, estimator="k1"),
    ),
    rollout=Settings(n_samples_per_prompt=4), reward=Settings(
        clip_range=None, overlong_buffer_len=None, stop_properly_penalty_coef=None
    ),
    train=Settings(max_epochs=1, dynamic_batch_enable=False),
    ds=Settings(tensor_parallel_size=1, packing_samples=False),
    actor=Settings(entropy_coef=None, aux_loss_coef=0.0),
)  # fmt: skip


class Engine(torch.nn.Module):
    """What OpenRLHF calls of a DeepSpeed engine."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.optimizer = torch.optim.SGD(module.parameters(), lr=1e-2)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def backward(self, loss):
        loss.backward()

    def step(self):
        self.norm = torch.nn.utils.clip_grad_norm_(self.parameters(), 0.1)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def get_global_grad_norm(self):
        return self.norm


class Strategy(DeepspeedStrategy):
    ring_attn_group = None
    accumulated_gradient = 1

    def __init__(self):
        self.args = ARGS

    def is_rank_0(self):
        return True

    def all_reduce(self, data, op="mean"):
        return data


def experience(actor, group):
    sequences = torch.randint(3, 14, (4, 8))
    sequences[:, :3] = torch.tensor([4, 5, 6 + group])
    held = torch.ones(4, 8, dtype=torch.long)
    held[1, 6:] = 0
    drawn = held[:, 1:].bool()
    drawn[:, :2] = False
    with torch.no_grad():
        log_probs = actor(sequences, drawn, attention_mask=held)
    return Experience(
        sequences=sequences, attention_mask=held, action_mask=drawn, action_log_probs=log_probs,
        rollout_log_probs=log_probs.clone(), rewards=torch.tensor([1.0, 0.0, 1.0, 0.5]), kl=torch.zeros_like(log_probs),
        index=list(range(4 * group, 4 * group + 4)), total_length=held.sum(1).float(),
        prompts=["?"] * 4, labels=[""] * 4, info={"reward": torch.tensor([1.0, 0.0, 1.0, 0.5])},
    )  # fmt: skip


def main():
    torch.manual_seed(1)
    actor = Actor(sys.argv[1], attn_implementation="eager", param_dtype="bf16")
    actor.model = Engine(actor.model)
    maker = RemoteExperienceMaker.__new__(RemoteExperienceMaker)
    maker.strategy, maker.args = Settings(args=ARGS), ARGS
    maker.advantage_estimator, maker.kl_ctl = "group_norm", Settings(value=0.0)
    trainer = ActorPPOTrainer.__new__(ActorPPOTrainer)
    trainer.strategy, trainer.args, trainer.actor, trainer.ema_model = Strategy(), ARGS, actor, None
    trainer.actor_optim = None
    trainer.actor_scheduler = Settings(get_last_lr=lambda: [1e-2])
    trainer.actor_loss_fn, trainer.aux_loss = PolicyLoss(), False
    trainer.max_epochs, trainer.dataloader_pin_memory = 1, False
    torch.cuda.current_device = lambda: 0
    trainer.replay_buffer = NaiveReplayBuffer(4)
    torch.cuda.current_device = lambda: "cpu"
    for each in maker.compute_advantages_and_returns([experience(actor, group) for group in range(2)]):
        trainer.replay_buffer.append(each)
    trainer.ppo_train(0.0)


main()
