"""SGLang's native generation: POST /generate, one prompt or a batch, whole or streamed (each event is cumulative)."""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from rldbg.algorithms import LogprobMode
from rldbg.inference.backend import Backend
from rldbg.inference.generation import Delta, Finish, GenerationJob, Likeliest, Outcome, PendingGeneration
from rldbg.inference.protocols.fields import MAX_SAMPLES, Fields, is_tokens
from rldbg.inference.protocols.generation_jobs import new_id, samples, seed_of, settings_of, top_count
from rldbg.inference.protocols.http import Json, RouteTable, aborted_if_left, events, fields_of, outcomes, submit_all
from rldbg.inference.request_error import RequestError

_DEFAULT_TOKENS = 128


def sglang_error(error: RequestError) -> Response:
    return Json({"error": {"message": error.message, "type": "BadRequest", "code": error.status}}, error.status)


class SglangGeneration:
    def __init__(self, backend: Backend, mode: LogprobMode) -> None:
        self._backend = backend
        self._mode = mode

    def table(self) -> RouteTable:
        return (("POST PUT", "/generate", self.generate),)

    async def generate(self, request: Request) -> Response:
        started = time.perf_counter()
        fields = await fields_of(request)
        prompts = self._prompts(fields)
        streams = fields.flag("stream")
        if streams and len(prompts) > 1:
            raise RequestError("stream takes one prompt per request")
        jobs = [job for number, prompt in enumerate(prompts) for job in self._jobs(fields, prompt, number)]
        if streams and len(jobs) > 1:
            raise RequestError("stream takes one sample per request")
        if len(jobs) > MAX_SAMPLES:
            raise RequestError(f"{len(jobs)} samples in one request; at most {MAX_SAMPLES}")
        with_logprobs = fields.flag("return_logprob")
        form = _Form(self._backend, fields, with_logprobs=with_logprobs)
        answers = submit_all(self._backend, jobs, streams=streams)
        if streams:
            return events(self._stream(answers[0], form, started), _event_error)
        done = await outcomes(request, self._backend, answers)
        bodies = [form.body(job, outcome, started) for job, outcome in zip(jobs, done, strict=True)]
        return Json(bodies if len(bodies) > 1 or _is_batch(fields) else bodies[0])

    def _prompts(self, fields: Fields) -> list[tuple[tuple[int, ...], str | None]]:
        """Token ids of each prompt, and its text where that is what was sent."""
        ids, text = fields.raw("input_ids"), fields.raw("text")
        if (ids is None) == (text is None):
            raise RequestError("send either input_ids or text")
        if ids is not None:
            rows = [ids] if is_tokens(ids) else ids
            if not isinstance(rows, list) or not all(is_tokens(row) for row in rows):
                raise RequestError("input_ids must be a list of token ids, or a list of such lists")
            return [(tuple(row), None) for row in rows]
        texts = [text] if isinstance(text, str) else text
        if not isinstance(texts, list) or not texts or not all(isinstance(item, str) for item in texts):
            raise RequestError("text must be a string or a list of strings")
        return [(tuple(self._backend.card.text.encode(item)), item) for item in texts]

    def _jobs(self, fields: Fields, prompt: tuple[tuple[int, ...], str | None], number: int) -> list[GenerationJob]:
        sampling = _sampling(fields, number)
        settings = settings_of(
            sampling,
            max_new_tokens=sampling.integer("max_new_tokens", _DEFAULT_TOKENS),
            stop_texts=sampling.texts("stop"),
            mode=self._mode,
        )
        rids = fields.raw("rid")
        rid = rids[number] if isinstance(rids, list) and number < len(rids) else rids
        if rid is not None and not isinstance(rid, str):
            raise RequestError("rid must be a string")
        start = fields.integer("logprob_start_len", -1, least=-1) if self._backend.card.scores_prompts else -1
        job = GenerationJob(
            id=rid or new_id(""),
            prompt=prompt[0],
            settings=settings,
            seed=0,
            position=sampling.inner("custom_params").integer("position", 0),
            top_logprobs=top_count(fields, "top_logprobs_num") if fields.flag("return_logprob") else 0,
            prompt_from=start if fields.flag("return_logprob") and 0 <= start < len(prompt[0]) else None,
            prompt_text=prompt[1],
        )
        count = sampling.integer("n", 1, least=1, most=MAX_SAMPLES)
        return samples(job, count, seed_of(sampling, "sampling_seed"))

    async def _stream(
        self, answer: PendingGeneration, form: "_Form", started: float
    ) -> AsyncIterator[Mapping[str, Any]]:
        tokens: list[int] = []
        logprobs: list[float] = []
        top: list[Likeliest] = []
        with aborted_if_left(self._backend, [answer]):
            async for delta in answer.deltas():
                _extend(tokens, logprobs, top, delta)
                if not answer.done:
                    yield form.partial(answer.job, tokens, logprobs, top)
            yield form.body(answer.job, await answer.outcome(), started)


