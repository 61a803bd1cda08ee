"""Access control: the host names of the server, the origin of requesting pages, and the token."""

import hmac
import ipaddress
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LOOPBACK_NAMES = frozenset({"localhost", "ip6-localhost"})
_COOKIE = "rldbg_token"
_POLICY = (
    b"content-security-policy",
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors ",
)
_HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
}


@dataclass(frozen=True, slots=True)
class Access:
    """The address the server listens on, and the token that its URL carries."""

    host: str = "127.0.0.1"
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    is_in_notebook: bool = False
    """Whether pages of this machine, such as a notebook's, may show the application in a frame."""

    @property
    def is_local(self) -> bool:
        return is_loopback(self.host)

    def has_token(self, shown: Iterable[str]) -> bool:
        return any(hmac.compare_digest(value.encode(), self.token.encode()) for value in shown)


def is_loopback(host: str) -> bool:
    if host in _LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def shown_tokens(scope: Scope) -> list[str]:
    """Tokens that a request shows: as a bearer token, or in the cookie that the printed URL left."""
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    bearer = headers.get(b"authorization", "").removeprefix("Bearer ")
    cookies = [part.strip().partition("=") for part in headers.get(b"cookie", "").split(";")]
    return [bearer, *(value for name, _, value in cookies if name == _COOKIE)]


class Guard:
    """Refuses requests for other hosts and from other origins, and beyond loopback those without token."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access
        self._names = {access.host, socket.gethostname(), socket.getfqdn()} if not access.is_local else set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        framed_by = b"http://localhost:* http://127.0.0.1:*" if self._access.is_in_notebook else b"'self'"
        policy = (_POLICY[0], _POLICY[1] + framed_by)
        await (refusal or self._app)(scope, receive, _with_headers(send, [policy, *_HEADERS.items()]))

    def _refusal(self, scope: Scope) -> Response | None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "")
        if not self._is_ours(host):
            return PlainTextResponse("this host name is not served here", 403)
        origin = headers.get(b"origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return PlainTextResponse("requests from other sites are refused", 403)
        if (
            headers.get(b"sec-fetch-site") in ("cross-site", "same-site")
            and headers.get(b"sec-fetch-mode") != "navigate"
        ):
            return PlainTextResponse("requests from other sites are refused", 403)
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", []) if scope["path"] == "/" else []
        if self._access.has_token(given):
            answer = RedirectResponse("/", 303)
            answer.set_cookie(_COOKIE, self._access.token, httponly=True, samesite="strict")
            return answer
        if not self._access.is_local and not self._access.has_token(shown_tokens(scope)):
            return PlainTextResponse("a token is required: open the URL that `rldbg ui` printed", 401)
        return None

    def _is_ours(self, host: str) -> bool:
        """A name that another site cannot make its own: loopback, or on other addresses this machine's names."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if is_loopback(name):
            return True
        return not self._access.is_local and (name in self._names or _is_address(name))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _with_headers(send: Send, headers: list[tuple[bytes, bytes]]) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = {name for name, _ in message["headers"]}
            message["headers"] = [*message["headers"], *(item for item in headers if item[0] not in own)]
        await send(message)

    return send_with_headers
