"""What the service records of a model's training, by the rldbg recorder and the WEAVER_DEBUG_DUMP_* settings.

A step is what lies between two optimizer steps. Each forward-backward request of it is a mini-batch of `datums` and
`training_metrics`; its micro-batches are counted through all requests of the step. Log probs and the like are written
as a trainer writes them: response tokens only, [b, r], prompts cut off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rldbg.core import Environment, Identity, SampleId, prompt_hash
from rldbg.recording import Ragged, Recorder, RecorderSettings, debug_block_from_environment, recorder_settings
from rldbg.training_service.datums import Datum

if TYPE_CHECKING:
    from rldbg.training_service.batches import PaddedBatch
    from rldbg.training_service.losses import LossSettings
    from rldbg.training_service.passes import PassTerms

_DATUM_COLUMNS = ("target_tokens", "logprobs", "advantages", "loss_mask", "mask", "weights", "ref_logprobs")
_INTEGERS = frozenset({"target_tokens"})


class StepRecorder:
    """The recording of one model. Only the computing thread calls it."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._begin_step()

    def _begin_step(self) -> None:
        self._pass = -1
        self._micro = 0
        self._rows = 0
        self._samples: tuple[SampleId, ...] = ()
        self._hashes: tuple[str, ...] = ()
        self._seen: Counter[str] = Counter()

    def begin_pass(self, step: int, datums: Sequence[Datum], settings: LossSettings) -> None:
        """A forward-backward request came: its datums as they were sent."""
        self._pass += 1
        self._rows = 0
        self._hashes = tuple(_prompt_hash(datum) for datum in datums)
        self._samples = tuple(self._sample(datum, name) for datum, name in zip(datums, self._hashes, strict=True))
        if not self._recorder.wants("datums", step):
            return
        shared = set.intersection(*(set(datum.inputs) for datum in datums))
        columns: dict[str, Any] = {name: _column(datums, name) for name in _DATUM_COLUMNS if name in shared}
        if "mask" in columns:
            columns.setdefault("loss_mask", columns.pop("mask"))
        self._recorder.record(
            "datums",
            step=step,
            mini_batch=self._pass,
            samples=self._samples,
            prompt_hashes=self._hashes,
            policy_version=step,
            input_tokens=Ragged.from_rows([datum.tokens for datum in datums], np.int64),
            extra_info={"loss_fn": settings.name, "loss_fn_config": asdict(settings)},
            **columns,
        )

    def micro_batch(self, step: int, terms: PassTerms) -> None:
        """One forward and backward pass: what went in, what came out, and its loss token by token."""
        rows = slice(self._rows, self._rows + len(terms.batch.datums))
        self._rows = rows.stop
        place: dict[str, Any] = {
            "step": step,
            "micro": self._micro,
            "samples": self._samples[rows],
            "prompt_hashes": self._hashes[rows],
            "policy_version": step,
        }
        self._micro += 1
        wants = {
            kind
            for kind in ("forward_data", "loss", "is_loss_debug", "batch_inputs")
            if self._recorder.wants(kind, step)
        }
        if "batch_inputs" in wants:
            batch = terms.batch
            self._recorder.record(
                "batch_inputs",
                **place,
                input_ids=batch.input_ids,
                attention_mask=batch.attention_mask,
                position_ids=batch.position_ids,
                loss_mask=batch.mask,
            )
        if "loss" in wants:
            self._record_loss(place, terms)
        if wants & {"forward_data", "is_loss_debug"}:
            self._record_tokens(place, terms, wants)

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """What a forward-backward request was answered with."""
        self._recorder.record("training_metrics", step=step, mini_batch=self._pass, metrics=dict(metrics))

    def gradients(self, step: int, module: Any) -> None:
        self._recorder.record_gradients(step, module)

    def parameters(self, step: int, module: Any) -> None:
        """The parameters after the update; the step is over."""
        self._recorder.record_parameters(step, module)
        self._recorder.end_step(step)
        self._begin_step()

    def close(self) -> None:
        self._recorder.close()

    def _record_loss(self, place: Mapping[str, Any], terms: PassTerms) -> None:
        self._recorder.record(
            "loss",
            **place,
            loss=float(terms.loss.detach()),
            pg_loss=float(terms.policy_loss.detach()),
            entropy_loss=float(terms.entropy_loss.detach()),
            kl_loss=float(terms.kl_loss.detach()),
            extra_info={"loss_fn": terms.settings.name, "loss_fn_config": asdict(terms.settings)},
        )

    def _record_tokens(self, place: Mapping[str, Any], terms: PassTerms, wants: set[str]) -> None:
        cut = _ResponseCut(terms.batch)
        valid = cut(terms.batch.trained)
        if "forward_data" in wants:
            self._recorder.record(
                "forward_data",
                **place,
                log_probs=cut(terms.log_probs),
                entropy=cut(terms.entropy),
                response_mask=valid.long(),
                input_ids=cut.sequences(),
            )
        inputs = terms.batch.inputs
        if "is_loss_debug" in wants and {"logprobs", "advantages"} <= inputs.keys():
            self._recorder.record(
                "is_loss_debug",
                **place,
                log_probs=cut(terms.log_probs),
                old_log_probs=cut(inputs["logprobs"]),
                advantages=cut(inputs["advantages"]),
                prob_ratio=cut(terms.tokens.ratio),
                elementwise_loss=cut(terms.tokens.values),
                effective_valid=valid,
                loss=float(terms.loss.detach()),
            )

    def _sample(self, datum: Datum, hash_of_prompt: str) -> SampleId:
        """What the client calls the sample; else its prompt, and how many with that prompt the step has seen."""
        group_id, run_id = datum.metadata.get("group_id"), datum.metadata.get("run_id")
        if group_id is not None and isinstance(run_id, int):
            return SampleId(str(group_id), run_id)
        self._seen[hash_of_prompt] += 1
        return SampleId(hash_of_prompt, self._seen[hash_of_prompt] - 1)


