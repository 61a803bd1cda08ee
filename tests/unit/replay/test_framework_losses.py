"""Losses with exactly the signatures that the frameworks give theirs, on one saved batch, without wrappers."""

import sys
import types
from dataclasses import dataclass, field

import pytest

from loss_batches import save_batch
from rldbg.core import UsageError
from rldbg.replay.loss import LossRequest, rerun_loss
from rldbg.replay.loss.user_function import LossRaised
from rldbg.trainer import Recipe, build_model, load_tokenizer

LOSSES = """
import torch
from torch import nn


def clipped(log_prob, old, advantages, low, high):
    ratio = (log_prob - old).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)


def token_mean(values, mask):
    return (values * mask).sum() / mask.sum()


def sequence_mean(values, mask):
    return ((values * mask).sum(-1) / mask.sum(-1)).mean()


# verl
def compute_policy_loss_vanilla(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config=None,
    rollout_is_weights: torch.Tensor | None = None,
):
    assert config is not None and loss_agg_mode == "token-mean" and rollout_is_weights is None
    assert config.get("clip_ratio_c", 2.0) > 1.0 and not config.global_batch_info
    low, high = config.clip_ratio_low, config["clip_ratio_high"]
    return token_mean(clipped(log_prob, old_log_prob, advantages, low, high), response_mask), {"actor/ppo_kl": 0.0}


def compute_policy_loss(
    old_log_prob,
    log_prob,
    advantages,
    response_mask,
    cliprange=None,
    cliprange_low=None,
    cliprange_high=None,
    clip_ratio_c=3.0,
    loss_agg_mode: str = "token-mean",
):
    assert cliprange_low is None and cliprange_high is None
    loss = token_mean(clipped(log_prob, old_log_prob, advantages, cliprange, cliprange), response_mask)
    return loss, 0.0, 0.0, 0.0


def asks_for_more(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode="token-mean", config=None):
    return log_prob.sum() * config.tau_pos


# AReaL
def grpo_loss_fn(
    logprobs: torch.Tensor,
    entropy: torch.Tensor,
    input_data: dict,
    eps_clip: float,
    eps_clip_higher: float | None,
    c_clip: float | None,
    rejection_sampling=None,
    m2_threshold: float | None = None,
    importance_sampling_level: str = "token",
    current_version: int | None = None,
):
    assert eps_clip_higher is None and c_clip is None and input_data["loss_mask"].dtype == torch.bool
    assert input_data.get("cu_seqlens") is None and input_data["prox_logp"].shape == logprobs.shape
    entropy = entropy.detach()
    values = clipped(logprobs, input_data["logprobs"], input_data["advantages"], eps_clip, eps_clip)
    return token_mean(values, input_data["loss_mask"])


def ppo_actor_loss_fn(
    logprobs: torch.Tensor,
    proximal_logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    eps_clip: float,
    loss_mask: torch.Tensor,
    eps_clip_higher: float | None = None,
    c_clip: float | None = None,
    rejection_sampling=None,
    importance_sampling_level: str = "token",
    cu_seqlens: torch.Tensor | None = None,
):
    assert torch.equal(proximal_logprobs, old_logprobs)
    return token_mean(clipped(logprobs, proximal_logprobs, advantages, eps_clip, eps_clip), loss_mask), {}


# OpenRLHF
class PolicyLoss(nn.Module):
    def __init__(self, clip_eps_low: float = 0.2, clip_eps_high: float = 0.2, dual_clip: float = None) -> None:
        super().__init__()
        self.low, self.high = clip_eps_low, clip_eps_high

    def forward(
        self,
        log_probs: torch.Tensor,
        old_log_probs: torch.Tensor,
        advantages: torch.Tensor,
        action_mask: torch.Tensor | None = None,
        rollout_log_probs: torch.Tensor | None = None,
        dp_size: int = 1,
        batch_num_tokens: float | None = None,
        global_batch_size: float | None = None,
    ):
        assert torch.equal(rollout_log_probs, old_log_probs) and dp_size == 1
        values = clipped(log_probs, old_log_probs, advantages, self.low, self.high)
        return token_mean(values, action_mask), None, None, None, None


# TRL
class GRPOTrainer:
    def __init__(self, model, reward_funcs):
        raise AssertionError("no trainer is made")

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return self._compute_loss(model, inputs)

    def _compute_loss(self, model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attended = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        mask = inputs["completion_mask"] * inputs["tool_mask"]
        kept = inputs["completion_ids"].size(1)
        log_probs, entropies, aux_loss = self._get_per_token_logps_and_entropies(
            model, ids, attended, kept, compute_entropy=True, compute_aux_loss=self.aux_loss_enabled
        )
        old = inputs.get("old_per_token_logps")
        values = clipped(log_probs, old, inputs["advantages"], self.epsilon_low, self.epsilon_high)
        assert self.loss_type == "bnpo" and self.args.delta is None and self.beta == 0.0
        self._metrics["train" if self.model.training else "eval"]["kl"].append(0.0)
        return token_mean(values, mask) / self.current_gradient_accumulation_steps


# slime
def slime_custom_loss(args, batch, logits, sum_of_sample_mean):
    log_probs = []
    for ids, length, end in zip(
        batch["unconcat_tokens"], batch["response_lengths"], torch.tensor(batch["total_lengths"]).cumsum(0).tolist()
    ):
        rows = logits[0, end - length - 1 : end - 1].log_softmax(-1)
        log_probs.append(rows.gather(-1, ids[-length:, None]).squeeze(-1))
    old, advantages = torch.cat(batch["log_probs"]), torch.cat(batch["advantages"])
    values = clipped(torch.cat(log_probs), old, advantages, args.eps_clip, args.eps_clip_high)
    assert not args.use_kl_loss and len(batch["loss_masks"]) == len(log_probs)
    return sum_of_sample_mean(values), {}


def slime_compute_policy_loss(
    ppo_kl: torch.Tensor,
    advantages: torch.Tensor,
    eps_clip: float,
    eps_clip_high: float,
    eps_clip_c: float | None = None,
):
    values = clipped(-ppo_kl, torch.zeros_like(ppo_kl), advantages, eps_clip, eps_clip_high)
    return values, values.detach() * 0
"""


