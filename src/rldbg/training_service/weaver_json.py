"""The JSON of the Weaver protocol: what its bodies mean and what its answers look like. No state, no HTTP."""

import dataclasses
import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rldbg.training_service.datums import Datum, make_datum, tensor_from_json, tokens_from_json
from rldbg.training_service.errors import ServiceRequestError, read_settings
from rldbg.training_service.lora import LoraSettings
from rldbg.training_service.operations import Operation
from rldbg.training_service.passes import PassResult
from rldbg.training_service.sampling import Samples
from rldbg.training_service.service import ModelEntry
from rldbg.training_service.snapshots import ModelSnapshot

_LONGEST_LIFE_S = 100 * 365.25 * 86_400
_DEFAULT_RANK = 32
_TIERS = ("normal", "fast", "flash")


def payload_of(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The request proper, which the client wraps in `payload`."""
    payload = body.get("payload", body)
    if not isinstance(payload, Mapping):
        raise ServiceRequestError("payload is not a mapping")
    return payload


def datums_of(data: Any, entry: ModelEntry) -> tuple[Datum, ...]:
    if not isinstance(data, Sequence) or isinstance(data, str):
        raise ServiceRequestError("data is not a list of datums")
    return tuple(_datum(f"datum {number}", item, entry) for number, item in enumerate(data))


def _datum(where: str, item: Any, entry: ModelEntry) -> Datum:
    if not isinstance(item, Mapping):
        raise ServiceRequestError(f"{where} is not a mapping")
    if item.get("kind") == "sample_ref":
        raise ServiceRequestError(f"{where} refers to a managed dataset, which is not supported here")
    inputs, metadata = item.get("loss_fn_inputs"), item.get("metadata") or {}
    if not isinstance(inputs, Mapping) or not isinstance(metadata, Mapping):
        raise ServiceRequestError(f"{where}: loss_fn_inputs and metadata are mappings")
    return make_datum(
        where,
        tokens_from_json(f"{where}: model_input", item.get("model_input")),
        {str(name): tensor_from_json(f"{where}: {name}", value) for name, value in inputs.items()},
        metadata=metadata,
        datum_id=item.get("datum_id"),
        vocabulary_size=entry.base.vocabulary_size,
        max_length=entry.base.max_length,
    )


def lora_of(body: Mapping[str, Any]) -> LoraSettings | None:
    """The adapters that a request for a model asks for; None where the whole model is trained.

    Without a training mode a `lora_config` decides: the client sends one with every model but those of `full_ft`.
    """
    mode, given = body.get("training_mode"), body.get("lora_config")
    if mode not in (None, "lora", "full_ft"):
        raise ServiceRequestError(f"training_mode is {str(mode)[:40]!r}; it must be lora or full_ft")
    if mode == "full_ft" and given is not None:
        raise ServiceRequestError("lora_config is not used with training_mode full_ft")
    # Tiers choose the hardware of the hosted service and nothing else.
    if body.get("performance_tier") not in (None, *_TIERS):
        raise ServiceRequestError(f"performance_tier is not one of {', '.join(_TIERS)}")
    if body.get("training_max_sequence_length") is not None:
        raise ServiceRequestError("training_max_sequence_length is for managed datasets, which are not supported here")
    if mode == "full_ft" or (mode is None and given is None):
        return None
    return read_settings(LoraSettings, {"rank": _DEFAULT_RANK} if given is None else given, "lora_config")


def name_of(body: Mapping[str, Any], key: str) -> str | None:
    name = body.get(key)
    if name is not None and not isinstance(name, str):
        raise ServiceRequestError(f"{key} is not a name")
    return name or None


def lifetime_of(body: Mapping[str, Any]) -> float | None:
    seconds = body.get("ttl_seconds")
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= _LONGEST_LIFE_S:
        raise ServiceRequestError(f"ttl_seconds is {seconds!r}, not a number of seconds up to a hundred years")
    return float(seconds)


def operation_json(operation: Operation) -> dict[str, Any]:
    if not operation.done:
        return {"id": operation.id, "status": "pending"}
    if operation.error is None:
        answer = operation.answer
        if isinstance(answer, bytes):
            raise ServiceRequestError(
                f"operation {operation.id} was requested in Tinker's protocol: POST /api/v1/retrieve_future"
            )
        return {"id": operation.id, "status": "done", "response": answer}
    return {
        "id": operation.id,
        "status": "error",
        "error_code": operation.error.code,
        "error_message": operation.error.message,
        "retryable": False,
    }


def model_json(entry: ModelEntry) -> dict[str, Any]:
    trained = entry.trained
    return {
        "id": entry.model_id,
        "base_model": entry.base_model,
        "training_mode": "full_ft" if entry.lora is None else "lora",
        "lora_config": None if entry.lora is None else dataclasses.asdict(entry.lora),
        "user_metadata": entry.metadata,
        "tokenizer_path": entry.base.tokenizer_path,
        "vocab_size": entry.base.vocabulary_size,
        "max_sequence_length": entry.base.max_length,
        "parameters": 0 if trained is None else sum(tensor.numel() for tensor in trained.weights.values()),
        "step": 0 if trained is None else trained.step,
        "next_seq_id": entry.order.next,
    }


def snapshot_json(snapshot: ModelSnapshot) -> dict[str, Any]:
    path = snapshot.path("weaver")
    return {
        "id": snapshot.id,
        "path": path,
        "model_path": path,
        "sampling_session_id": None,
        "name": snapshot.name,
        "checkpoint_type": snapshot.kind,
        "status": "completed",
        "step": snapshot.step,
        "created_at": _time(snapshot.created_at),
        "expires_at": None if snapshot.expires_at is None else _time(snapshot.expires_at),
    }


def pass_json(result: PassResult, datums: Sequence[Datum]) -> dict[str, Any]:
    outputs = []
    for datum, row in zip(datums, result.logprobs, strict=True):
        output: dict[str, Any] = {"logprobs": {"data": row.tolist(), "dtype": "float32", "shape": list(row.shape)}}
        if datum.datum_id is not None:
            output["datum_id"] = datum.datum_id
        outputs.append(output)
    return {"metrics": dict(result.metrics), "loss_fn_outputs": outputs}


def samples_json(samples: Samples, decode: Callable[[list[int]], str]) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "sequences": [
            {
                "tokens": sequence.tokens,
                "logprobs": sequence.logprobs,
                "text": decode(sequence.tokens),
                "stop_reason": sequence.stop_reason,
            }
            for sequence in samples.sequences
        ]
    }
    if samples.prompt_logprobs is not None:
        answer["prompt_logprobs"] = nullable(samples.prompt_logprobs)
    if samples.prompt_top is not None:
        top = samples.prompt_top
        answer["topk_prompt_logprobs"] = [
            None if math.isnan(row[0]) else [[int(token), float(value)] for token, value in zip(ids, row, strict=True)]
            for ids, row in zip(top.token_ids, top.logprobs, strict=True)
        ]
    return answer


def nullable(values: np.ndarray) -> list[float | None]:
    """Numbers as JSON, null where there is none."""
    return [None if math.isnan(value) else value for value in values.tolist()]


def _time(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat()
