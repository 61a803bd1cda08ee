"""The stages of a training step in causal order, and which recorded field belongs to which."""

from enum import StrEnum


class Stage(StrEnum):
    """The stages in causal order: earlier ones can cause differences in later ones, never the reverse."""

    CONFIG = "config"
    TRAJECTORY = "trajectory"
    REWARD = "reward"
    ADVANTAGE = "advantage"
    OLD_LOG_PROBS = "old_log_probs"
    FORWARD = "forward"
    RATIO = "ratio"
    LOSS = "loss"
    GRADIENT = "gradient"
    PARAMETER = "parameter"
    METRICS = "metrics"

    @property
    def order(self) -> int:
        return list(Stage).index(self)


_BY_FIELD: dict[tuple[str, str], Stage] = {
    ("trajectory", "reward"): Stage.REWARD,
    ("prepared_trajectories", "reward"): Stage.REWARD,
    ("prepared_trajectories", "advantages"): Stage.ADVANTAGE,
    ("prepared_trajectories", "values"): Stage.ADVANTAGE,
    ("prepared_trajectories", "returns"): Stage.ADVANTAGE,
    ("value_loss", "old_values"): Stage.ADVANTAGE,
    ("value_loss", "returns"): Stage.ADVANTAGE,
    ("value_loss", "values"): Stage.FORWARD,
    ("value_loss", "response_mask"): Stage.FORWARD,
    ("value_loss", "metrics"): Stage.METRICS,
    ("is_loss_debug", "log_probs"): Stage.FORWARD,
    ("is_loss_debug", "effective_valid"): Stage.FORWARD,
    ("is_loss_debug", "old_log_probs"): Stage.OLD_LOG_PROBS,
    ("is_loss_debug", "advantages"): Stage.ADVANTAGE,
    ("is_loss_debug", "prob_ratio"): Stage.RATIO,
    ("loss", "metrics"): Stage.METRICS,
}
# Fields of a sample that say how good it was.
_SCORES = frozenset({"extra_fields.score", "extra_fields.reward", "extra_fields.raw_reward", "extra_fields.acc"})
# Those of each function, and what they count.
_REWARDS = ("extra_fields.rewards", "extra_fields.reward_weights")
_BY_KIND: dict[str, Stage] = {
    "trajectory": Stage.TRAJECTORY,
    "prepared_trajectories": Stage.TRAJECTORY,
    "datums": Stage.ADVANTAGE,
    "old_log_probs": Stage.OLD_LOG_PROBS,
    "forward_data": Stage.FORWARD,
    "batch_inputs": Stage.FORWARD,
    "is_loss_debug": Stage.LOSS,
    "loss": Stage.LOSS,
    "value_loss": Stage.LOSS,
    "gradient": Stage.GRADIENT,
    "param": Stage.PARAMETER,
    "training_metrics": Stage.METRICS,
}


def stage_of(kind: str, field: str) -> Stage:
    """The stage of a field; a user's own kinds are taken as part of the forward pass."""
    if field in _SCORES or field.startswith(_REWARDS):
        return Stage.REWARD
    return _BY_FIELD.get((kind, field)) or _BY_KIND.get(kind, Stage.FORWARD)
