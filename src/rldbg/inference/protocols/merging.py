"""Several asynchronous streams as one, in the order in which their items come."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

_T = TypeVar("_T")


async def merged(streams: Sequence[AsyncIterator[_T]]) -> AsyncIterator[_T]:
    """Ends when all have ended; the first error ends it, and whoever stops listening ends the rest."""
    if len(streams) == 1:
        async for item in streams[0]:
            yield item
        return
    queue: asyncio.Queue[tuple[bool, _T | BaseException | None]] = asyncio.Queue()

    async def feed(stream: AsyncIterator[_T]) -> None:
        try:
            async for item in stream:
                queue.put_nowait((True, item))
            queue.put_nowait((False, None))
        except Exception as error:  # noqa: BLE001 - border 2 of 3: it is raised again where the request is answered
            queue.put_nowait((False, error))

    tasks = [asyncio.create_task(feed(stream)) for stream in streams]
    open_streams = len(tasks)
    try:
        while open_streams:
            is_item, value = await queue.get()
            if is_item:
                yield value  # type: ignore[misc]
            elif value is not None:
                raise value  # type: ignore[misc]
            else:
                open_streams -= 1
    finally:
        for task in tasks:
            task.cancel()