def _is_batch(fields: Fields) -> bool:
    ids = fields.raw("input_ids")
    return isinstance(fields.raw("text"), list) or (ids is not None and not is_tokens(ids))


def _sampling(fields: Fields, number: int) -> Fields:
    """The sampling parameters of one prompt of a batch: shared, or one object per prompt."""
    given = fields.raw("sampling_params")
    if isinstance(given, list):
        if number >= len(given) or not isinstance(given[number], dict):
            raise RequestError("sampling_params must be an object, or one object per prompt")
        return Fields(given[number], "sampling_params.")
    return fields.inner("sampling_params")


def _extend(tokens: list[int], logprobs: list[float], top: list[Likeliest], delta: Delta) -> None:
    tokens += delta.tokens
    logprobs += delta.logprobs
    top += delta.top


class _Form:
    """Answers in SGLang's form."""

    def __init__(self, backend: Backend, fields: Fields, *, with_logprobs: bool) -> None:
        sampling = _sampling(fields, 0)
        self._backend = backend
        self._text = backend.card.text
        self._with_logprobs = with_logprobs
        self._with_text = fields.flag("return_text_in_logprobs")
        self._skip_special = sampling.flag("skip_special_tokens", True)
        self._keep_stop = sampling.flag("no_stop_trim")
        self._prompt_from = fields.integer("logprob_start_len", -1, least=-1)

    def body(self, job: GenerationJob, outcome: Outcome, started: float) -> dict[str, Any]:
        body = self._common(job, outcome.tokens, outcome.logprobs, outcome.top)
        body["text"] = self._trimmed(body["text"] if outcome.text is None else outcome.text, outcome.finish)
        body["meta_info"] |= {
            "finish_reason": finish_reason(outcome),
            "weight_version": outcome.weight_version,
            "token_versions": outcome.versions,
            "logprobs_mode": outcome.logprob_mode,
            "e2e_latency": time.perf_counter() - started,
        }
        if self._with_logprobs:
            body["meta_info"] |= self._prompt_logprobs(job, outcome)
        return body

    def partial(
        self, job: GenerationJob, tokens: list[int], logprobs: list[float], top: list[Likeliest]
    ) -> dict[str, Any]:
        body = self._common(job, list(tokens), logprobs, top)
        body["meta_info"]["finish_reason"] = None
        body["meta_info"]["weight_version"] = self._backend.status().version.label
        return body

    def _common(
        self, job: GenerationJob, tokens: list[int], logprobs: Sequence[float], top: Sequence[Likeliest]
    ) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "id": job.id,
            "prompt_tokens": len(job.prompt),
            "completion_tokens": len(tokens),
            "cached_tokens": 0,
            "reasoning_tokens": 0,
            "num_retractions": 0,
            "dp_rank": None,
        }
        if self._with_logprobs:
            meta["output_token_logprobs"] = [
                [logprob, token, self._token(token)] for token, logprob in zip(tokens, logprobs, strict=True)
            ]
            if job.top_logprobs:
                meta["output_top_logprobs"] = [self._top(place) for place in top]
        text = self._text.decode(tokens, skip_special=self._skip_special)
        return {"text": text, "output_ids": tokens, "meta_info": meta}

    def _prompt_logprobs(self, job: GenerationJob, outcome: Outcome) -> dict[str, Any]:
        """The prompt's tokens with their log probs; null where those are not known, for clients want the tokens too."""
        start = self._prompt_from
        if start < 0:
            return {"input_token_logprobs": []}
        prompt = outcome.prompt or job.prompt
        scored = list(zip(outcome.prompt_logprobs or [None] * len(prompt), prompt, strict=True))[start:]
        answer: dict[str, Any] = {
            "input_token_logprobs": [[score, token, self._token(token)] for score, token in scored]
        }
        if job.top_logprobs and outcome.prompt_top:
            answer["input_top_logprobs"] = [self._top(place) or None for place in outcome.prompt_top[start:]]
        return answer

    def _top(self, place: Likeliest) -> list[list[Any]]:
        return [[logprob, None if isinstance(token, str) else token, self._token(token)] for token, logprob in place]

    def _token(self, token: int | str) -> str | None:
        if isinstance(token, str):
            return token
        return self._text.decode([token], skip_special=False) if self._with_text else None

    def _trimmed(self, text: str, finish: Finish) -> str:
        if isinstance(finish.matched, str) and not self._keep_stop and finish.matched in text:
            return text[: text.rindex(finish.matched)]
        return text


def finish_reason(outcome: Outcome) -> dict[str, Any]:
    finish = outcome.finish
    if finish.kind == "stop":
        return {"type": "stop", "matched": finish.matched}
    if finish.kind == "length":
        return {"type": "length", "length": len(outcome.tokens)}
    return {"type": "abort", "message": finish.message, "status_code": None, "err_type": None}


def _event_error(error: RequestError) -> Mapping[str, Any]:
    return {"error": {"message": error.message, "code": error.status}}
