"""`rldbg mcp`: the verbs as tools of the Model Context Protocol, for coding agents."""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.mcp.server import build_server, serve_http, serve_stdio
    from rldbg.mcp.workspace import Workspace

__getattr__, __dir__ = lazy_names(__name__)