@pytest.fixture
def batch(tmp_path, monkeypatch):
    (tmp_path / "foreign_losses.py").write_text(LOSSES)
    save_batch(tmp_path / "batch.pt")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "foreign_losses", raising=False)
    yield tmp_path / "batch.pt"
    sys.modules.pop("foreign_losses", None)


@pytest.fixture
def grpo_config(monkeypatch):
    """The defaults that TRL declares."""

    @dataclass
    class GRPOConfig:
        loss_type: str = field(default="bnpo")
        beta: float = field(default=0.0)
        epsilon: float = field(default=0.2)
        epsilon_high: float | None = field(default=None)
        delta: float | None = field(default=None)

    module = types.ModuleType("trl.trainer.grpo_config")
    module.GRPOConfig = GRPOConfig
    monkeypatch.setitem(sys.modules, module.__name__, module)


def tiny(_name, device):
    vocabulary = load_tokenizer("tiny").vocabulary_size
    return build_model(Recipe().model, vocabulary_size=vocabulary, seed=0).to(device)


def verdicts(batch, name, **options):
    report, _ = rerun_loss(LossRequest(batch, f"foreign_losses:{name}", device="cpu", **options), load_model=tiny)
    return {point.name: {item.reference: item.verdict for item in point.comparisons} for point in report.points}


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("compute_policy_loss_vanilla", "ppo"),
        ("compute_policy_loss", "ppo"),
        ("grpo_loss_fn", "ppo"),
        ("ppo_actor_loss_fn", "ppo"),
        ("PolicyLoss", "ppo"),
        ("GRPOTrainer._compute_loss", "ppo"),
        ("GRPOTrainer.compute_loss", "ppo"),
        ("slime_compute_policy_loss", "grpo"),
    ],
)
def test_a_loss_is_called_as_its_framework_calls_it(batch, grpo_config, name, reference):
    found = verdicts(batch, name)
    assert found["recorded"][reference] == "equal" and found["moved"][reference] == "equal", found
    other = {"ppo": "grpo", "grpo": "ppo"}[reference]
    assert found["moved"][other] == "differs", "the loss tells the references apart"


def test_a_custom_loss_of_slime_takes_packed_logits(batch):
    assert verdicts(batch, "slime_custom_loss", model="tiny")["model"]["grpo"] == "equal"
    with pytest.raises(UsageError, match="asks for logits"):
        verdicts(batch, "slime_custom_loss")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("compute_policy_loss_vanilla", {"config.clip_ratio_high": 0.28}),
        ("compute_policy_loss", {"cliprange": 0.28}),
        ("ppo_actor_loss_fn", {"eps_clip": 0.28}),
        ("PolicyLoss", {"clip_eps_high": 0.28}),
        ("GRPOTrainer._compute_loss", {"self.epsilon_high": 0.28}),
    ],
)
def test_a_setting_is_given_by_its_own_name(batch, grpo_config, name, arguments):
    assert verdicts(batch, name, arguments=arguments)["moved"]["ppo"] == "differs"


def test_what_is_missing_is_named_with_the_option_that_gives_it(batch):
    with pytest.raises(LossRaised, match=r"--set config.tau_pos=VALUE"):
        verdicts(batch, "asks_for_more")
    assert "moved" in verdicts(batch, "asks_for_more", arguments={"config.tau_pos": 2.0})
    with pytest.raises(UsageError, match="no parameter 'clip'"):
        verdicts(batch, "compute_policy_loss", arguments={"clip": 1})
