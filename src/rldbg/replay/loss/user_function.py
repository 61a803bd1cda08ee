"""A user's loss function: its parameters are filled by name, and what it returns becomes one number.

It may ask for the tensors of the response (`log_probs`, `advantages`, `mask` ...), for the whole `batch`, or for the
`model` or its `logits`; under the names that the frameworks use for them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from rldbg.core import RldbgError, UsageError, call_under_pdb, load_user_object, user_code, user_traceback
from rldbg.frameworks import LossForm, frameworks
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
    """The function, and which quantities it asks for. A class is made first, with what it has by default.

    `arguments` are values of parameters by name, `config.x` for an attribute of a configuration.
    """

    def __init__(self, name: str, *, debugger: bool = False, arguments: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self._given = dict(arguments or {})
        self._function: Callable[..., Any] = load_user_object(name, what="loss")
        if inspect.isclass(self._function):
            self._function = self._made(self._function)
        if not callable(self._function):
            raise UsageError(f"{name} is a {type(self._function).__name__}, not a function", _hint())
        self._debugger = debugger
        signature = inspect.signature(getattr(self._function, "forward", self._function))
        self._form = _form_of(frozenset(signature.parameters))
        self._parameters: dict[str, str] = {}
        self._bind(signature.parameters.values())

    @property
    def needs(self) -> frozenset[str]:
        """The quantities it takes, by our names; an entropy that a framework only reports is not needed."""
        own = frozenset(self._parameters.values())
        return own if self._form is None else (own | self._form.needs) - {"entropy"}

    @property
    def needs_model(self) -> bool:
        return bool(self.needs & _OF_MODEL)

    @property
    def takes_log_probs(self) -> bool:
        """Whether its gradient with respect to the log probs says all: nothing else reaches the model."""
        return not self.needs & {"logits", "model"}

    def __call__(self, quantities: Mapping[str, Any]) -> torch.Tensor:
        try:
            returned = self._call(self._arguments(quantities))
            if self._form is not None:
                returned = self._form.result(returned, quantities)
        except Exception as error:  # the user's function may raise anything
            raise LossRaised(
                f"{self.name} raised {type(error).__name__}\n{user_traceback(error)}",
                "fix it; --pdb stops at its beginning, and breakpoint() works inside",
            ) from error
        return _one_number(returned, self.name)

    def _arguments(self, quantities: Mapping[str, Any]) -> dict[str, Any]:
        given = {name: value for name, value in self._given.items() if name in self._own}
        if self._form is None:
            return given | {parameter: quantities[name] for parameter, name in self._parameters.items()}
        known = {"entropy": quantities["log_probs"].detach() * float("nan"), **quantities}
        settings = {name: value for name, value in self._form.settings.items() if name in self._own}
        built = {
            parameter: build(known, self._form.settings_of(parameter, self._given))
            for parameter, build in self._form.arguments.items()
            if parameter in self._own
        }
        return settings | given | {parameter: known[name] for parameter, name in self._parameters.items()} | built

    def _call(self, given: Mapping[str, Any]) -> Any:
        if not self._debugger:
            return self._function(**given)
        self._debugger = False
        return call_under_pdb(self._function, **given)

    def _made(self, kind: Callable[..., Any]) -> Any:
        wanted = inspect.signature(kind).parameters
        taken = {name: self._given.pop(name) for name in wanted if name in self._given}
        with user_code(f"making {self.name}"):
            return kind(**taken)

    def _bind(self, parameters: Collection[inspect.Parameter]) -> None:
        """Which of our quantities each parameter takes; positional-only parameters cannot be told apart."""
        self._own = {item.name for item in parameters if item.kind not in (item.VAR_POSITIONAL, item.VAR_KEYWORD)}
        form = self._form
        for parameter in parameters:
            name = parameter.name
            if name not in self._own or name in self._given:
                continue
            if form is not None and (name in form.arguments or name in form.settings):
                continue
            quantity = _CANONICAL.get(name)
            if quantity is not None and parameter.kind is not parameter.POSITIONAL_ONLY:
                self._parameters[name] = quantity
            elif parameter.default is parameter.empty:
                raise UsageError(
                    f"{self.name} asks for {name!r}, which a saved batch does not have",
                    f"give it with --set {name}=VALUE; {_hint()}",
                )
        if form is not None and "logits" in form.arguments and "logits" in self._own:
            self._parameters["logits"] = "logits"
        if "self" in self._own:
            self._given["self.class"] = load_user_object(self.name.rpartition(".")[0], what="class of a loss")
        for name in self._given:
            start = name.partition(".")[0]
            if start not in self._own or (start != name and (form is None or start not in form.arguments)):
                raise UsageError(f"{self.name} has no parameter {start!r}", f"it has {', '.join(sorted(self._own))}")
        if not self._parameters and form is None:
            raise UsageError(f"{self.name} takes nothing from the batch", _hint())


def _form_of(names: frozenset[str]) -> LossForm | None:
    """The framework whose losses have these parameters."""
    parts = (framework.part("loss") for framework in frameworks())
    return next((form for form in parts if form is not None and form.fits(names)), None)


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
        "response_lengths": batch.response_lengths[rows],
    }
    if entropy is not None:
        own["entropy"] = entropy
    own |= more
    aliases = {"logprobs": own["log_probs"], "old_logprobs": own["old_log_probs"], "loss_mask": own["mask"]}
    return own | {"batch": own | aliases}
