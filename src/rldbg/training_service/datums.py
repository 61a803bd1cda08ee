"""A datum: one sequence with all that its loss needs, as arrays, checked, whichever protocol brought it.

Position i of `tokens` predicts `inputs["target_tokens"][i]`; every input has one value per position.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rldbg.training_service.errors import ServiceRequestError

_DTYPES = {"int64": np.int64, "int32": np.int64, "float32": np.float32, "float64": np.float32}
_TOKEN_LIMIT = 1 << 31


@dataclass(frozen=True, slots=True)
class Datum:
    """One training sequence. `metadata` is what the client says about it, kept for the record."""

    tokens: np.ndarray
    inputs: Mapping[str, np.ndarray]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    datum_id: str | None = None

    @property
    def targets(self) -> np.ndarray:
        return self.inputs["target_tokens"]

    @property
    def has_mask(self) -> bool:
        return not self.inputs.keys().isdisjoint(("loss_mask", "mask"))

    @property
    def mask(self) -> np.ndarray:
        """1 where a position counts: the client's mask, else every position."""
        given = self.inputs.get("loss_mask", self.inputs.get("mask"))
        return np.ones(len(self.tokens), dtype=np.float32) if given is None else given

    @property
    def trained(self) -> np.ndarray:
        """Where a position is trained on: the client's mask, else where its advantage or weight is not 0."""
        trained: np.ndarray = self.mask != 0
        if not self.has_mask:
            for name in ("advantages", "weights"):
                if name in self.inputs:
                    trained = trained & (self.inputs[name] != 0)
        return trained

    @property
    def prompt_length(self) -> int:
        """How many tokens come before the first trained one; 1 if it is not known.

        A datum whose advantages are all 0 has its answer where log probs were sampled: clients send 0 for the prompt's.
        """
        answer = self.trained
        if not answer.any() and "logprobs" in self.inputs:
            answer = self.inputs["logprobs"] != 0
        return int(np.argmax(answer)) + 1

    @property
    def leading(self) -> int:
        """How many tokens come before the first that can count in a loss: without a mask all but the first can."""
        return self.prompt_length if self.has_mask else 1

    @property
    def sequence(self) -> np.ndarray:
        """All tokens: the inputs and the last target."""
        return np.append(self.tokens, self.targets[-1])


def make_datum(
    where: str,
    tokens: np.ndarray,
    inputs: Mapping[str, np.ndarray],
    *,
    metadata: Mapping[str, Any] | None = None,
    datum_id: str | None = None,
    vocabulary_size: int,
    max_length: int,
) -> Datum:
    """A checked datum; an error names the datum (`where`) and the input."""
    if len(tokens) == 0:
        raise ServiceRequestError(f"{where}: model_input has no tokens")
    if len(tokens) >= max_length:
        raise ServiceRequestError(
            f"{where}: {len(tokens)} tokens and a target, where the model takes {max_length} in all"
        )
    check_tokens(f"{where}: model_input", tokens, vocabulary_size)
    if "target_tokens" not in inputs:
        raise ServiceRequestError(f"{where}: loss_fn_inputs has no target_tokens")
    for name, values in inputs.items():
        if values.shape != tokens.shape:
            raise ServiceRequestError(
                f"{where}: {name} has shape {list(values.shape)}, model_input has {len(tokens)} tokens; one value each"
            )
    if inputs["target_tokens"].dtype.kind != "i":
        raise ServiceRequestError(f"{where}: target_tokens are not integers")
    check_tokens(f"{where}: target_tokens", inputs["target_tokens"], vocabulary_size)
    datum = Datum(tokens, dict(inputs), dict(metadata or {}), datum_id)
    for name, values in inputs.items():
        wrong = np.flatnonzero(~np.isfinite(values) & (datum.mask != 0))
        if len(wrong):
            raise ServiceRequestError(f"{where}: {name}[{wrong[0]}] is {values[wrong[0]]}")
    return datum


def check_tokens(where: str, tokens: np.ndarray, vocabulary_size: int) -> None:
    wrong = np.flatnonzero((tokens < 0) | (tokens >= vocabulary_size))
    if len(wrong):
        raise ServiceRequestError(
            f"{where}[{wrong[0]}] is {tokens[wrong[0]]}, outside the vocabulary of {vocabulary_size}"
        )


def tokens_from_json(where: str, model_input: Any) -> np.ndarray:
    """The token ids of `{"chunks": [{"type": "encoded_text", "tokens": [...]}]}`."""
    chunks = model_input.get("chunks") if isinstance(model_input, Mapping) else None
    if not isinstance(chunks, Sequence) or isinstance(chunks, str):
        raise ServiceRequestError(f"{where}: expected a mapping with a list of chunks")
    parts = []
    for number, chunk in enumerate(chunks):
        kind = chunk.get("type", "encoded_text") if isinstance(chunk, Mapping) else "?"
        if kind != "encoded_text":
            raise ServiceRequestError(
                f"{where}: chunk {number} is of type {kind!r}; only encoded_text is supported here"
            )
        tokens = chunk.get("tokens")
        parts.append(tokens if isinstance(tokens, np.ndarray) else _integers(f"{where}: chunk {number}", tokens))
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def tensor_from_json(where: str, value: Any) -> np.ndarray:
    """A tensor as `{"data", "dtype", "shape"?}` or a plain list; an array that is one already is passed through."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = {"data": value, "dtype": "int64" if all(type(item) is int for item in value) else "float32"}
    if not isinstance(value, Mapping) or "data" not in value:
        raise ServiceRequestError(f'{where}: expected {{"data": [...], "dtype": ...}}')
    if value.get("sparse_crow_indices") is not None:
        raise ServiceRequestError(f"{where}: sparse tensors are not supported here")
    name = value.get("dtype", "float32")
    dtype = _DTYPES.get(name) if isinstance(name, str) else None
    if dtype is None:
        raise ServiceRequestError(f"{where}: dtype {name!r} is not one of {', '.join(_DTYPES)}")
    try:
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused as that
            array = np.asarray(value["data"], dtype=dtype)
        shape = value.get("shape")
        return array if shape is None else array.reshape(shape)
    except (TypeError, ValueError, OverflowError) as error:
        raise ServiceRequestError(f"{where}: not a tensor of {name}: {error}") from error


def _integers(where: str, tokens: Any) -> np.ndarray:
    if not isinstance(tokens, Sequence) or isinstance(tokens, str):
        raise ServiceRequestError(f"{where}: tokens is not a list")
    if any(type(token) is not int or not 0 <= token < _TOKEN_LIMIT for token in tokens):
        raise ServiceRequestError(f"{where}: tokens must be non-negative integers")
    return np.asarray(tokens, dtype=np.int64)