class _ResponseCut:
    """Moves values so that column 0 is each datum's first trained token; 0 beyond its end.

    With a mask from the client they stand so already; without, the response begins where advantages or weights do.
    """

    def __init__(self, batch: PaddedBatch) -> None:
        device, columns = batch.mask.device, batch.mask.shape[1]
        self._datums = batch.datums
        self._prompts = [datum.prompt_length for datum in batch.datums]
        lengths = [len(datum.tokens) + 1 - prompt for datum, prompt in zip(batch.datums, self._prompts, strict=True)]
        self._width = max(lengths)
        starts = [prompt - held for prompt, held in zip(self._prompts, batch.prompts, strict=True)]
        places = torch.arange(self._width, device=device)[None]
        self._inside = places < torch.tensor(lengths, device=device)[:, None]
        self._places = (torch.tensor(starts, device=device)[:, None] + places).clamp(max=columns - 1)

    def __call__(self, values_br: torch.Tensor) -> torch.Tensor:
        return values_br.detach().gather(1, self._places) * self._inside

    def sequences(self) -> np.ndarray:
        """Whole sequences, prompts padded on the left and responses on the right, int64 [b, p + r]."""
        widest = max(self._prompts)
        padded = np.zeros((len(self._datums), widest + self._width), dtype=np.int64)
        for row, (datum, prompt) in enumerate(zip(self._datums, self._prompts, strict=True)):
            sequence = datum.sequence
            padded[row, widest - prompt : widest - prompt + len(sequence)] = sequence
        return padded


def recorders_from_environment(environment: Environment) -> Callable[[str, int], StepRecorder | None]:
    """Makes the recorder of each model: the first records where the settings say, later ones in folders next to it."""
    block = debug_block_from_environment(environment)
    settings = recorder_settings(block)
    if settings.kinds is not None and {"param", "gradient"} & settings.kinds and not settings.parameter_patterns:
        settings = replace(settings, parameter_patterns=(".",))

    def make(model_id: str, number: int) -> StepRecorder | None:
        if not settings.enabled:
            return None
        identity = Identity(role="trainer_service")
        return StepRecorder(Recorder.from_settings(_beside(settings, model_id, number), identity))

    return make


def _beside(settings: RecorderSettings, model_id: str, number: int) -> RecorderSettings:
    if number == 0:
        return settings
    name = f"{settings.directory.name}-{model_id.replace(':', '-')}"
    return replace(settings, directory=settings.directory.with_name(name))


def _column(datums: Sequence[Datum], name: str) -> Ragged:
    dtype = np.int64 if name in _INTEGERS else np.float32
    return Ragged.from_rows([datum.inputs[name] for datum in datums], dtype)


def _prompt_hash(datum: Datum) -> str:
    return prompt_hash(np.ascontiguousarray(datum.tokens[: datum.prompt_length], dtype="<i8").tobytes())
