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


def _fields(shape: Shape, *names: str, optional: bool = False, **meanings: str) -> tuple[Field, ...]:
    """Fields of one shape: those whose name says all, and those with a meaning."""
    about = dict.fromkeys(names, "") | meanings
    return tuple(Field(name, shape, optional, meaning) for name, meaning in about.items())


_TRAJECTORY_FIELDS = (
    *_fields(Shape.TOKENS, tokens="prompt and response token ids", loss_mask="1 where a token is trained on"),
    *_fields(Shape.TOKENS, optional=True, attention_mask="0 on padding, where rows are padded"),
    *_fields(Shape.SAMPLES, "reward"),
    *_fields(Shape.SAMPLES, "is_val", optional=True),
    *_fields(Shape.TOKENS, optional=True, logprobs="rollout log probs, 0 on the prompt"),
    *_fields(Shape.TOKENS, optional=True, policy_versions="weights that made each token, -1 on the prompt"),
    *_fields(Shape.DATA, optional=True, extra_fields="one mapping per sample: task_id, score, temperature ..."),
)
_PARAMETER_FIELDS = (
    *_fields(Shape.DATA, "shape"),
    *_fields(Shape.TEXT, "dtype"),
    *_fields(Shape.NUMBER, "norm", "mean", "std"),
    *_fields(Shape.TEXT, optional=True, hash="of the bytes, in hash-only mode"),
    *_fields(
        Shape.DATA,
        optional=True,
        placements="of a shard: how each axis of the device mesh cuts it",
        global_shape="of a shard: shape of the whole",
        mesh_shape="of a shard: shape of the device mesh",
        mesh_coordinate="of a shard: the rank's place in the mesh",
    ),
)
_EXTRA_INFO = _fields(Shape.DATA, "extra_info", optional=True)
_ALL_KINDS = (
    Kind("trajectory", Scope.STEP, frozenset({_SELF}), _TRAJECTORY_FIELDS, "what the rollout gave the trainer"),
    Kind(
        "rollout_samples",
        Scope.STEP,
        frozenset(),
        _TRAJECTORY_FIELDS,
        "every sample that a rollout made, also those that a filter dropped; recorded only if --record names it",
    ),
    Kind(
        "prepared_trajectories",
        Scope.STEP,
        frozenset({_REMOTE}),
        (
            *_TRAJECTORY_FIELDS,
            *_fields(Shape.TOKENS, "advantages", optional=True),
            *_fields(
                Shape.TOKENS,
                optional=True,
                values="of the critic before its update, 0 on the prompt",
                returns="what the critic is trained on",
            ),
        ),
        "trajectories with their advantages, before conversion to datums",
    ),
    Kind(
        "old_log_probs",
        Scope.STEP,
        frozenset({_SELF}),
        (*_fields(Shape.RESPONSE, "old_log_probs"), *_fields(Shape.DATA, "batch_info", optional=True)),
        "log probs of the policy before the update",
    ),
    Kind(
        "forward_data",
        Scope.MICRO,
        frozenset({_SELF, _SERVICE}),
        (
            *_fields(Shape.RESPONSE, "log_probs"),
            *_fields(Shape.RESPONSE, "entropy", optional=True),
            *_fields(Shape.RESPONSE, "response_mask"),
            *_fields(Shape.TENSOR, optional=True, input_ids="[B, P + R]"),
            *_fields(Shape.RESPONSE, optional=True, ref_log_probs="of the reference model, with a KL term"),
            *_EXTRA_INFO,
        ),
        "log probs and entropy of one forward pass",
    ),
    Kind(
        "loss",
        Scope.MICRO,
        frozenset({_SELF, _SERVICE}),
        (
            *_fields(Shape.NUMBER, "loss"),
            *_fields(Shape.NUMBER, "pg_loss", "entropy_loss", "kl_loss", optional=True),
            *_fields(Shape.DATA, "metrics", optional=True),
            *_EXTRA_INFO,
        ),
        "the loss of one micro-batch and its parts",
    ),
    Kind(
        "is_loss_debug",
        Scope.MICRO,
        frozenset({_SERVICE}),
        (
            *_fields(Shape.RESPONSE, "log_probs", "advantages"),
            *_fields(Shape.RESPONSE, "old_log_probs", "prob_ratio", "elementwise_loss", optional=True),
            *_fields(Shape.RESPONSE, "effective_valid"),
            *_fields(Shape.NUMBER, "loss"),
        ),
        "the importance-sampling loss, element by element",
    ),
    Kind(
        "value_loss",
        Scope.MICRO,
        frozenset(),
        (
            *_fields(Shape.RESPONSE, values="of this pass", returns="what the values should be"),
            *_fields(Shape.RESPONSE, optional=True, old_values="before the update: the loss may clip around them"),
            *_fields(Shape.RESPONSE, "response_mask"),
            *_fields(Shape.NUMBER, "loss"),
            *_fields(Shape.DATA, "metrics", optional=True),
            *_EXTRA_INFO,
        ),
        "a critic's loss of one micro-batch",
    ),
    Kind(
        "batch_inputs",
        Scope.MICRO,
        frozenset({_SERVICE}),
        (
            *_fields(Shape.TENSOR, "input_ids"),
            *_fields(Shape.TENSOR, "attention_mask", "position_ids", "loss_mask", optional=True),
        ),
        "what went into the model",
    ),
    *(
        Kind(
            name,
            Scope.RANK,
            modes,
            (*_fields(Shape.TEXT, "param_name"), *_fields(Shape.TENSOR, name, optional=True), *_PARAMETER_FIELDS),
            meaning,
            has_samples=False,
        )
        for name, modes, meaning in (
            ("param", frozenset({_SELF, _SERVICE}), "a parameter after the optimizer step"),
            ("gradient", frozenset({_SELF, _SERVICE}), "a parameter's gradient before the optimizer step"),
            (
                "optimizer_state",
                frozenset[Mode](),
                "a tensor of the optimizer's state after a step (PARAMETER:TENSOR); recorded only if --record names it",
            ),
        )
    ),
    Kind(
        "update_metrics",
        Scope.RANK,
        frozenset(),
        _fields(Shape.DATA, "metrics"),
        "what a rank reports about an optimizer step: gradient norm, learning rate",
        has_samples=False,
    ),
    Kind(
        "weights",
        Scope.MICRO,
        frozenset({_SELF}),
        (
            *_fields(
                Shape.TEXT, side="`sent` by the trainer (micro 0), or `held` by replica n of the engine (micro n + 1)"
            ),
            *_fields(Shape.NUMBER, "replica"),
            *_fields(
                Shape.DATA,
                names="one entry per tensor, or per piece of one",
                dtypes="of the tensors",
                shapes="of the whole tensors",
                piece_shapes="of the pieces",
                piece_offsets="where the pieces begin in the whole tensors",
                grid_shapes="how many blocks of rows and columns each fingerprint has",
            ),
            *_fields(
                Shape.TENSOR,
                fingerprints="[tensors, 8, 8] sums of element hashes by block; they add up over pieces",
                row_sums="sums that ignore the order within rows",
                column_sums="sums that ignore the order within columns",
                norms="of the values",
                value_sums="of the values",
            ),
            *_fields(Shape.TENSOR, optional=True, block_values="[tensors, 8, 8, 2] norm and sum by block"),
            *_fields(
                Shape.DATA,
                optional=True,
                base_fingerprints="by name: without the LoRA delta",
                base_values="by name: norm and sum without the LoRA delta, and the delta's norm",
                base_grids="by name: fingerprints by block without the LoRA delta",
                value_names="of the tensors whose values are recorded",
                values="flat, one row per name; only where asked for",
            ),
            *_fields(
                Shape.TEXT, optional=True, engine="name of an engine that does not know versions, shared by its workers"
            ),
            *_fields(Shape.NUMBER, optional=True, at="seconds since 1970: says which version such an engine holds"),
        ),
        "fingerprints of the weights that the trainer sends and that the engine holds; the step is their version",
        has_samples=False,
    ),
    Kind(
        "weight_values",
        Scope.MICRO,
        frozenset[Mode](),
        (
            *_fields(Shape.NUMBER, snapshot="micro of the record of `weights` that it belongs to"),
            *_fields(Shape.TEXT, weight_name="of the tensor"),
            *_fields(Shape.DATA, whole_shape="of the whole tensor", offset="where the piece begins in it"),
            *_fields(Shape.TENSOR, values="of the piece"),
        ),
        "a tensor that the trainer sends or the engine holds, whole; recorded only if --record names it and `weights`",
        has_samples=False,
    ),
    *(
        Kind(
            name,
            scope,
            frozenset({_SELF}),
            _fields(
                Shape.TENSOR,
                experts="[B, T, layers, k] the experts of each token, the likeliest first; -1 where there is no token",
                expert_weights="[B, T, layers, k]",
            ),
            meaning,
        )
        for name, scope, meaning in (
            ("rollout_routing", Scope.STEP, "the experts that the engine chose; the last token of an answer has none"),
            ("routing", Scope.MICRO, "the experts that the trainer's forward pass chose"),
        )
    ),
    Kind(
        "datums",
        Scope.STEP,
        frozenset({_REMOTE}),
        (
            *_fields(Shape.TOKENS, input_tokens="tokens[:-1]", target_tokens="tokens[1:]"),
            *_fields(Shape.TOKENS, "logprobs", "advantages"),
            *_fields(Shape.TOKENS, "loss_mask", optional=True),
            *_EXTRA_INFO,
        ),
        "what was sent to the training service",
    ),
    Kind(
        "training_metrics",
        Scope.STEP,
        frozenset({_REMOTE}),
        (*_fields(Shape.DATA, "metrics"), *_EXTRA_INFO),
        "what the training service answered",
        has_samples=False,
    ),
)
KINDS = {kind.name: kind for kind in _ALL_KINDS}


def kinds_of(mode: Mode) -> tuple[str, ...]:
    return tuple(kind.name for kind in KINDS.values() if mode in kind.modes)
