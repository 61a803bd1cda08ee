"""HTTP requests to servers, dashboards and services: one place for timeouts, tokens and retries, and for the sockets of
our own servers.

Proxies of the environment are not used: rldbg talks to this machine or its cluster, and a proxy for outside traffic
answers 503 for those addresses. Only GET requests are retried, once, when the connection breaks: a POST may have been
served. The rollout's own client (inference/workflows/http_client.py) follows the same rules.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rldbg.core.errors import UsageError, explained_as

if TYPE_CHECKING:
    import httpx

CONNECT_S = 10.0
_BACKLOG = 4096


class NoAnswerError(ConnectionError):
    """No answer: nothing listens, the connection broke, the request timed out, or the address is invalid."""


def listen(host: str, port: int) -> socket.socket:
    """Where a server of ours listens; the port may be 0."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named, or asyncio would leave Nagle's algorithm on.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        with explained_as(UsageError, OSError, f"cannot listen on {host}:{port}", "choose another with --port"):
            listener.bind((host, port))
            listener.listen(_BACKLOG)
    except UsageError:
        listener.close()
        raise
    return listener


def bearer_header(token: str) -> dict[str, str]:
    """The authorization header; empty without a token."""
    return {"Authorization": f"Bearer {token}"} if token else {}


def http_request(
    method: str,
    url: str,
    *,
    timeout_s: float,
    content: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    token: str = "",
) -> httpx.Response:
    """One request on a connection of its own; the answer, whatever its status, or NoAnswerError."""
    import httpx

    options: dict[str, Any] = {"content": content, "headers": {**(headers or {}), **bearer_header(token)}}
    try:
        timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, CONNECT_S))
        with httpx.Client(timeout=timeout, trust_env=False, verify=url.startswith("https:")) as client:
            try:
                return client.request(method, url, **options)
            except (httpx.RemoteProtocolError, httpx.ReadError):
                if method != "GET":
                    raise
                return client.request(method, url, **options)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise NoAnswerError(_reason(error)) from error


def async_http_client(base_url: str = "", *, connections: int | None = None, library: Any = None) -> httpx.AsyncClient:
    """A client that waits for answers as long as they take, for streams and for agents; of httpx, or a library like
    it."""
    import httpx

    library = library or httpx
    client: httpx.AsyncClient = library.AsyncClient(
        base_url=base_url,
        timeout=library.Timeout(None, connect=CONNECT_S),
        limits=library.Limits(max_connections=connections, max_keepalive_connections=connections),
        trust_env=False,
        verify=base_url.startswith("https:"),
    )
    return client


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
