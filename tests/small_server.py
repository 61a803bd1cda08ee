"""A small real HTTP server that speaks SGLang's and OpenAI's protocols: one token a character, answers by rule.

The answer to a prompt is the number of its characters, so every test knows it. Prompts can ask for trouble: `?500`,
`?html`, `?drop`, `?hang`, `?slow`, `?abort` and `?gather` do what they say.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

END = 0


class SmallServer:
    def __init__(self, *, token: str = "", sglang: bool = True) -> None:
        self.token = token
        self.requests: list[dict] = []
        self.gathering = 1
        self._gathered = asyncio.Event()
        self._now = 0
        self._aborts = 0
        routes = [
            Route("/health", self.health),
            Route("/v1/models", self.models),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
        ]
        if sglang:
            routes.append(Route("/generate", self.generate, methods=["POST"]))
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen(4096)
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = uvicorn.Server(
            uvicorn.Config(
                Starlette(routes=routes),
                log_level="critical",
                lifespan="off",
                timeout_graceful_shutdown=1,
                backlog=4096,
            )
        )
        self._thread = threading.Thread(target=lambda: asyncio.run(self._server.serve([self._socket])), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(10)
        self._socket.close()

    async def health(self, _request: Request) -> Response:
        return Response()

    async def models(self, request: Request) -> Response:
        return self._refusal(request) or JSONResponse({"object": "list", "data": [{"id": "small"}]})

    def _refusal(self, request: Request) -> Response | None:
        if self.token and request.headers.get("authorization") != f"Bearer {self.token}":
            return JSONResponse({"error": "who are you?"}, status_code=401)
        return None

    async def generate(self, request: Request) -> Response:
        body = await request.json()
        text = body["text"] if "text" in body else "".join(map(chr, body["input_ids"]))
        trouble = self._refusal(request) or await self._begin(text, body)
        if trouble is not None:
            return trouble
        tokens, reason = _answer(text, body["sampling_params"]["max_new_tokens"])
        if "?abort" in text and self._aborts < 2:
            self._aborts += 1
            tokens, reason = tokens[:1], "abort"
        meta = {
            "id": f"g{len(self.requests)}",
            "finish_reason": {"type": reason},
            "weight_version": "7",
            "output_token_logprobs": [[-0.5, token, None] for token in tokens],
        }
        if body.get("logprob_start_len") == 0:
            meta["input_token_logprobs"] = [[None, ord(char), None] for char in text]
        return JSONResponse({"text": _text(tokens), "output_ids": tokens, "meta_info": meta})

    async def completions(self, request: Request) -> Response:
        body = await request.json()
        prompt = body["prompt"]
        text = prompt if isinstance(prompt, str) else "".join(map(chr, prompt))
        return self._refusal(request) or await self._begin(text, body) or JSONResponse(self._choices(text, body, False))

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        text = "".join(str(message.get("content") or "") for message in body["messages"])
        return self._refusal(request) or await self._begin(text, body) or JSONResponse(self._choices(text, body, True))

    def _choices(self, text: str, body: dict, chat: bool) -> dict:
        tokens, reason = _answer(text, body.get("max_tokens", 16))
        names = [f"token_id:{token}" for token in tokens]
        choice: dict = {"index": 0, "finish_reason": reason, "token_ids": tokens}
        if chat:
            message: dict = {"role": "assistant", "content": _text(tokens)}
            if body.get("tools") and body["messages"][-1]["role"] != "tool":
                function = {"name": body["tools"][0]["function"]["name"], "arguments": '{"x": 1}'}
                message["tool_calls"] = [{"id": "call-1", "type": "function", "function": function}]
                choice["finish_reason"] = "tool_calls"
            choice["message"] = message
            choice["logprobs"] = {"content": [{"token": name, "logprob": -0.5} for name in names]}
        else:
            choice |= {"text": _text(tokens), "logprobs": {"tokens": names, "token_logprobs": [-0.5] * len(tokens)}}
        body = {"id": f"c{len(self.requests)}", "choices": [choice], "prompt_token_ids": [ord(char) for char in text]}
        return body | {"model": "small", "weight_version": "7"}

    async def _gather(self) -> None:
        """Nobody is answered before `gathering` requests are here at once."""
        if self._now >= self.gathering:
            self._gathered.set()
        await self._gathered.wait()

    async def _begin(self, text: str, body: dict) -> Response | None:
        self.requests.append(body)
        self._now += 1
        try:
            if "?gather" in text:
                await self._gather()
            await asyncio.sleep(3600 if "?hang" in text else 0.05 if "?slow" in text else 0.001)
        finally:
            self._now -= 1
        if "?500" in text:
            return JSONResponse({"error": "the model fell over"}, status_code=500)
        if "?html" in text:
            return PlainTextResponse("<html>a proxy says hello</html>")
        if "?drop" in text:
            raise ConnectionError("dropped on purpose")
        return None


def _answer(text: str, limit: int) -> tuple[list[int], str]:
    tokens = [*map(ord, str(len(text))), END]
    return (tokens, "stop") if len(tokens) <= limit else (tokens[:limit], "length")


def _text(tokens: list[int]) -> str:
    return "".join(chr(token) for token in tokens if token != END)


@contextmanager
def small_server(**options) -> Iterator[SmallServer]:
    server = SmallServer(**options)
    try:
        yield server
    finally:
        server.stop()


def rows(path, items) -> str:
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return str(path)
