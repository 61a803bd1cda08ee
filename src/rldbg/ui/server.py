"""Serves the application: until it is interrupted, or in a thread of a notebook's process."""

import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from rldbg.core import PrerequisiteError, explained_as, listen
from rldbg.ui.catalogue import Catalogue

if TYPE_CHECKING:
    import uvicorn

    from rldbg.ui.guard import Access

_SHUTDOWN_S = 2


def serve(catalogue: Catalogue, *, host: str = "127.0.0.1", port: int = 0, at_start: Callable[[str], None]) -> None:
    """Listens and serves; `at_start` gets the URL, which carries the token, once the socket listens."""
    with explained_as(PrerequisiteError, ImportError, "rldbg ui needs a web server", "pip install 'rldbg[serve]'"):
        from rldbg.ui.guard import Access
    access = Access(host)
    with listen(host, port) as listener:
        server = _server(catalogue, access)
        at_start(url_of(access, listener.getsockname()[1]))
        server.run(sockets=[listener])


class BackgroundServer:
    """The application in a thread of this process, on a free port of loopback, until `stop` or the process's end."""

    def __init__(self, catalogue: Catalogue, access: "Access") -> None:
        self._listener = listen(access.host, 0)
        self._server = _server(catalogue, access)
        self.url = url_of(access, self._listener.getsockname()[1])
        sockets = [self._listener]
        self._thread = threading.Thread(target=lambda: self._server.run(sockets=sockets), name="rldbg-ui", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._listener.close()


def _server(catalogue: Catalogue, access: "Access") -> "uvicorn.Server":
    with explained_as(PrerequisiteError, ImportError, "rldbg ui needs a web server", "pip install 'rldbg[serve]'"):
        import uvicorn

        from rldbg.ui.application import build_application
    application = build_application(catalogue, access)
    return uvicorn.Server(uvicorn.Config(application, log_level="warning", timeout_graceful_shutdown=_SHUTDOWN_S))


def url_of(access: "Access", port: int) -> str:
    shown = socket.gethostname() if access.host in ("0.0.0.0", "::", "") else access.host
    name = f"[{shown}]" if ":" in shown else shown
    return f"http://{name}:{port}/?token={access.token}"
