"""Every kind of record, declared once: its fields, their shapes, and how often it is written.

Letters: B samples of the record, T tokens of a sequence (ragged rows), R response tokens (padded columns).
A user's own kind needs no declaration: it is recorded with the fields it is given.
"""

from dataclasses import dataclass
from enum import StrEnum


class Scope(StrEnum):
    """How many records of a kind one step makes: one in total, one per rank, or one per rank and micro-batch."""

    STEP = "step"
    RANK = "rank"
    MICRO = "micro"


class Mode(StrEnum):
    """Which of the three modes of the NexRL document writes the kind."""

    SELF_HOSTED = "self_hosted"
    REMOTE_API = "remote_api"
    TRAINER_SERVICE = "trainer_service"


class Shape(StrEnum):
    """What a field holds."""

    TOKENS = "B×T"  # ragged rows, one value per token of the whole sequence
    RESPONSE = "B×R"  # one value per response token: padded [B, R], or ragged rows
    SAMPLES = "B"  # one value per sample
    TENSOR = "tensor"  # any shape
    NUMBER = "number"
    TEXT = "text"
    DATA = "data"  # JSON-like


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    shape: Shape
    optional: bool = False
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    scope: Scope
    modes: frozenset[Mode]
    fields: tuple[Field, ...]
    meaning: str
    has_samples: bool = True

    def field(self, name: str) -> Field | None:
        return next((item for item in self.fields if item.name == name), None)


_SELF, _REMOTE, _SERVICE = Mode.SELF_HOSTED, Mode.REMOTE_API, Mode.TRAINER_SERVICE

