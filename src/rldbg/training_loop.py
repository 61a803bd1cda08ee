"""`rldbg.record_loop`: records any PyTorch training loop from its model and optimizer, without a framework's help.

torch's own functions say what happens: `Tensor.backward` gives losses and micro-batches, `clip_grad_norm_` and
`clip_grad_value_` gradients before they are clipped, the optimizer's hooks gradients, parameters and optimizer steps.
`close` removes all hooks. An error in here is reported once and never reaches the loop.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rldbg.frameworks import RecordPlan, parameter_patterns
from rldbg.recording import Recorder

if TYPE_CHECKING:
    import torch

ATTRIBUTE = "_rldbg_loop"
_INPUTS = ("input_ids", "attention_mask", "position_ids")
_log = logging.getLogger(__name__)


def record_loop(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    directory: Path | str | None = None,
    **settings: Any,
) -> RecordedLoop:
    """Record losses, raw gradients, parameters and metrics of a training loop from now on.

    The records go to `directory`, by default into the run that `rldbg run --record` started; without either nothing is
    recorded. `settings` are those of `rldbg.Recorder`. `with rldbg.step(n):` numbers the steps; without it optimizer
    steps count, from 0.
    """
    plan = RecordPlan.from_environment() if directory is None else None
    recorder = None
    if plan is not None or directory is not None:
        kinds = tuple(settings.get("kinds") or (plan.kinds if plan is not None else ()))
        chosen: dict[str, Any] = {"kinds": kinds or None, "parameter_patterns": parameter_patterns(model, kinds)[0]}
        chosen["keep_last"] = plan.keep_last if plan is not None else None
        recorder = Recorder(directory or Path(plan.directory if plan is not None else ""), **chosen | settings)
    previous: RecordedLoop | None = getattr(sys, ATTRIBUTE, None)
    if previous is not None:
        previous.close()
    loop = RecordedLoop(model, optimizer, recorder)
    setattr(sys, ATTRIBUTE, loop)
    return loop


def _quietly(method: Callable[..., None]) -> Callable[..., None]:
    """An error in a hook is logged once and ends the recording of this loop, never the loop."""

    @functools.wraps(method)
    def call(self: RecordedLoop, *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the hook inside the user's training loop, which must never kill it
            _log.warning("recording of the loop stops, training continues: %s: %s", type(error).__name__, error)
            self.detach()

    return call


class RecordedLoop:
    """What `record_loop` returns; also a context manager that closes itself."""

    def __init__(self, model: Any, optimizer: Any, recorder: Recorder | None) -> None:
        self.recorder = recorder
        self._model = model
        self._number = 0
        self._is_told = False
        self._told = self._earlier_epochs = 0
        self._micro = 0
        self._updates = 0
        self._norm: Any = None
        self._has_gradients = self._sees_losses = False
        self._undo: list[Callable[[], None]] = []
        if recorder is not None:
            self._parameters = {id(parameter) for parameter in model.parameters()}
            self._attach(_innermost(optimizer))

    def record(self, kind: str, /, **fields: Any) -> None:
        """Record something of your own, at the current step and micro-batch."""
        if self.recorder is not None:
            self.recorder.record(kind, **self._place() | {"micro": self._micro} | fields)

    def enter_step(self, number: int | None) -> None:
        """`rldbg.step`: the loop says which step begins. If it counts from 0 in each epoch, numbers continue."""
        self.end_step()
        if number is None:
            number = self._told + 1 if self._is_told else self._number
        elif self._is_told and number < self._told:
            if not self._earlier_epochs and self.recorder is not None:
                _log.warning("step %d begins after step %d: it is recorded as the next one", number, self._told)
            self._earlier_epochs = self._number + 1 - number
        self._told = number
        self._number = self._earlier_epochs + number
        self._is_told = True

    def end_step(self) -> None:
        """Nothing more comes for the current step."""
        if self.recorder is not None and (self._updates or self._micro):
            self.recorder.end_step(self._number)
        self._updates = self._micro = 0

    def close(self) -> None:
        """Write what is left and take every hook away."""
        self.end_step()
        self.detach()
        if self.recorder is not None:
            self.recorder.close()

    def detach(self) -> None:
        while self._undo:
            self._undo.pop()()
        if getattr(sys, ATTRIBUTE, None) is self:
            delattr(sys, ATTRIBUTE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _place(self) -> dict[str, Any]:
        return {"step": self._number, "mini_batch": self._updates}

    def _attach(self, optimizer: Any) -> None:
        import torch

        handles = (
            optimizer.register_step_pre_hook(lambda _optimizer, args, kwargs: self._before_step(args, kwargs)),
            optimizer.register_step_post_hook(lambda *_: self._after_update(optimizer)),
            self._model.register_forward_pre_hook(
                lambda _module, _args, kwargs: self._forward(torch.is_grad_enabled(), kwargs), with_kwargs=True
            ),
        )
        self._undo += [handle.remove for handle in handles]
        self._replace(torch.Tensor, "backward", self._backward_of)
        for clip in (torch.nn.utils.clip_grad_norm_, torch.nn.utils.clip_grad_value_):
            for module in (torch.nn.utils, torch.nn.utils.clip_grad):
                self._replace(module, clip.__name__, self._clip_of)

    def _replace(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        setattr(owner, name, wrap(original))
        self._undo.append(lambda: setattr(owner, name, original))

    def _backward_of(self, original: Any) -> Any:
        @functools.wraps(original)
        def backward(loss: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(loss, *args, **kwargs)
            self._loss(loss)
            return result

        return backward

    def _clip_of(self, original: Any) -> Any:
        @functools.wraps(original)
        def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            # A generator could be read only once.
            chosen = list(parameters) if isinstance(parameters, Iterable) and not _is_tensor(parameters) else parameters
            self._before_clip(chosen)
            norm = original(chosen, *args, **kwargs)
            if norm is not None:
                self._norm = norm
            return norm

        return clip

    @_quietly
    def _forward(self, is_trained: bool, kwargs: dict[str, Any]) -> None:
        if is_trained and self._model.training and "input_ids" in kwargs:
            inputs = {name: kwargs[name] for name in _INPUTS if kwargs.get(name) is not None}
            self.record("batch_inputs", **inputs)

    @_quietly
    def _loss(self, loss: Any) -> None:
        if loss.numel() == 1:
            self.record("loss", loss=loss.detach())
            self._micro += 1
            self._sees_losses = True

    @_quietly
    def _before_clip(self, parameters: Any) -> None:
        first = parameters[0] if isinstance(parameters, list) and parameters else parameters
        # Clipping after an optimizer step finds the gradients of that step, not of the next.
        is_late = self._sees_losses and not self._micro
        if id(first) in self._parameters and not is_late:
            self._before_update()

    def _before_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """With a closure, which Lightning gives, forward and backward passes are part of the optimizer's step."""
        if kwargs.get("closure") is None and (len(args) < 2 or args[1] is None):
            self._before_update()

    @_quietly
    def _before_update(self) -> None:
        """Gradients as the backward pass left them, unless they were recorded before they were clipped."""
        if not self._has_gradients and self.recorder is not None:
            self._has_gradients = True
            self.recorder.record_gradients(model=self._model, **self._place())

    @_quietly
    def _after_update(self, optimizer: Any) -> None:
        assert self.recorder is not None
        self._before_update()
        self.recorder.record_parameters(model=self._model, **self._place())
        metrics = {"learning_rate": float(optimizer.param_groups[0]["lr"])}
        if self._norm is not None:
            metrics["grad_norm"] = float(self._norm)
        self.recorder.record("training_metrics", **self._place(), metrics=metrics)
        self._has_gradients, self._norm, self._micro = False, None, 0
        self._updates += 1
        if not self._is_told:
            self.end_step()
            self._number += 1


def _innermost(optimizer: Any) -> Any:
    """Accelerate and Lightning wrap optimizers; the hooks belong on torch's own."""
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "requires_grad")
