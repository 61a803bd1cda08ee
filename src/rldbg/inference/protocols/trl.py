"""The routes of `trl vllm-serve` that a client without a GPU can use; their paths end in a slash.

Log probs are those of the distribution that was sampled from, as that server gives them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from rldbg.inference.backend import Backend
from rldbg.inference.conversation.messages import conversation_text
from rldbg.inference.generation import GenerationJob, Outcome, SamplingSettings
from rldbg.inference.protocols.control import Control, constant
from rldbg.inference.protocols.fields import MAX_SAMPLES, Fields, is_tokens
from rldbg.inference.protocols.generation_jobs import new_id, samples, seed_of, settings_of, top_count
from rldbg.inference.protocols.http import Json, RouteTable, fields_of, outcomes, submit_all
from rldbg.inference.request_error import RequestError

_DEFAULT_TOKENS = 16


def trl_error(error: RequestError) -> Response:
    return Json({"detail": error.message}, error.status)


class Trl:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._control = Control(backend)

    def table(self) -> RouteTable:
        return (
            ("GET", "/health/", constant({"status": "ok"})),
            ("GET", "/get_world_size/", constant({"world_size": 1})),
            ("POST", "/generate/", self.generate),
            ("POST", "/chat/", self.chat),
            ("POST", "/get_sequence_logprobs/", self.sequence_logprobs),
            ("POST", "/init_communicator/", self._control.no_group),
            ("POST", "/update_named_param/", self._control.no_group),
            ("POST", "/batch_update_named_params/", self._control.no_group),
            ("POST", "/reset_prefix_cache/", constant({"message": "ok"})),
            ("POST", "/close_communicator/", constant({"message": "ok"})),
        )

    async def generate(self, request: Request) -> Response:
        fields = await fields_of(request)
        prompts = fields.raw("prompts")
        if not isinstance(prompts, list) or not prompts:
            raise RequestError("prompts must be a list of strings or of lists of token ids")
        rows = [self._tokens(prompt) for prompt in prompts]
        texts = [prompt if isinstance(prompt, str) else None for prompt in prompts]
        return await self._answer(request, fields, rows, texts)

    async def chat(self, request: Request) -> Response:
        fields = await fields_of(request)
        conversations = fields.raw("messages")
        if not isinstance(conversations, list) or not all(isinstance(item, list) for item in conversations):
            raise RequestError("messages must be a list of conversations")
        tools = fields.raw("tools")
        if tools is not None and not isinstance(tools, list):
            raise RequestError("tools must be a list")
        chat = self._backend.card.text.chat
        options = fields.object("chat_template_kwargs")
        rows = [tuple(chat(item, tools, options)) for item in conversations]
        return await self._answer(request, fields, rows, [conversation_text(item) for item in conversations])

    async def sequence_logprobs(self, request: Request) -> Response:
        """Log probs of given completions under the model: nothing is drawn."""
        fields = await fields_of(request)
        sequences, lengths = fields.raw("sequences"), fields.raw("prompt_lengths")
        if not isinstance(sequences, list) or not all(is_tokens(row) for row in sequences) or not is_tokens(lengths):
            raise RequestError("send sequences (lists of token ids) and prompt_lengths (one number each)")
        if len(sequences) != len(lengths) or not sequences:
            raise RequestError(f"{len(sequences)} sequences and {len(lengths)} prompt_lengths")
        settings = SamplingSettings(max_new_tokens=0, temperature=0)
        top = top_count(fields, "top_logprobs")
        base = GenerationJob("", (), settings, seed=0, top_logprobs=top, prompt_from=0)
        jobs = [replace(base, id=new_id("score-"), prompt=tuple(row)) for row in sequences]
        done = await outcomes(request, self._backend, submit_all(self._backend, jobs))
        own = [
            [[(token, score)] for token, score in zip(job.prompt[start:], item.prompt_logprobs[start:], strict=True)]
            for item, job, start in zip(done, jobs, lengths, strict=True)
        ]
        likeliest = [item.prompt_top[start:] for item, start in zip(done, lengths, strict=True)]
        return Json(
            _scored(likeliest if top else own) | {f"actual_{name}": rows for name, rows in _scored(own).items()}
        )

    async def _answer(
        self, request: Request, fields: Fields, rows: Sequence[tuple[int, ...]], texts: Sequence[str | None]
    ) -> Response:
        """`texts` are those that the prompts came as: a recording finds them without a tokenizer."""
        fields = fields.overlaid("generation_kwargs")
        settings = settings_of(
            fields,
            max_new_tokens=fields.integer("max_tokens", _DEFAULT_TOKENS),
            stop_texts=fields.texts("stop"),
            mode="sampled",
        )
        count = fields.integer("n", 1, least=1, most=MAX_SAMPLES)
        if count * len(rows) > MAX_SAMPLES:
            raise RequestError(f"{count * len(rows)} samples in one request; at most {MAX_SAMPLES}")
        top = top_count(fields, "logprobs")
        seed = seed_of(fields, "seed")
        base = GenerationJob("", (), settings, seed=0, top_logprobs=top)
        jobs = [
            job
            for row, text in zip(rows, texts, strict=True)
            for job in samples(replace(base, id=new_id("trl-"), prompt=row, prompt_text=text), count, seed)
        ]
        done = await outcomes(request, self._backend, submit_all(self._backend, jobs))
        places = [[_place(item, index) for index in range(len(item.tokens))] for item in done]
        return Json(
            {
                "prompt_ids": [list(item.prompt or row) for row, item in zip(rows, done[::count], strict=True)],
                "completion_ids": [item.tokens for item in done],
                "completion_versions": [item.versions for item in done],
                "logprobs": [[[value for _, value in place] for place in row] for row in places],
                "logprob_token_ids": [[[token for token, _ in place] for place in row] for row in places],
            }
        )

    def _tokens(self, prompt: Any) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return tuple(self._backend.card.text.encode(prompt))
        if is_tokens(prompt):
            return tuple(prompt)
        raise RequestError("prompts must be a list of strings or of lists of token ids")


def _scored(rows: Sequence[Sequence[Sequence[tuple[int, float | None]]]]) -> dict[str, Any]:
    """The tokens and the log probs at each place, apart."""
    return {
        "logprobs": [[[score for _, score in place] for place in row] for row in rows],
        "logprob_token_ids": [[[token for token, _ in place] for place in row] for row in rows],
    }


def _place(item: Outcome, index: int) -> list[tuple[int, float]]:
    """The token that was drawn, then the likeliest ones beside it; those without an id have no place in this form."""
    own = item.tokens[index]
    likeliest = item.top[index] if item.top else ()
    others = [(token, score) for token, score in likeliest if isinstance(token, int) and token != own]
    return [(own, item.logprobs[index]), *others]
