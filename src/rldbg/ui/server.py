"""Serves the application until it is interrupted."""

import socket
from collections.abc import Callable

from rldbg.core import PrerequisiteError, UsageError, explained_as
from rldbg.ui.application import build_application
from rldbg.ui.catalogue import Catalogue
from rldbg.ui.guard import Access

_SHUTDOWN_S = 2


def serve(catalogue: Catalogue, *, host: str = "127.0.0.1", port: int = 0, at_start: Callable[[str], None]) -> None:
    """Listens and serves; `at_start` gets the URL, which carries the token, once the socket listens."""
    with explained_as(PrerequisiteError, ImportError, "rldbg ui needs a web server", "pip install 'rldbg[serve]'"):
        import uvicorn

    access = Access(host)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with explained_as(
            UsageError, OSError, f"cannot listen on {host} port {port}", "choose another --port or --host"
        ):
            listener.bind((host, port))
        listener.listen(128)
        configuration = uvicorn.Config(
            build_application(catalogue, access), log_level="warning", timeout_graceful_shutdown=_SHUTDOWN_S
        )
        at_start(url_of(access, listener.getsockname()[1]))
        uvicorn.Server(configuration).run(sockets=[listener])


def url_of(access: Access, port: int) -> str:
    shown = socket.gethostname() if access.host in ("0.0.0.0", "::", "") else access.host
    name = f"[{shown}]" if ":" in shown else shown
    return f"http://{name}:{port}/?token={access.token}"
