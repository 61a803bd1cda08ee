"""A user's loss on a saved batch, with autograd, compared with the references: `rerun_loss`.

Everything is computed at two points. At the recorded log probs every ratio is 1 and no clip decides anything, so
losses that clip differently agree there; a seeded step away from them tells such losses apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rldbg.algorithms import Aggregation, aggregate, ppo_loss
from rldbg.core import Finding, IncompleteDataError, PrerequisiteError, UsageError
from rldbg.replay.loss.findings import against_reference, findings_of
from rldbg.replay.loss.inputs import LossInputs, load_inputs
from rldbg.replay.loss.model_pass import ModelPass
from rldbg.replay.loss.ranks import LossRanks, ranks_of_this_job
from rldbg.replay.loss.results import LossComparison, LossReport, LossVerdict, ModelGradients, Point
from rldbg.replay.loss.user_function import LossRaised, UserLoss, quantities

if TYPE_CHECKING:
    import torch

# float32 carries 6e-8 relative; sums of thousands of terms in another order lose three digits.
_RELATIVE, _ABSOLUTE = 1e-4, 1e-7
_PARALLEL = 1 - 1e-6


@dataclass(frozen=True, slots=True)
class ReferenceLoss:
    """A clipped policy loss to compare a user's own with: how far the ratio may go, how tokens become one number."""

    name: str
    clip_low: float
    clip_high: float
    aggregation: Aggregation

    def __call__(
        self, log_probs: torch.Tensor, old_log_probs: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        tokens = ppo_loss(
            log_probs,
            old_log_probs,
            advantages,
            lowest_ratio=1 - self.clip_low,
            highest_ratio=1 + self.clip_high,
        )
        loss: torch.Tensor = aggregate(tokens.values, mask, self.aggregation)
        return loss

    def __str__(self) -> str:
        return f"{self.name} (clip {self.clip_low:g}/{self.clip_high:g}, {self.aggregation})"


def references(clip_low: float | None = None, clip_high: float | None = None) -> tuple[ReferenceLoss, ...]:
    """The reference losses as published: GRPO takes the mean over sequences, DAPO and PPO over tokens, and DAPO has a
    higher upper clip bound."""
    usual: tuple[tuple[str, float, float, Aggregation], ...] = (
        ("grpo", 0.2, 0.2, "sequence_mean"),
        ("dapo", 0.2, 0.28, "token_mean"),
        ("ppo", 0.2, 0.2, "token_mean"),
    )
    return tuple(
        ReferenceLoss(name, low if clip_low is None else clip_low, high if clip_high is None else clip_high, how)
        for name, low, high, how in usual
    )


@dataclass(frozen=True, slots=True)
class LossRequest:
    """What to compute. Fields are the options of `rldbg rerun --loss`."""

    path: Path | str
    loss: str
    step: int | None = None
    model: str | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    reference: str | None = None
    clip_low: float | None = None
    clip_high: float | None = None
    micro_batch: int = 8
    reduce: str = "mean"
    noise: float = 0.3
    seed: int = 0
    random_advantages: int | None = None
    pdb: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)


# Loads the model of a name, on a device, in evaluation mode.
ModelLoader = Callable[[str, Any], Any]


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A loss at a point: its value on all rows, that of each rank, and its gradient for all rows' log probs."""

    value: float
    of_ranks: tuple[float, ...]
    gradient: torch.Tensor | None  # [b, r]
    entropy_gradient: torch.Tensor | None = None  # [b of this rank, r]


def rerun_loss(request: LossRequest, *, load_model: ModelLoader) -> tuple[LossReport, int]:
    """The report, and this process's rank: one of them should print."""
    for name in ("torch", "transformers") if request.model else ("torch",):
        if find_spec(name) is None:
            raise PrerequisiteError(f"a loss needs {name}", "pip install 'rldbg[train]'")
    user = UserLoss(request.loss, debugger=request.pdb, arguments=request.arguments)
    if user.needs_model and request.model is None:
        wanted = ", ".join(sorted(user.needs & {"logits", "model", "entropy"}))
        raise UsageError(f"{request.loss} asks for {wanted}", "give the model with --model PATH")
    with ranks_of_this_job(request.device) as ranks:
        inputs = load_inputs(
            request.path, step=request.step, device=ranks.device, random_advantages=request.random_advantages
        )
        if not bool((inputs.advantages * inputs.mask).any()):
            raise IncompleteDataError(
                f"every advantage of {inputs.title} is 0: losses cannot be distinguished",
                "use a batch with different rewards in a group, or --random-advantages 0 for seeded numbers",
            )
        return _Evaluation(request, user, inputs, ranks, load_model).report(), ranks.rank


