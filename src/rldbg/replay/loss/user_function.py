"""A user's loss function: its parameters are filled by name, and what it returns becomes one number.

It may ask for the tensors of the response (`log_probs`, `advantages`, `mask` ...), for the whole `batch`, or for the
`model` or its `logits`; under the names that the frameworks use for them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rldbg.core import RldbgError, UsageError, call_under_pdb, load_user_object, user_traceback
from rldbg.replay.loss.inputs import LossInputs

if TYPE_CHECKING:
    import torch

NAMES: dict[str, tuple[str, ...]] = {
    "log_probs": (
        "logprobs",
        "logp",
        "log_prob",
        "new_log_probs",
        "new_logprobs",
        "per_token_logps",
        "current_logprobs",
    ),
    "old_log_probs": (
        "old_logprobs",
        "old_logp",
        "old_log_prob",
        "old_per_token_logps",
        "rollout_log_probs",
        "rollout_logprobs",
    ),
    "advantages": ("advantage", "adv"),
    "mask": ("loss_mask", "response_mask", "completion_mask", "action_mask"),
    "rewards": ("reward", "scores"),
    "entropy": ("entropies",),
    "group_ids": ("groups", "uid"),
    "versions": ("policy_versions",),
    "input_ids": ("tokens",),
    "attention_mask": (),
    "position_ids": (),
    "logits": (),
    "model": (),
    "batch": ("input_data", "data", "inputs"),
}
_CANONICAL = {alias: name for name, aliases in NAMES.items() for alias in (name, *aliases)}
_OF_MODEL = frozenset({"logits", "model", "entropy"})


class LossRaised(RldbgError):
    """The user's loss function raised, or did not return a loss."""

    kind = "loss"


class UserLoss:
    """The function, and which quantities it asks for."""

    def __init__(self, name: str, *, debugger: bool = False) -> None:
        self.name = name
        self._function: Callable[..., Any] = load_user_object(name, what="loss")
        if not callable(self._function):
            raise UsageError(f"{name} is a {type(self._function).__name__}, not a function", _hint())
        self._debugger = debugger
        self._parameters = self._bind()

    @property
    def needs(self) -> frozenset[str]:
        """The quantities it takes, by our names."""
        return frozenset(self._parameters.values())

    @property
    def needs_model(self) -> bool:
        return bool(self.needs & _OF_MODEL)

    @property
    def takes_log_probs(self) -> bool:
        """Whether its gradient with respect to the log probs says all: nothing else reaches the model."""
        return not self.needs & {"logits", "model"}

    def __call__(self, quantities: Mapping[str, Any]) -> torch.Tensor:
        given = {parameter: quantities[name] for parameter, name in self._parameters.items()}
        try:
            returned = self._call(given)
        except Exception as error:  # the user's function may raise anything
            raise LossRaised(
                f"{self.name} raised {type(error).__name__}\n{user_traceback(error)}",
                "fix it; --pdb stops at its beginning, and breakpoint() works inside",
            ) from error
        return _one_number(returned, self.name)

    def _call(self, given: Mapping[str, Any]) -> Any:
        if not self._debugger:
            return self._function(**given)
        self._debugger = False
        return call_under_pdb(self._function, **given)

    def _bind(self) -> dict[str, str]:
        """Which of our quantities each parameter takes; positional-only parameters cannot be told apart."""
        bound = {}
        for parameter in inspect.signature(self._function).parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            name = _CANONICAL.get(parameter.name)
            if name is not None and parameter.kind is not parameter.POSITIONAL_ONLY:
                bound[parameter.name] = name
            elif parameter.default is parameter.empty:
                raise UsageError(f"{self.name} asks for {parameter.name!r}, which a saved batch does not have", _hint())
        if not bound:
            raise UsageError(f"{self.name} asks for nothing of the batch", _hint())
        return bound


def _hint() -> str:
    return f"a loss is a function of any of: {', '.join(NAMES)} (docs/rerun.md has their other names)"


def _one_number(returned: Any, name: str) -> torch.Tensor:
    import torch

    value = returned
    if isinstance(returned, tuple) and returned:
        value = returned[0]
    elif isinstance(returned, Mapping):
        value = returned.get("loss")
    if not isinstance(value, torch.Tensor):
        raise LossRaised(f"{name} returned {returned!r:.200}", "return the loss as a tensor of one number")
    if value.numel() != 1:
        raise LossRaised(
            f"{name} returned a tensor of shape {list(value.shape)}",
            "reduce it to one number, by a masked mean for example",
        )
    return value.reshape(())


def quantities(
    inputs: LossInputs, rows: slice, log_probs: torch.Tensor, entropy: torch.Tensor | None, more: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything a loss may ask for, of those rows; `batch` holds the same tensors under one roof."""
    batch = inputs.batch
    own: dict[str, Any] = {
        "log_probs": log_probs,
        "old_log_probs": inputs.old_log_probs[rows],
        "advantages": inputs.advantages[rows],
        "mask": inputs.mask[rows],
        "rewards": batch.rewards[rows],
        "group_ids": inputs.groups[rows],
        "versions": inputs.versions[rows],
        "input_ids": batch.input_ids[rows],
        "attention_mask": batch.attention_mask[rows],
        "position_ids": batch.position_ids[rows],
    }
    if entropy is not None:
        own["entropy"] = entropy
    own |= more
    aliases = {"logprobs": own["log_probs"], "old_logprobs": own["old_log_probs"], "loss_mask": own["mask"]}
    return own | {"batch": own | aliases}
