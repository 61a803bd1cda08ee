"""The inference servers a rollout talks to: who answers, who is least busy, and errors that name the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rldbg.core import Environment, RldbgError, UnreachableError, UsageError
from rldbg.inference.workflows.completions import Completion
from rldbg.inference.workflows.deadlines import within
from rldbg.inference.workflows.http_client import BrokenOff, HttpClient, HttpResponse
from rldbg.inference.workflows.network_thread import NetworkThread
from rldbg.inference.workflows.request_formats import (
    Protocol,
    UnexpectedResponse,
    completions_body,
    openai_answers,
    sglang_answer,
    sglang_body,
)
from rldbg.inference.workflows.settings import GenerationSettings

if TYPE_CHECKING:
    from rldbg.inference.registry import Registry, Server

_CONNECT_S = 10.0
# A server that takes longer than this for its first answer is reported while it is waited for.
_SOON_S = 5.0
_MOST_RESUMPTIONS = 1000


class ServerRefusal(RldbgError):
    """A server answered a request with an error."""

    kind = "server"

    def __init__(self, message: str, hint: str = "", status: int = 0) -> None:
        super().__init__(message, hint)
        self.status = status

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.hint, self.status)


def base_address(text: str) -> str:
    """`http://host:port` from what people write: host:port, a URL, a URL that ends in /v1."""
    address = text.strip().rstrip("/").removesuffix("/v1")
    address = address if "://" in address else f"http://{address}"
    parts = urlsplit(address)
    try:
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port or "://" in text)
    except ValueError:
        usable = False
    if not usable:
        raise UsageError(f"{text!r} is not a server address", "write host:port, or http://host:port")
    return address


class Servers:
    """Replicas of one model. Requests run on the network thread; `generate` may be called from any thread or loop."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        network: NetworkThread,
        api_key: str = "",
        request_timeout_s: float = 300.0,
        server_wait_s: float = 60.0,
        connections: int = 64,
        protocol: Protocol | None = None,
    ) -> None:
        self.addresses = [base_address(address) for address in addresses]
        self.network = network
        self.model = ""
        self._busy = dict.fromkeys(self.addresses, 0)
        self._timeout_s = request_timeout_s
        self._wait_s = server_wait_s
        self._protocol = protocol
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = HttpClient(headers=headers, connections=connections, connect_s=_CONNECT_S)

    def check(self, on_wait: Callable[[str], None]) -> list[str]:
        """Asks every server once; returns what is wrong with some of them. None that answers is an error.

        `on_wait` is called for those that take long.
        """
        return self.network.wait(self._check(on_wait))

    def close(self) -> None:
        self.network.wait(self._client.close())

    async def generate(
        self, prompt: str | Sequence[int], settings: GenerationSettings, *, seed: int | None = None, rid: str = ""
    ) -> Completion:
        """Tokens that continue the prompt. A generation that was aborted for new weights is taken up again."""
        return await self.network.call(self._generate(prompt, settings, seed, rid))

    async def chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return await self.network.call(self.post("/v1/chat/completions", {"model": self.model, **body}))

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Sends one JSON request to the least busy server that can be reached, on the network thread."""
        refused: list[str] = []
        for address in sorted(self.addresses, key=self._busy.__getitem__):
            self._busy[address] += 1
            try:
                response = await within(self._timeout_s, self._client.post(address + path, dict(body)))
            except ConnectionRefusedError as error:
                refused.append(f"{address} ({error})")
                continue
            except TimeoutError:
                raise UnreachableError(
                    f"{address}{path} did not answer within {self._timeout_s:g} s", "raise --request-timeout"
                ) from None
            except BrokenOff as error:
                raise UnreachableError(
                    f"{address} closed the connection while answering {path}: {error}",
                    "see `rldbg serve ls` and the server's log",
                ) from None
            finally:
                self._busy[address] -= 1
            return _content(response, address + path)
        raise _nobody(refused)

    async def _generate(
        self, prompt: str | Sequence[int], settings: GenerationSettings, seed: int | None, rid: str
    ) -> Completion:
        started = time.monotonic()
        answer = await self._once(prompt, settings, seed, rid)
        parts = [answer]
        while parts[-1].finish_reason == "abort" and len(parts) < _MOST_RESUMPTIONS:
            tokens = [*answer.prompt_tokens, *(token for part in parts for token in part.tokens)]
            left = settings.max_new_tokens - (len(tokens) - len(answer.prompt_tokens))
            if left <= 0:
                break
            await asyncio.sleep(0.05)
            parts.append(await self._once(tokens, settings.new(max_new_tokens=left), seed, rid))
        return Completion(
            prompt_tokens=answer.prompt_tokens,
            tokens=tuple(token for part in parts for token in part.tokens),
            logprobs=tuple(value for part in parts for value in part.logprobs),
            versions=tuple(version for part in parts for version in part.versions),
            text="".join(part.text for part in parts),
            finish_reason=parts[-1].finish_reason,
            id=answer.id,
            latency_s=time.monotonic() - started,
        )

    async def _once(
        self, prompt: str | Sequence[int], settings: GenerationSettings, seed: int | None, rid: str
    ) -> Completion:
        if self._protocol != "openai":
            try:
                body = await self.post("/generate", sglang_body(prompt, settings, seed=seed, rid=rid))
                return sglang_answer(body, prompt)
            except ServerRefusal as refusal:
                if self._protocol == "sglang" or refusal.status not in (404, 405):
                    raise
                self._protocol = "openai"
        body = await self.post("/v1/completions", completions_body(prompt, settings, seed=seed, model=self.model))
        return openai_answers(body, () if isinstance(prompt, str) else prompt)[0]

    async def _check(self, on_wait: Callable[[str], None]) -> list[str]:
        found = await asyncio.gather(*(self._state(address, on_wait) for address in self.addresses))
        wrong = {address: said for address, said in zip(self.addresses, found, strict=True) if said}
        if len(wrong) == len(self.addresses):
            raise _nobody([f"{address} ({said})" for address, said in wrong.items()])
        self.addresses = [address for address in self.addresses if address not in wrong]
        self.model = await self._served_model(self.addresses[0])
        return [f"{address} is left out: {said}" for address, said in wrong.items()]

    async def _state(self, address: str, on_wait: Callable[[str], None]) -> str:
        """What is wrong with a server; empty when it answers. A server without /health is accepted. A busy machine may
        answer slowly, while a connection without a listener is refused at once.
        """
        asked = asyncio.ensure_future(within(self._wait_s, self._client.get(f"{address}/health")))
        await asyncio.wait({asked}, timeout=_SOON_S)
        if not asked.done():
            on_wait(f"waiting for {address}, up to {self._wait_s:g} s (--server-wait): it has not answered yet")
        try:
            response = await asked
        except TimeoutError:
            return f"no answer within {self._wait_s:g} s; raise --server-wait if it is busy"
        except ConnectionError as error:
            return str(error)
        return f"HTTP {response.status}" if response.status >= 500 else ""

    async def _served_model(self, address: str) -> str:
        try:
            response = await within(self._wait_s, self._client.get(f"{address}/v1/models"))
            if response.status in (401, 403):
                _content(response, f"{address}/v1/models")
            return str(response.json()["data"][0]["id"])
        except (ConnectionError, TimeoutError, ValueError, LookupError, TypeError):
            return "default"


def _content(response: HttpResponse, place: str) -> dict[str, Any]:
    if response.status in (401, 403):
        raise ServerRefusal(
            f"{place} refuses this client: HTTP {response.status}: {response.text[:300]}",
            "give the server's token with --api-key, or in RLDBG_ROLLOUT_API_KEY",
            response.status,
        )
    if response.status >= 400:
        raise ServerRefusal(
            f"{place} answered HTTP {response.status}: {response.text[:500]}",
            "see the server's log (`rldbg serve logs NAME`)",
            response.status,
        )
    try:
        body = response.json()
    except ValueError:
        raise UnexpectedResponse(
            f"{place} did not answer with JSON: {response.text[:300]!r}", "is this an inference server?"
        ) from None
    if not isinstance(body, dict):
        raise UnexpectedResponse(f"{place} answered {body!r:.300}", "is this an inference server?")
    return body


def _nobody(addresses: Sequence[str]) -> UnreachableError:
    return UnreachableError(
        f"no inference server answers at {', '.join(addresses)}",
        "start one with `rldbg serve up --model tiny`; `rldbg serve ls` lists running servers",
    )


VARIABLE = "AREAL_LLM_SERVER_ADDRS"
_START = "start one with `rldbg serve up --model tiny`"


def find_servers(addresses: str | None, name: str | None) -> list[str]:
    """`addresses`, else those of the server of that name, else the variable's, else those of the only server."""
    environment = Environment()
    if addresses and name:
        raise UsageError("--addrs and --server are mutually exclusive", "give one of them")
    if addresses is not None:
        return _listed(addresses, "--addrs")
    if name:
        return _running(_registry(environment).find(name))
    if environment.text(VARIABLE).strip():
        return _listed(environment.text(VARIABLE), VARIABLE)
    servers = [server for server in _registry(environment).servers() if server.backend != "train"]
    if not servers:
        raise UnreachableError(
            "no inference server given, and `rldbg serve` has none",
            f"{_START}, or give --addrs host:port or {VARIABLE}",
        )
    if len(servers) > 1:
        names = ", ".join(server.name for server in servers)
        raise UsageError(
            f"ambiguous: several servers are running: {names}", f"choose one with --server {servers[0].name}"
        )
    return _running(servers[0])


def _registry(environment: Environment) -> Registry:
    """Loaded when it is needed: servers named by their addresses need no psutil here."""
    from rldbg.inference.registry import Registry

    return Registry(Path(environment.text("RLDBG_HOME")))


def _listed(text: str, where: str) -> list[str]:
    addresses = [item.strip() for item in text.split(",") if item.strip()]
    if not addresses:
        raise UsageError(f"{where} names no server", "write host:port,host:port")
    return addresses


def _running(server: Server) -> list[str]:
    alive = [process.address for process in server.processes if process.state == "running" and process.address]
    if not alive:
        raise UnreachableError(
            f"server {server.name} is {server.state}", f"see `rldbg serve logs {server.name}`, then {_START}"
        )
    return alive
