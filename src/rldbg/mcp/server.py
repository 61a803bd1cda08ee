"""The server of the official SDK: tools from the methods, errors as messages with a hint, stdio or HTTP on loopback."""

import functools
import hmac
import inspect
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from rldbg.core import PrerequisiteError, RldbgError, explained_as, listen
from rldbg.mcp.live_tools import LiveTools
from rldbg.mcp.recorded_tools import RecordedTools
from rldbg.mcp.tool_results import DEFAULT_CHARACTERS, MAX_CHARACTERS, ToolResult
from rldbg.mcp.workspace import Workspace
from rldbg.version import __version__

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer
    from starlette.types import ASGIApp, Receive, Scope, Send

_INSTRUCTIONS = f"""rldbg debugs distributed RL post-training of language models. Start with `list`.
A live run that does not move: `hang`. A crash: `doctor`. Wrong numbers in one run: `check`, then `mismatch`.
Two runs that should agree: `compare`. Then `show` at the places that answers cite.
Answers are cut at `limit` characters ({DEFAULT_CHARACTERS} by default), with a note; `offset` gets the rest.
"""
_Limit = Annotated[int, Field(ge=200, le=MAX_CHARACTERS, description="Largest number of characters of the answer.")]
_Offset = Annotated[int, Field(ge=0, description="Offset at which to continue a truncated answer.")]


def build_server(workspace: Workspace) -> "MCPServer[Any]":
    """All tools that look; with leave to control, those that act too."""
    with explained_as(PrerequisiteError, ImportError, "rldbg mcp needs the mcp package", "pip install 'rldbg[mcp]'"):
        from mcp.server.mcpserver import MCPServer
        from mcp_types import ToolAnnotations

    server: MCPServer[Any] = MCPServer("rldbg", instructions=_INSTRUCTIONS, version=__version__, log_level="ERROR")
    live = LiveTools(workspace)
    looking = RecordedTools(workspace).tools() | live.tools()
    acting = live.control_tools() if workspace.allow_control else {}
    for name, method in (looking | acting).items():
        hints = ToolAnnotations(read_only_hint=name in looking and not workspace.allow_control, open_world_hint=False)
        server.add_tool(_paged(method), name=name, description=inspect.getdoc(method), annotations=hints)
    return server


def serve_stdio(workspace: Workspace) -> None:
    """Talk on standard input and output until the client leaves."""
    build_server(workspace).run("stdio")


def serve_http(workspace: Workspace, *, port: int, at_start: Callable[[str, str], None]) -> None:
    """Listen on loopback; `at_start` gets the URL and the token that every request must show."""
    server = build_server(workspace)
    import uvicorn

    token = secrets.token_urlsafe(24)
    with listen("127.0.0.1", port) as listener:
        application = _TokenRequired(server.streamable_http_app(), token)
        at_start(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", token)
        uvicorn.Server(uvicorn.Config(application, log_level="warning", timeout_graceful_shutdown=2)).run([listener])


class _TokenRequired:
    """Answers 401 to requests without the token: any user of this machine can reach the port."""

    def __init__(self, application: "ASGIApp", token: str) -> None:
        self._application = application
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        given = dict(scope.get("headers", ())).get(b"authorization", b"")
        if scope["type"] == "http" and not hmac.compare_digest(given, self._expected):
            from starlette.responses import PlainTextResponse

            refusal = PlainTextResponse("a token is required: Authorization: Bearer TOKEN, as `rldbg mcp` printed", 401)
            await refusal(scope, receive, send)
            return
        await self._application(scope, receive, send)


def _paged(method: Callable[..., ToolResult]) -> Callable[..., Any]:
    """The method with `limit` and `offset`, whose answer is a page of text with the facts about it."""
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp_types import CallToolResult, TextContent

    @functools.wraps(method)
    def tool(limit: int = DEFAULT_CHARACTERS, offset: int = 0, **wanted: Any) -> CallToolResult:
        try:
            answer = method(**wanted)
        except RldbgError as error:
            hint = f"\ntry: {error.hint}" if error.hint else ""
            raise ToolError(f"{error.kind}: {error.message}{hint}") from error
        text, facts = answer.page(offset, limit)
        return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=facts)

    own = inspect.signature(method, eval_str=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    pages = [
        inspect.Parameter("limit", keyword, default=DEFAULT_CHARACTERS, annotation=_Limit),
        inspect.Parameter("offset", keyword, default=0, annotation=_Offset),
    ]
    tool.__signature__ = own.replace(  # type: ignore[attr-defined]
        parameters=[*own.parameters.values(), *pages], return_annotation=CallToolResult
    )
    tool.__annotations__ = {name: each.annotation for name, each in tool.__signature__.parameters.items()} | {  # type: ignore[attr-defined]
        "return": CallToolResult
    }
    return tool
