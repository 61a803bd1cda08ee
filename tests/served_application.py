"""Web applications in the test's process: on a port of their own, or asked without any."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import httpx
import uvicorn

from rldbg.core import listen


@contextmanager
def served(build: Callable[[], object]) -> Iterator[str]:
    """The application's URL; it is built inside of its event loop."""
    listener = listen("127.0.0.1", 0)
    servers = []

    async def serve():
        config = uvicorn.Config(build(), log_level="warning", lifespan="on", timeout_graceful_shutdown=2)
        servers.append(uvicorn.Server(config))
        await servers[0].serve(sockets=[listener])

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        servers[0].should_exit = True
        thread.join(60)
        listener.close()


@asynccontextmanager
async def client_of(application) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an application that starts and ends with it."""
    async with (
        application.router.lifespan_context(application),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app=application), base_url="http://server", timeout=120
        ) as client,
    ):
        yield client
