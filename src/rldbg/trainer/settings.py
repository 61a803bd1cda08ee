"""The settings of a recipe, as frozen dataclasses. They have no dependencies, so that the step functions run anywhere;
`rldbg.trainer.recipe` reads and checks them."""

from dataclasses import dataclass, field
from typing import Literal

from rldbg.algorithms import Aggregation, KlEstimator
from rldbg.core import setting


@dataclass(frozen=True, slots=True)
class TinyModel:
    """The shape of the built-in model (`model.path: tiny`)."""

    hidden_size: int = 64
    layers: int = 2
    heads: int = 4
    experts: int = setting(0, at_least=0)
    """Experts of each layer, of which a router chooses two per token; 0 makes a dense model."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    path: str = "tiny"
    """`tiny`, or the folder of any Hugging Face causal language model."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    tiny: TinyModel = field(default_factory=TinyModel)


@dataclass(frozen=True, slots=True)
class DataSettings:
    task: str = "arithmetic"
    """`arithmetic`, or a .jsonl file with one {"prompt", "answer"} per line (and an "id", if the rows have one)."""
    operators: str = "+-*"
    """Which problems there are: a op b for each of these."""
    largest: int = 9
    """The largest a and b."""
    prompts_per_step: int = setting(32, at_least=1)
    samples_per_prompt: int = setting(8, at_least=1)
    max_turns: int = setting(1, at_least=1)
    """Attempts per sample; each further attempt is worth half the reward."""
    feedback: Literal["no", "tool"] = "no"
    """The reply to a wrong answer: that it is wrong, or a tool's reply (the last digit of the right answer) and the
    question again."""

    @property
    def samples_per_step(self) -> int:
        return self.prompts_per_step * self.samples_per_prompt


@dataclass(frozen=True, slots=True)
class WarmStartSettings:
    """A short supervised phase before the first step, on answers made in code of which a share is wrong."""

    max_steps: int = 0
    until_success: float = 0.2
    """The phase ends when a sampled answer is right with this probability."""
    batch_size: int = 128
    learning_rate: float = 3e-3
    wrong_fraction: float = 0.5


@dataclass(frozen=True, slots=True)
class AlgorithmSettings:
    advantages: Literal["grpo", "dapo"] = "grpo"
    scale_by_std: bool = True
    """Divide by the group's standard deviation (grpo)."""
    epsilon: float = 1e-6
    loss: Literal["importance_sampling", "ppo"] = "ppo"
    clip_low: float = 0.2
    clip_high: float = 0.2
    """The ratio is clipped to [1 - clip_low, 1 + clip_high] (ppo)."""
    aggregation: Aggregation = "token_mean"
    entropy_coeff: float = 0.0
    kl_coeff: float = 0.0
    """Weight of the KL divergence to the model the run started from."""
    kl_estimator: KlEstimator = "k3"
    old_log_probs: Literal["policy", "rollout"] = "policy"
    """Whose log probs the ratio is taken against: recomputed by the policy before its update, or the rollout's."""
    overlong_buffer: int = 0
    overlong_factor: float = 1.0
    """Soft punishment of the last `overlong_buffer` tokens before the limit (dapo)."""


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """AdamW, its learning rate falling linearly to the last step."""

    learning_rate: float = 3e-3
    final_learning_rate: float = 3e-4
    warmup_steps: int = 0
    """Steps in which the learning rate rises to its full value."""
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm; 0 disables it."""


@dataclass(frozen=True, slots=True)
class PolicySettings:
    ranks: int = setting(2, at_least=1)
    micro_batch_size: int = setting(64, at_least=1)
    """Samples of one forward and backward pass on one rank."""
    mini_batches: int = setting(1, at_least=1)
    """Optimizer steps per epoch over a step's samples."""
    epochs: int = setting(1, at_least=1)
    fsdp: bool = False
    """Shard parameters, gradients and optimizer over the ranks (FSDP2) instead of replicating them."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    port: int = 0
    """Where rank 0 listens for the others; 0 takes a free port."""


@dataclass(frozen=True, slots=True)
class InferenceSettings:
    servers: int = setting(1, at_least=1)
    max_new_tokens: int = setting(4, at_least=1)
    """Limit of one answer."""
    temperature: float = setting(1.0, above=0)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    addresses: tuple[str, ...] = ()
    """Inference servers to ask (`rldbg serve up`), host:port each; empty starts servers of the run's own."""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    address: str | None = None
    """A running Ray cluster to join (`auto` finds one); absent, a local one is started for this run."""
    in_process: bool = False
    """Everything in this process, without Ray: ranks are threads, one rollout worker, under any debugger."""
    dashboard: bool = False
    max_restarts: int = 3
    """How often a killed rollout worker or inference server is replaced before the run gives up."""


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """The training service of `mode: remote_api`."""

    url: str = "http://127.0.0.1:8080"
    api_key: str = ""
    timeout_s: float = 120.0


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    every_n_steps: int = 0
    """0 writes none."""
    keep_last: int = 2


@dataclass(frozen=True, slots=True)
class LoggingSettings:
    trackers: tuple[Literal["tensorboard", "wandb", "mlflow", "trackio"], ...] = ()
    """Beside metrics.jsonl; each needs its own library."""
    project: str = "rldbg"


@dataclass(frozen=True, slots=True)
class ZooSettings:
    bug: str | None = None
    """A bug of `rldbg zoo list`, built into this run on purpose; needs `cluster.in_process`."""


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """What the trainer reads of the `rollout_worker:` block."""

    replay_from: str | None = None
    replay_format: str | None = None
    allow_partial: bool = False
    workers: int = setting(2, at_least=1)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A whole training run. `rollout_worker` and `debug` are the documented blocks, read by `rldbg.recording`."""

    name: str = "train"
    mode: Literal["self_hosted", "remote_api"] = "self_hosted"
    seed: int = 0
    steps: int = setting(100, at_least=1)
    deterministic: bool = True
    """Bit-identical rewards, losses and parameters from run to run: fixed threads, batches and algorithms."""
    threads: int = setting(1, at_least=1)
    """Threads of each process that computes; part of what makes a run repeatable."""
    model: ModelSettings = field(default_factory=ModelSettings)
    data: DataSettings = field(default_factory=DataSettings)
    warm_start: WarmStartSettings = field(default_factory=WarmStartSettings)
    algorithm: AlgorithmSettings = field(default_factory=AlgorithmSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)
    inference: InferenceSettings = field(default_factory=InferenceSettings)
    rollout_worker: RolloutSettings = field(default_factory=RolloutSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    remote: RemoteSettings = field(default_factory=RemoteSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    logging: LoggingSettings = field(default_factory=LoggingSettings)
    zoo: ZooSettings = field(default_factory=ZooSettings)

    @property
    def max_response_length(self) -> int:
        """Most tokens of a response that the policy itself writes."""
        return self.inference.max_new_tokens * self.data.max_turns
