"""Whose code a frame belongs to: the user's, a package's, or the machinery that runs both.

Prompts ask it too, and do not load what reads other processes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..reading.objects import Frame

_LIBRARY = re.compile(r"/lib(64)?/python3\.\d+/|/(site|dist)-packages/|^<")
_MACHINERY = re.compile(
    r"/(site|dist)-packages/(ray|torch|debugpy|uvloop|anyio|starlette|uvicorn|fastapi|aiohttp|httpx|httpcore|requests|urllib3|grpc|zmq|tqdm|click"
    r"|pluggy|_pytest|opentelemetry|prometheus_client|wandb)/"
    r"|/rldbg/agent/|/rldbg_agent/|/rldbg_waits/|pydevd"
)
_STANDARD = re.compile(r"/lib(64)?/python3\.\d+/(?!(site|dist)-packages/)|^<frozen")


def is_users(file: str) -> bool:
    return not _LIBRARY.search(file) and not _MACHINERY.search(file)


def is_standard(file: str) -> bool:
    """Whether it belongs to the standard library."""
    return bool(_STANDARD.search(file))


def own_frames(frames: Sequence[Frame]) -> Sequence[Frame]:
    """Without those of the parent that a worker process made by a fork still has below its own."""
    for number, frame in enumerate(frames):
        if frame.file.endswith("multiprocessing/popen_fork.py") and frame.function.endswith("_launch"):
            return frames[:number]
    return frames


def users_place(frames: Sequence[Frame]) -> int | None:
    """The innermost frame of the user's code, else of a package that is not machinery; None when there is none."""
    for number, frame in enumerate(frames):
        if is_users(frame.file):
            return number
    for number, frame in enumerate(frames):
        if not is_standard(frame.file) and not _MACHINERY.search(frame.file) and not frame.file.startswith("<"):
            return number
    return None
