"""A model in training: parameters, optimizer, accumulated gradients, and the step functions the protocols call.

Only the computing thread touches one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

import torch

from rldbg.core import setting
from rldbg.training_service.batches import cut, pad
from rldbg.training_service.datums import Datum
from rldbg.training_service.errors import ServiceRequestError, read_settings
from rldbg.training_service.lora import LoraSettings, add_adapters, is_adapter, merged, named_tensors
from rldbg.training_service.losses import LossSettings
from rldbg.training_service.passes import PassResult, PassTerms, forward, pass_result
from rldbg.training_service.step_recorder import StepRecorder

_ADAM_STATE = ("step", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class AdamSettings:
    """One optimizer step's parameters; grad_clip_norm 0 leaves gradients alone."""

    learning_rate: float = setting(at_least=0, below=inf)
    beta1: float = setting(at_least=0, below=1)
    beta2: float = setting(at_least=0, below=1)
    eps: float = setting(at_least=0, below=inf)
    weight_decay: float = setting(at_least=0, below=inf)
    grad_clip_norm: float = setting(at_least=0, below=inf)

    @classmethod
    def parse(cls, body: Any, defaults: AdamSettings) -> AdamSettings:
        return read_settings(cls, asdict(defaults) | body if isinstance(body, dict) else body, "adam_params")


class TrainedModel:
    """One model id. Gradients add up from pass to pass; the optimizer step uses and clears them."""

    def __init__(
        self,
        model_id: str,
        base_model: str,
        module: Any,
        recorder: StepRecorder | None,
        lora: LoraSettings | None = None,
    ) -> None:
        self.model_id = model_id
        self.base_model = base_model
        self.module = module
        if lora is not None:
            add_adapters(module, lora)
        self.step = 0
        self._optimizer = _new_optimizer(module)
        self._recorder = recorder

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """The parameters, with adapters in addition to the weights that they adapt."""
        return {name: parameter.detach() for name, parameter in named_tensors(self.module)}

    @property
    def whole_weights(self) -> dict[str, torch.Tensor]:
        return merged(self.weights)

    def run_pass(self, datums: Sequence[Datum], settings: LossSettings, *, backward: bool) -> PassResult:
        """Forward, and backward if asked; a pass that fails leaves the accumulated gradients as they were."""
        earlier = [(parameter, parameter.grad) for parameter in self.module.parameters()]
        for parameter, _ in earlier:
            parameter.grad = None
        try:
            if self._recorder is not None and backward:
                self._recorder.begin_pass(self.step, datums, settings)
            terms = []
            with torch.set_grad_enabled(backward):
                for part in cut(datums, settings.micro_batch_size):
                    terms.append(self._run_micro_batch(part, settings, backward=backward))
        except BaseException:
            for parameter, gradient in earlier:
                parameter.grad = gradient
            raise
        for parameter, gradient in earlier:
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else gradient.add_(parameter.grad)
        result = pass_result(terms)
        if self._recorder is not None and backward:
            self._recorder.metrics(self.step, result.metrics)
        return result

    def _run_micro_batch(self, datums: Sequence[Datum], settings: LossSettings, *, backward: bool) -> PassTerms:
        terms = forward(self.module, pad(datums, next(self.module.parameters()).device), settings)
        if backward:
            terms.loss.backward()  # type: ignore[no-untyped-call]
            if self._recorder is not None:
                self._recorder.micro_batch(self.step, terms)
        return terms

    def optimizer_step(self, adam: AdamSettings) -> dict[str, float]:
        """AdamW on the accumulated gradients, clipped by their global norm; without gradients nothing moves."""
        if self._recorder is not None:
            self._recorder.gradients(self.step, self.module)
        limit = adam.grad_clip_norm if adam.grad_clip_norm > 0 else float("inf")
        norm = float(torch.nn.utils.clip_grad_norm_(self.module.parameters(), limit, foreach=False))
        for group in self._optimizer.param_groups:
            group |= {
                "lr": adam.learning_rate,
                "betas": (adam.beta1, adam.beta2),
                "eps": adam.eps,
                "weight_decay": adam.weight_decay,
            }
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if self._recorder is not None:
            self._recorder.parameters(self.step, self.module)
        self.step += 1
        return {"grad_norm": norm, "learning_rate": adam.learning_rate, "step": float(self.step)}

    def optimizer_state(self) -> dict[str, torch.Tensor]:
        """The optimizer's tensors under `<parameter>/<name>`; empty before the first step."""
        return {
            f"{name}/{key}": value.detach().clone()
            for name, parameter in named_tensors(self.module)
            for key, value in self._optimizer.state.get(parameter, {}).items()
            if key in _ADAM_STATE
        }

    def load(self, weights: Mapping[str, torch.Tensor], optimizer: Mapping[str, torch.Tensor] | None) -> None:
        """Replaces all parameters; the optimizer state is reset unless it is given. Gradients are cleared."""
        load_weights(self.module, weights)
        self._optimizer = _new_optimizer(self.module)
        for parameter in self.module.parameters():
            parameter.grad = None
        saved = optimizer or {}
        for name, parameter in named_tensors(self.module):
            keys = {key: f"{name}/{key}" for key in _ADAM_STATE}
            if saved.keys() >= set(keys.values()):
                self._optimizer.state[parameter] = {
                    key: saved[full] if key == "step" else saved[full].to(parameter.device)
                    for key, full in keys.items()
                }

    def to_safetensors(self) -> bytes:
        from safetensors.torch import save

        return bytes(save(self.whole_weights))

    def load_safetensors(self, content: bytes) -> int:
        """Replaces all parameters and returns how many there are."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            weights = load(content)
        except SafetensorError as error:
            raise ServiceRequestError(f"the body is not a safetensors file: {error}") from error
        self.load(weights, None)
        return len(weights)

    def close(self) -> None:
        if self._recorder is not None:
            self._recorder.close()


def load_weights(module: Any, weights: Mapping[str, torch.Tensor]) -> None:
    """Copies weights into a module; a name or shape that does not fit is an error that names it, before any copy.

    Adapters that the module does not have are added to its weights; those that it has and is not given become 0.
    """
    # A parameter that two places share may be given under the name of each.
    named = dict(named_tensors(module, all_names=True))
    adapters = {name for name in named if is_adapter(name)}
    if not adapters:
        weights = merged(weights)
    elif not any(map(is_adapter, weights)):
        weights = {**weights, **{name: named[name] * (not name.endswith("up")) for name in adapters}}
    missing = sorted(dict(named_tensors(module)).keys() - weights.keys())
    unknown = sorted(weights.keys() - named.keys())
    if missing or unknown:
        raise ServiceRequestError(
            f"weights lack {missing[0]}" if missing else f"the model has no parameter {unknown[0]}"
        )
    for name, tensor in weights.items():
        if tensor.shape != named[name].shape:
            raise ServiceRequestError(
                f"{name} has shape {list(tensor.shape)}, the model's has {list(named[name].shape)}"
            )
    with torch.no_grad():
        for name, tensor in weights.items():
            named[name].copy_(tensor)


def _new_optimizer(module: Any) -> Any:
    return torch.optim.AdamW(module.parameters(), foreach=False)