_TRAJECTORY_FIELDS = (
    Field("tokens", Shape.TOKENS, meaning="prompt and response token ids"),
    Field("loss_mask", Shape.TOKENS, meaning="1 where a token is trained on"),
    Field("attention_mask", Shape.TOKENS, optional=True, meaning="0 on padding, where rows are padded"),
    Field("reward", Shape.SAMPLES),
    Field("is_val", Shape.SAMPLES, optional=True),
    Field("logprobs", Shape.TOKENS, optional=True, meaning="rollout log probs, 0 on the prompt"),
    Field(
        "policy_versions",
        Shape.TOKENS,
        optional=True,
        meaning="weights that made each token, -1 on the prompt",
    ),
    Field(
        "extra_fields",
        Shape.DATA,
        optional=True,
        meaning="one mapping per sample: task_id, score, temperature ...",
    ),
)
_PARAMETER_FIELDS = (
    Field("shape", Shape.DATA),
    Field("dtype", Shape.TEXT),
    Field("norm", Shape.NUMBER),
    Field("mean", Shape.NUMBER),
    Field("std", Shape.NUMBER),
    Field("hash", Shape.TEXT, optional=True, meaning="of the bytes, in hash-only mode"),
    Field("placements", Shape.DATA, optional=True, meaning="of a shard: how each axis of the device mesh cuts it"),
    Field("global_shape", Shape.DATA, optional=True, meaning="of a shard: shape of the whole"),
    Field("mesh_shape", Shape.DATA, optional=True, meaning="of a shard: shape of the device mesh"),
    Field("mesh_coordinate", Shape.DATA, optional=True, meaning="of a shard: the rank's place in the mesh"),
)

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            "trajectory",
            Scope.STEP,
            frozenset({_SELF}),
            _TRAJECTORY_FIELDS,
            "what the rollout gave the trainer",
        ),
        Kind(
            "prepared_trajectories",
            Scope.STEP,
            frozenset({_REMOTE}),
            (*_TRAJECTORY_FIELDS, Field("advantages", Shape.TOKENS, optional=True)),
            "trajectories with their advantages, before conversion to datums",
        ),
        Kind(
            "old_log_probs",
            Scope.STEP,
            frozenset({_SELF}),
            (
                Field("old_log_probs", Shape.RESPONSE),
                Field("batch_info", Shape.DATA, optional=True),
            ),
            "log probs of the policy before the update",
        ),
        Kind(
            "forward_data",
            Scope.MICRO,
            frozenset({_SELF, _SERVICE}),
            (
                Field("log_probs", Shape.RESPONSE),
                Field("entropy", Shape.RESPONSE, optional=True),
                Field("response_mask", Shape.RESPONSE),
                Field("input_ids", Shape.TENSOR, optional=True, meaning="[B, P + R]"),
                Field("ref_log_probs", Shape.RESPONSE, optional=True, meaning="of the reference model, with a KL term"),
                Field("extra_info", Shape.DATA, optional=True),
            ),
            "log probs and entropy of one forward pass",
        ),
        Kind(
            "loss",
            Scope.MICRO,
            frozenset({_SELF, _SERVICE}),
            (
                Field("loss", Shape.NUMBER),
                Field("pg_loss", Shape.NUMBER, optional=True),
                Field("entropy_loss", Shape.NUMBER, optional=True),
                Field("kl_loss", Shape.NUMBER, optional=True),
                Field("metrics", Shape.DATA, optional=True),
                Field("extra_info", Shape.DATA, optional=True),
            ),
            "the loss of one micro-batch and its parts",
        ),
        Kind(
            "is_loss_debug",
            Scope.MICRO,
            frozenset({_SERVICE}),
            (
                Field("log_probs", Shape.RESPONSE),
                Field("old_log_probs", Shape.RESPONSE),
                Field("advantages", Shape.RESPONSE),
                Field("prob_ratio", Shape.RESPONSE, optional=True),
                Field("elementwise_loss", Shape.RESPONSE, optional=True),
                Field("effective_valid", Shape.RESPONSE),
                Field("loss", Shape.NUMBER),
            ),
            "the importance-sampling loss, element by element",
        ),
        Kind(
            "batch_inputs",
            Scope.MICRO,
            frozenset({_SERVICE}),
            (
                Field("input_ids", Shape.TENSOR),
                Field("attention_mask", Shape.TENSOR, optional=True),
                Field("position_ids", Shape.TENSOR, optional=True),
                Field("loss_mask", Shape.TENSOR, optional=True),
            ),
            "what went into the model",
        ),
        Kind(
            "param",
            Scope.RANK,
            frozenset({_SELF, _SERVICE}),
            (
                Field("param_name", Shape.TEXT),
                Field("param", Shape.TENSOR, optional=True),
                *_PARAMETER_FIELDS,
            ),
            "a parameter after the optimizer step",
            has_samples=False,
        ),
        Kind(
            "gradient",
            Scope.RANK,
            frozenset({_SELF, _SERVICE}),
            (
                Field("param_name", Shape.TEXT),
                Field("gradient", Shape.TENSOR, optional=True),
                *_PARAMETER_FIELDS,
            ),
            "a parameter's gradient before the optimizer step",
            has_samples=False,
        ),
        Kind(
            "datums",
            Scope.STEP,
            frozenset({_REMOTE}),
            (
                Field("input_tokens", Shape.TOKENS, meaning="tokens[:-1]"),
                Field("target_tokens", Shape.TOKENS, meaning="tokens[1:]"),
                Field("logprobs", Shape.TOKENS),
                Field("advantages", Shape.TOKENS),
                Field("loss_mask", Shape.TOKENS, optional=True),
                Field("extra_info", Shape.DATA, optional=True),
            ),
            "what was sent to the training service",
        ),
        Kind(
            "training_metrics",
            Scope.STEP,
            frozenset({_REMOTE}),
            (Field("metrics", Shape.DATA), Field("extra_info", Shape.DATA, optional=True)),
            "what the training service answered",
            has_samples=False,
        ),
    )
}


def kinds_of(mode: Mode) -> tuple[str, ...]:
    return tuple(kind.name for kind in KINDS.values() if mode in kind.modes)
