"""The forms of OpenAI's answers: completions and chat, whole and in chunks."""

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from rldbg.inference.backend import Backend
from rldbg.inference.conversation.answer import Answer, AnswerPart
from rldbg.inference.conversation.parsing import Reading
from rldbg.inference.generation import GenerationJob, Likeliest, Outcome, PendingGeneration
from rldbg.inference.protocols.answer_stream import AnswerPiece, Reader
from rldbg.inference.protocols.fields import Fields


class Form:
    """What both forms share. Stop texts are cut off the text, never off the tokens."""

    object = ""
    chunk_object = ""

    def __init__(
        self, backend: Backend, fields: Fields, *, with_logprobs: bool, reading: Reading | None = None
    ) -> None:
        self._card = backend.card
        self._text = backend.card.text
        self._version = backend.status().version.label
        self._with_logprobs = with_logprobs
        self._with_ids = fields.flag("return_token_ids")
        self._ids_as_tokens = fields.flag("return_tokens_as_token_ids")
        self._skip_special = fields.flag("skip_special_tokens", True)
        keep_stop = fields.flag("include_stop_str_in_output") or fields.flag("no_stop_trim")
        self._reader = Reader(self._text, reading or Reading(), self._skip_special, keep_stop, raw=reading is None)
        self._echo = fields.flag("echo")
        self._model = fields.optional_text("model") or backend.card.name
        self._prompt_top = fields.integer("prompt_logprobs", 0, most=100) if fields.has("prompt_logprobs") else None

    def envelope(self, job: GenerationJob, *, chunk: bool = False) -> dict[str, Any]:
        name = self.chunk_object if chunk else self.object
        return {"id": job.id, "object": name, "created": int(time.time()), "model": self._model}

    def choice(self, index: int, job: GenerationJob, outcome: Outcome) -> dict[str, Any]:
        raise NotImplementedError

    def extra(self, job: GenerationJob, outcome: Outcome) -> dict[str, Any]:
        """Fields beside the choices."""
        return {"weight_version": outcome.weight_version, "logprobs_mode": outcome.logprob_mode}

    def opening(self, index: int) -> dict[str, Any] | None:
        """The chunk before any text."""
        return None

    def first_chunk(self, job: GenerationJob) -> dict[str, Any]:
        """What the first chunk of a choice has in addition to the text."""
        return {"prompt_token_ids": list(job.prompt)} if self._with_ids else {}

    async def parts(self, index: int, answer: PendingGeneration) -> AsyncIterator[dict[str, Any]]:
        """A choice in chunks; the last one says why it ended."""
        async for piece in self._reader.pieces(answer):
            yield self._part(index, piece)

    def _part(self, index: int, piece: AnswerPiece) -> dict[str, Any]:
        raise NotImplementedError

    def _ids(self, outcome: Outcome) -> dict[str, Any]:
        """The tokens, and the version of the weights that made each."""
        return {"token_ids": outcome.tokens, "token_versions": outcome.versions} if self._with_ids else {}

    def _new_ids(self, piece: AnswerPiece) -> dict[str, Any]:
        """Those of a part of the answer; the last part also has the versions."""
        ids = {} if piece.outcome is None else self._ids(piece.outcome)
        return ids | ({"token_ids": list(piece.tokens)} if self._with_ids else {})

    def _token(self, token: int | str) -> str:
        if isinstance(token, str):
            return token
        return f"token_id:{token}" if self._ids_as_tokens else self._text.decode([token], skip_special=False)

    def _prompt_logprobs(self, job: GenerationJob, outcome: Outcome) -> list[dict[str, Any] | None] | None:
        """vLLM's form: for each prompt token its own log prob and the likeliest ones'; none for the first."""
        if self._prompt_top is None or not outcome.prompt_logprobs:
            return None
        places: list[dict[str, Any] | None] = []
        for place, (token, score) in enumerate(zip(job.prompt, outcome.prompt_logprobs, strict=True)):
            if score is None:
                places.append(None)
                continue
            likeliest = outcome.prompt_top[place][: self._prompt_top] if outcome.prompt_top else []
            entry = {
                str(other): {"logprob": value, "rank": rank, "decoded_token": self._token(other)}
                for rank, (other, value) in enumerate(likeliest, start=1)
            }
            own = {"logprob": score, "rank": outcome.prompt_ranks[place], "decoded_token": self._token(token)}
            places.append({str(token): own} | entry if str(token) not in entry else entry)
        return places


