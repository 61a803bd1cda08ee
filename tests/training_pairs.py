"""Two recorded runs of one small real training: what rounding makes of it, and what a bug in the optimizer does."""

from dataclasses import dataclass, replace

import torch

import rldbg

SAMPLES, TOKENS, FEATURES, WORDS = 8, 6, 12, 10


@dataclass(frozen=True)
class Training:
    """One run. `rounding` is added to each gradient, relative to its tensor's largest element, as kernels do."""

    optimizer: str = "adamw"
    rate: float = 3e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    decay: float = 0.0
    clip: float | None = 1.0
    bias_correction: bool = True
    skips: int | None = None
    updates: int = 8
    micro: int = 8
    rounding: float = 0.0
    seed: int = 0
    noise_seed: int = 0
    # One element of one gradient that is off by more than any rounding.
    spike: bool = False
    tensors: bool = True
    # Layers round what they take and give to this dtype, each kernel in its own way.
    dtype: torch.dtype = torch.float32

    def but(self, **changes):
        return replace(self, **changes)


class Policy(torch.nn.Module):
    """Logits from features. Adding `dead` to all of them changes nothing: its gradient is rounding and no more."""

    def __init__(self, dtype, noise):
        super().__init__()
        self.dtype, self.noise = dtype, noise
        self.inner = torch.nn.Linear(FEATURES, 24, bias=False)
        self.outer = torch.nn.Linear(24, WORDS, bias=False)
        self.dead = torch.nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return self.through(self.outer, torch.nn.functional.gelu(self.through(self.inner, x))) + self.dead.sum()

    def through(self, layer, x):
        if self.dtype is torch.float32:
            return layer(x)
        result = torch.nn.functional.linear(self.rounded(x), self.rounded(layer.weight), layer.bias)
        unit = torch.finfo(self.dtype).eps / 4
        return self.rounded(result * (1 + unit * (2 * torch.rand(result.shape, generator=self.noise) - 1)))

    def rounded(self, values):
        return values.to(self.dtype).float()


def record_training(folder, run):
    """Trains and records gradients, parameters and log probs of every update; the recording, opened."""
    torch.manual_seed(run.seed)
    noise = torch.Generator().manual_seed(run.noise_seed)
    policy = Policy(run.dtype, noise)
    x = torch.randn(SAMPLES, TOKENS, FEATURES)
    tokens = torch.randint(0, WORDS, (SAMPLES, TOKENS))
    advantages = torch.randn(SAMPLES, 1)
    advantages = advantages - advantages.mean()
    optimizer = _optimizer(policy, run)
    samples = [("g", number) for number in range(SAMPLES)]
    with rldbg.Recorder(folder, parameter_patterns=[".*"] if run.tensors else []) as recorder:
        for step in range(run.updates):
            rows = []
            for first in range(0, SAMPLES, run.micro):
                part = slice(first, first + run.micro)
                every = torch.log_softmax(policy(x[part]), -1)
                log_probs = every.gather(-1, tokens[part, :, None])[..., 0]
                (-(advantages[part] * log_probs).sum() / (SAMPLES * TOKENS)).backward()
                rows.append((log_probs.detach(), -(every.exp() * every).sum(-1).detach()))
            log_probs, entropy = (torch.cat(column).numpy() for column in zip(*rows, strict=True))
            mask = (log_probs < 1).astype("int64")
            recorder.record(
                "forward_data", step=step, samples=samples, log_probs=log_probs, entropy=entropy, response_mask=mask
            )
            for parameter in policy.parameters():
                scale = run.rounding * parameter.grad.abs().max()
                parameter.grad += scale * (2 * torch.rand(parameter.shape, generator=noise) - 1)
            if run.spike and step == 1:
                policy.inner.weight.grad[3, 4] += 0.1 * policy.inner.weight.grad.abs().max()
            recorder.record_gradients(step, policy)
            _update(policy, optimizer, run, step)
            recorder.record_parameters(step, policy)
            recorder.end_step(step)
    return rldbg.open(folder)


def _optimizer(policy, run):
    if run.optimizer == "sgd":
        return torch.optim.SGD(policy.parameters(), lr=run.rate, momentum=0.9, weight_decay=run.decay)
    return torch.optim.AdamW(
        policy.parameters(), lr=run.rate, betas=run.betas, eps=run.eps, weight_decay=run.decay, foreach=False
    )


def _update(policy, optimizer, run, step):
    if run.clip is not None:
        torch.nn.utils.clip_grad_norm_(policy.parameters(), run.clip)
    if not run.bias_correction:
        beta1, beta2 = run.betas
        for group in optimizer.param_groups:
            group["lr"] = run.rate * (1 - beta1 ** (step + 1)) / (1 - beta2 ** (step + 1)) ** 0.5
    if step != run.skips:
        optimizer.step()
    optimizer.zero_grad()
