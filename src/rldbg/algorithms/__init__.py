"""Pure maths on arrays, numpy or torch alike: advantages, losses, KL, ratios, token
sampling. Written once, for trainer, inference, training service, analysis and rerun. No
function keeps state, reads configuration or knows a device."""

from rldbg.algorithms.advantages import dapo_advantages, grpo_advantages, informative_groups, overlong_penalty
from rldbg.algorithms.arrays import Array, masked
from rldbg.algorithms.log_probs import (
    KlEstimator,
    effective_sample_size,
    entropy,
    kl_divergence,
    log_softmax,
    ratio_metrics,
    token_log_probs,
)
from rldbg.algorithms.losses import (
    LOSS_NAMES,
    Aggregation,
    LossName,
    TokenLoss,
    aggregate,
    combine_losses,
    cross_entropy_loss,
    importance_ratio,
    importance_sampling_loss,
    loss_denominator,
    policy_loss,
    ppo_loss,
)
from rldbg.algorithms.token_sampling import (
    LOGPROB_MODES,
    LogprobMode,
    SampledTokens,
    SamplingRule,
    TopTokens,
    sample_tokens,
    top_tokens,
)