class CompletionForm(Form):
    object = chunk_object = "text_completion"

    async def parts(self, index: int, answer: PendingGeneration) -> AsyncIterator[dict[str, Any]]:
        if self._echo:
            text = self._text.decode(answer.job.prompt, skip_special=self._skip_special)
            yield self._part(index, AnswerPiece([AnswerPart("text", text)], [], [], []))
        async for part in super().parts(index, answer):
            yield part

    def choice(self, index: int, job: GenerationJob, outcome: Outcome) -> dict[str, Any]:
        answer = self._reader.whole(job, outcome)
        if self._echo:
            answer = Answer(text=self._text.decode(job.prompt, skip_special=self._skip_special) + answer.text)
        whole = AnswerPiece(answer.parts(), outcome.tokens, outcome.logprobs, outcome.top, outcome)
        choice = self._part(index, whole)
        if self._echo and self._with_logprobs:
            tokens = [*job.prompt, *outcome.tokens]
            scores = [*outcome.prompt_logprobs, *outcome.logprobs]
            choice["logprobs"] = self._logprobs(tokens, scores, [*outcome.prompt_top, *outcome.top])
        if self._with_ids:
            choice["prompt_token_ids"] = list(outcome.prompt or job.prompt)
        choice["prompt_logprobs"] = self._prompt_logprobs(job, outcome)
        return choice

    def _part(self, index: int, piece: AnswerPiece) -> dict[str, Any]:
        part: dict[str, Any] = {"index": index, "text": piece.text} | finish_fields(piece.outcome)
        scores = self._logprobs(piece.tokens, piece.logprobs, piece.top) if self._with_logprobs else None
        part["logprobs"] = scores
        return part | self._new_ids(piece)

    def _logprobs(
        self, tokens: Sequence[int], logprobs: Sequence[float | None], top: Sequence[Likeliest]
    ) -> dict[str, Any]:
        names = [self._token(token) for token in tokens]
        offsets, end = [], 0
        for name in names:
            offsets.append(end)
            end += len(name)
        likeliest: list[dict[str, float] | None] = [None] * len(tokens)
        if top:
            likeliest = [{self._token(token): logprob for token, logprob in place} if place else None for place in top]
        return {
            "tokens": names,
            "token_logprobs": list(logprobs),
            "top_logprobs": likeliest,
            "text_offset": offsets,
        }


class ChatForm(Form):
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def choice(self, index: int, job: GenerationJob, outcome: Outcome) -> dict[str, Any]:
        answer = self._reader.whole(job, outcome)
        message = {"tool_calls": [], "refusal": None} | answer.message()
        if answer.reasoning:
            message["reasoning"] = answer.reasoning
        choice: dict[str, Any] = {"index": index, "message": message} | finish_fields(outcome, calls=bool(answer.calls))
        choice["logprobs"] = self._logprobs(outcome.tokens, outcome.logprobs, outcome.top)
        return choice | self._ids(outcome)

    def extra(self, job: GenerationJob, outcome: Outcome) -> dict[str, Any]:
        fields = super().extra(job, outcome) | {"prompt_logprobs": self._prompt_logprobs(job, outcome)}
        return fields | ({"prompt_token_ids": list(outcome.prompt or job.prompt)} if self._with_ids else {})

    def opening(self, index: int) -> dict[str, Any]:
        return {"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None, "logprobs": None}

    async def parts(self, index: int, answer: PendingGeneration) -> AsyncIterator[dict[str, Any]]:
        calls = 0
        async for piece in self._reader.pieces(answer):
            yield self._chunk(index, piece, calls)
            calls += sum(part.call is not None for part in piece.parts)

    def _chunk(self, index: int, piece: AnswerPiece, before: int) -> dict[str, Any]:
        """`before` counts the calls that were sent already."""
        said = Answer.of_parts(piece.parts)
        delta: dict[str, Any] = {"content": said.text} if said.text or not (said.reasoning or said.calls) else {}
        if said.reasoning:
            delta |= {"reasoning_content": said.reasoning, "reasoning": said.reasoning}
        if said.calls:
            delta["tool_calls"] = [{"index": before + place} | call.message() for place, call in enumerate(said.calls)]
        part: dict[str, Any] = {"index": index, "delta": delta}
        part |= finish_fields(piece.outcome, calls=bool(before or said.calls))
        part["logprobs"] = self._logprobs(piece.tokens, piece.logprobs, piece.top)
        return part | self._new_ids(piece)

    def _logprobs(
        self, tokens: Sequence[int], logprobs: Sequence[float], top: Sequence[Likeliest]
    ) -> dict[str, Any] | None:
        if not self._with_logprobs:
            return None
        places = top or [[] for _ in tokens]
        content = [
            self._entry(token, logprob) | {"top_logprobs": [self._entry(*other) for other in place]}
            for token, logprob, place in zip(tokens, logprobs, places, strict=True)
        ]
        return {"content": content}

    def _entry(self, token: int | str, logprob: float) -> dict[str, Any]:
        name = self._token(token)
        return {"token": name, "logprob": logprob, "bytes": list(name.encode())}


def finish_fields(outcome: Outcome | None, *, calls: bool = False) -> dict[str, Any]:
    if outcome is None:
        return {"finish_reason": None}
    kind = "tool_calls" if calls and outcome.finish.kind == "stop" else outcome.finish.kind
    return {"finish_reason": kind, "stop_reason": outcome.finish.matched}


def usage(jobs: Sequence[GenerationJob], tokens: Sequence[Sequence[int]]) -> dict[str, Any]:
    """`jobs` has each prompt once, however often it was continued."""
    prompts = sum(len(job.prompt) for job in jobs)
    completions = sum(len(row) for row in tokens)
    return {"prompt_tokens": prompts, "completion_tokens": completions, "total_tokens": prompts + completions}