class _Evaluation:
    """One request on one rank. Collective calls are made in the same order on every rank, whatever its rows hold."""

    def __init__(
        self, request: LossRequest, user: UserLoss, inputs: LossInputs, ranks: LossRanks, load_model: ModelLoader
    ) -> None:
        self._request, self._user, self._inputs, self._ranks = request, user, inputs, ranks
        self._rows = ranks.rows(len(inputs))
        self._references = references(request.clip_low, request.clip_high)
        self._model: ModelPass | None = None
        if request.model is not None:
            model = load_model(request.model, ranks.device)
            self._model = ModelPass(model, inputs.batch, self._rows, ranks=ranks, micro_batch=request.micro_batch)

    def report(self) -> LossReport:
        request, inputs = self._request, self._inputs
        base, entropy = self._base()
        evaluated = self._user_at(base, entropy)
        gradients = self._gradients(evaluated, base)
        points = [self._point(*self._named_base(), base, evaluated, gradients)]
        findings: list[Finding] = findings_of(evaluated, inputs, points[0], self._user.takes_log_probs)
        if self._user.takes_log_probs:
            moved = self._moved(base)
            there = self._user_at(moved, entropy)
            points.append(
                self._point("moved", f"a seeded step of {request.noise:g} away, so that ratios differ", moved, there)
            )
            findings += [
                item for item in findings_of(there, inputs, points[1], True) if item.id not in {f.id for f in findings}
            ]
        report = LossReport(
            loss=request.loss,
            recording=inputs.title,
            step=inputs.step,
            rows=len(inputs),
            tokens=int(inputs.mask.sum()),
            ranks=self._ranks.count,
            device=str(self._ranks.device),
            model=request.model or "",
            points=tuple(points),
            gradients=gradients,
            references={item.name: str(item) for item in self._references},
        )
        return replace(report, findings=(*findings, *against_reference(report, inputs, request.reference)))

    def _named_base(self) -> tuple[str, str]:
        if self._model is not None:
            return "model", "the log probs of the model"
        return "recorded", "the recorded log probs, where every ratio is 1"

    def _base(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log probs of all rows, and the entropy of this rank's."""
        if self._model is None:
            return self._inputs.old_log_probs, None
        log_probs, entropy = self._model.log_probs()
        return self._ranks.gathered(log_probs), entropy

    def _moved(self, base: torch.Tensor) -> torch.Tensor:
        import torch

        generator = torch.Generator().manual_seed(self._request.seed)
        step = torch.randn(base.shape, generator=generator) * self._request.noise
        return torch.clamp(self._inputs.old_log_probs + step.to(base.device), max=0.0)

    def _user_at(self, log_probs: torch.Tensor, entropy: torch.Tensor | None) -> Evaluated:
        """The user's loss of this rank's rows; an error on any rank is an error on all of them."""
        leaf = log_probs[self._rows].detach().clone().requires_grad_()
        of_entropy = None if entropy is None else entropy.detach().clone().requires_grad_()
        error: LossRaised | None = None
        value = None
        try:
            more = {} if self._model is None else {"model": self._model.model}
            if "logits" in self._user.needs and self._model is not None:
                more["logits"] = self._model.logits()
            value = self._user(quantities(self._inputs, self._rows, leaf, of_entropy, more))
        except LossRaised as raised:
            error = raised
        failed = [item for item in self._ranks.objects(error) if item is not None]
        if failed:
            raise failed[0]
        assert value is not None
        scale = 1 / self._ranks.count if self._request.reduce == "mean" else 1.0
        if value.requires_grad:
            (value * scale).backward()  # type: ignore[no-untyped-call]
        of_ranks = tuple(self._ranks.objects(float(value.detach())))
        has_gradient = any(self._ranks.objects(leaf.grad is not None))
        return Evaluated(
            value=sum(of_ranks) * scale,
            of_ranks=of_ranks,
            gradient=self._ranks.gathered(leaf.grad if leaf.grad is not None else leaf.detach() * 0)
            if has_gradient
            else None,
            entropy_gradient=None if of_entropy is None else of_entropy.grad,
        )

    def _point(
        self,
        name: str,
        meaning: str,
        log_probs: torch.Tensor,
        evaluated: Evaluated,
        gradients: ModelGradients | None = None,
    ) -> Point:
        comparisons = [self._compared(reference, log_probs, evaluated, gradients) for reference in self._references]
        return Point(
            name=name,
            meaning=meaning,
            loss=evaluated.value,
            loss_of_ranks=evaluated.of_ranks,
            gradient_norm=_norm(evaluated.gradient),
            comparisons=tuple(comparisons),
        )

    def _reference_at(self, reference: ReferenceLoss, log_probs: torch.Tensor) -> tuple[float, torch.Tensor]:
        leaf = log_probs.detach().clone().requires_grad_()
        loss = reference(leaf, self._inputs.old_log_probs, self._inputs.advantages, self._inputs.mask)
        loss.backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None
        return float(loss.detach()), leaf.grad

    def _compared(
        self, reference: ReferenceLoss, log_probs: torch.Tensor, evaluated: Evaluated, gradients: ModelGradients | None
    ) -> LossComparison:
        value, gradient = self._reference_at(reference, log_probs)
        largest = float(gradient.abs().max())
        same_value = abs(evaluated.value - value) <= _RELATIVE * max(abs(value), largest) + _ABSOLUTE
        if evaluated.gradient is None:
            # A loss of logits is compared where its gradient arrives, in the parameters.
            same = same_value and not self._user.takes_log_probs and _same_in_parameters(gradients, reference.name)
            verdict: LossVerdict = "equal" if same else "differs"
            return LossComparison(reference.name, value, _norm(gradient), math.nan, math.nan, math.nan, verdict)
        difference = float((evaluated.gradient - gradient).abs().max())
        cosine, factor = _direction(evaluated.gradient, gradient)
        verdict = "differs"
        if same_value and difference <= _RELATIVE * largest + _ABSOLUTE:
            verdict = "equal"
        elif abs(cosine) >= _PARALLEL:
            verdict = "proportional" if cosine > 0 else "opposite"
        return LossComparison(reference.name, value, _norm(gradient), difference, cosine, factor, verdict)

    def _gradients(self, evaluated: Evaluated, base: torch.Tensor) -> ModelGradients | None:
        """Norms in the parameters. A loss of logits or of the model itself has left its gradient there already."""
        if self._model is None:
            return None
        if self._user.takes_log_probs:
            gradient = base * 0 if evaluated.gradient is None else evaluated.gradient
            own = self._model.carry(gradient[self._rows], evaluated.entropy_gradient)
        else:
            own = self._model.collected()
        norms, cosines = {}, {}
        for reference in self._references:
            _, gradient = self._reference_at(reference, base)
            theirs = self._model.carry(gradient[self._rows])
            norms[reference.name] = _total_norm(theirs)
            cosines[reference.name] = _cosine(own, theirs)
        sizes = {name: float(value.float().norm()) for name, value in own.items()}
        largest = dict(sorted(sizes.items(), key=lambda item: -item[1])[:5])
        apart = ((base - self._inputs.old_log_probs) * self._inputs.mask).abs().max()
        return ModelGradients(_total_norm(own), norms, cosines, largest, float(apart))


def _same_in_parameters(gradients: ModelGradients | None, name: str) -> bool:
    if gradients is None:
        return False
    norm = gradients.references[name]
    return abs(gradients.norm - norm) <= 10 * _RELATIVE * norm and gradients.cosines[name] >= 1 - 10 * _RELATIVE


def _norm(gradient: torch.Tensor | None) -> float:
    return float("nan") if gradient is None else float(gradient.double().norm())


def _direction(ours: torch.Tensor, theirs: torch.Tensor) -> tuple[float, float]:
    """The cosine between two gradients, and how many times the second the first is."""
    ours, theirs = ours.double(), theirs.double()
    product, square = float((ours * theirs).sum()), float((theirs * theirs).sum())
    size = float(ours.norm()) * square**0.5
    return (product / size if size else float("nan")), (product / square if square else float("nan"))


def _total_norm(gradients: Mapping[str, torch.Tensor]) -> float:
    return float(sum(float(value.double().norm()) ** 2 for value in gradients.values()) ** 0.5)


def _cosine(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> float:
    product = sum(float((ours[name].double() * theirs[name].double()).sum()) for name in ours)
    size = _total_norm(ours) * _total_norm(theirs)
    return product / size if size else float("nan")
