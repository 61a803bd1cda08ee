"""Paused workers of a Ray cluster that rldbg did not start, as processes of the broker.

Ray drops a worker from its list as soon as a debugger attaches, and resumes it when the debugger detaches; so the
broker keeps each session until a client resumes the worker.
"""

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from rldbg.agent import PEER_LIMIT_BYTES, snake_case
from rldbg.core import UnreachableError
from rldbg.live.broker.async_peer import Stream
from rldbg.live.broker.debug_sessions import DebugSessions
from rldbg.live.broker.processes import Process, ProcessTable
from rldbg.live.broker.stacks import py_spy_dump
from rldbg.live.broker.stop import Stop
from rldbg.live.external_ray.dashboard import Dashboard, PausedWorker
from rldbg.live.external_ray.injection import prepare_stop
from rldbg.live.external_ray.legacy_listing import LegacySession, legacy_sessions
from rldbg.live.external_ray.legacy_pdb import PdbStream

_RAY_DEBUGGER = ("ray/util/debugpy.py", "ray/util/rpdb.py")
_LEGACY_EVERY_S = 3.0
_LEGACY_PATIENCE_S = 8.0
_ADVICE = (
    "no stopped processes found. Common reasons:",
    "- debugpy is not installed in the workers' environment: breakpoint() is then skipped with a log line",
    "- RAY_DEBUG is set to something other than 1 (0 disables breakpoints; legacy sessions are listed separately)",
    "- the breakpoint is in a process that Ray does not own (an engine, a pool): start the job with `rldbg run`",
    "- RAY_DEBUG_POST_MORTEM=1 was exported after `ray start` and did not reach the workers: use runtime_env env_vars",
)


class AttachedWorkers:
    """Keeps the broker's process table in step with what Ray says is paused."""

    advice = _ADVICE

    def __init__(self, dashboard: Dashboard, processes: ProcessTable, sessions: DebugSessions) -> None:
        self._dashboard = dashboard
        self._processes = processes
        self._sessions = sessions
        self._by_worker: dict[str, Process] = {}
        self._looked = asyncio.Lock()
        self._asking: asyncio.Future[None] | None = None
        self._asked_at = 0.0
        self._legacy_known: list[LegacySession] | None = None

    async def refresh(self) -> None:
        """Asks Ray for paused workers. Raises the dashboard's errors."""
        async with self._looked:
            waiting = await asyncio.to_thread(self._dashboard.paused)
            for worker in waiting:
                self._take_in(worker.worker_id, _facts(worker), self._open)
            paused = {worker.worker_id for worker in waiting} | await self._legacy()
            for worker_id, process in list(self._by_worker.items()):
                if worker_id not in paused and process.session is None:
                    # It is running: Ray cannot reach it until its next breakpoint.
                    self._processes.remove(self._by_worker.pop(worker_id))
            await asyncio.gather(*(self._locate(process) for process in self._by_worker.values()))

    def _take_in(self, key: str, facts: dict[str, Any], opener: Callable[[Process], Awaitable[None]]) -> Process:
        process = self._by_worker.get(key)
        if process is None:
            process = self._by_worker[key] = self._processes.add(facts, open_session=opener)
        process.facts = facts
        if process.session is None and process.declared is None:
            process.declared = Stop(reason="breakpoint", session=0)
        self._processes.rename()
        return process

    async def _legacy(self) -> set[str]:
        """Sessions of RAY_DEBUG=legacy, queried in the background because that takes seconds. If some are known, wait
        for the answer: they may have resumed since and must not be shown as stopped.
        """
        if self._asking is None or (self._asking.done() and time.monotonic() - self._asked_at > _LEGACY_EVERY_S):
            self._asked_at = time.monotonic()
            self._asking = asyncio.ensure_future(self._ask_legacy())
        if self._legacy_known is None or self._legacy_known:
            await asyncio.wait({self._asking}, timeout=_LEGACY_PATIENCE_S)
        for session in self._legacy_known or ():
            facts = _legacy_facts(session)
            process = self._take_in(session.key, facts, self._open_legacy)
            if process.declared is not None:
                process.declared.file, process.declared.line = session.file, session.line
        return {session.key for session in self._legacy_known or ()}

    async def _ask_legacy(self) -> None:
        address = await asyncio.to_thread(self._dashboard.gcs_address)
        sessions = await legacy_sessions(address, self._dashboard.token()) if address else []
        pids = await asyncio.to_thread(self._dashboard.process_ids) if sessions else {}
        self._legacy_known = [replace(each, pid=pids.get(each.worker_id, 0)) for each in sessions]

    async def _open_legacy(self, process: Process) -> None:
        reader, writer = await _connect(process)
        self._sessions.spawn(self._hold_legacy(process, PdbStream(reader, writer)))

    async def _hold_legacy(self, process: Process, stream: PdbStream) -> None:
        """Holds a legacy session; a resumed one is over, whatever the last answer said."""
        await self._sessions.hold(process, stream)
        gone = process.facts["address"]
        self._legacy_known = [each for each in self._legacy_known or () if (each.host, each.port) != gone]

    async def _open(self, process: Process) -> None:
        reader, writer = await _connect(process)
        stream = Stream(reader, writer, PEER_LIMIT_BYTES)
        self._sessions.spawn(self._sessions.hold(process, stream, prepare_stop=prepare_stop))

    async def _locate(self, process: Process) -> None:
        """Where a worker without a session is paused: read from outside if allowed, else by attaching to it."""
        stop = process.declared
        if stop is None or stop.file or process.session is not None:
            return
        place = await _place_from_outside(process) if _is_local(process) else None
        if place is None:
            session = await self._sessions.of(process)
            await process.wait_until(lambda: session.stop is not None or session.ended.is_set(), 10.0)
            return
        stop.file, stop.line, stop.function, stop.thread = place


async def _connect(process: Process) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = process.facts["address"]
    try:
        async with asyncio.timeout(10.0):
            return await asyncio.open_connection(host, port, limit=PEER_LIMIT_BYTES)
    except (OSError, TimeoutError) as error:
        raise UnreachableError(
            f"the debug port {host}:{port} of {process.who} is not reachable: {error}",
            "workers listen on their node's address: run rldbg on that cluster, or through `rldbg tunnel`",
        ) from error


def _legacy_facts(session: LegacySession) -> dict[str, Any]:
    """Ray titles its workers `ray::Class.method` or `ray::task`; a driver has its command line there."""
    name = session.title.removeprefix("ray::").partition("(")[0].split(" ")[0]
    owner, _, method = name.rpartition(".")
    role = (snake_case(owner) if owner else method) if session.title.startswith("ray::") else "driver"
    return {
        "role": role or "worker",
        "rank": None,
        "host": os.uname().nodename if session.host in _own_addresses() | {"localhost"} else session.host,
        "pid": session.pid,
        "kind": "legacy",
        "address": (session.host, session.port),
        "ray": {"task": name, "debugger": "legacy"},
    }


def _facts(worker: PausedWorker) -> dict[str, Any]:
    role = worker.actor_name or snake_case(worker.actor_class.rpartition(".")[2]) or worker.task or worker.kind
    host = os.uname().nodename if worker.ip in _own_addresses() else worker.ip
    return {
        "role": "driver" if worker.kind == "driver" else role,
        "rank": None,
        "host": host,
        "pid": worker.pid,
        "kind": worker.kind,
        "address": (worker.ip, worker.port),
        "ray": {"task": worker.task, "actor": worker.actor_name, "class": worker.actor_class},
    }


def _own_addresses() -> set[str]:
    try:
        return {"127.0.0.1", "::1", *socket.gethostbyname_ex(socket.gethostname())[2]}
    except OSError:
        return {"127.0.0.1", "::1"}


def _is_local(process: Process) -> bool:
    return process.facts.get("host") == os.uname().nodename


async def _place_from_outside(process: Process) -> tuple[str, int, str, str] | None:
    threads = await py_spy_dump(int(process.facts["pid"]), ["--nonblocking"])
    return None if isinstance(threads, str) else paused_place(threads)


def paused_place(threads: list[dict[str, Any]]) -> tuple[str, int, str, str] | None:
    """File, line, function and thread of the user's frame that called the breakpoint, from a py-spy dump."""
    for thread in threads:
        frames = thread.get("frames") or []
        of_ray = [n for n, frame in enumerate(frames) if frame["file"].endswith(_RAY_DEBUGGER)]
        # After an exception the user's frames are gone from the stack; only a debugger can show them.
        if not of_ray or any("_post_mortem" in frame["function"] for frame in frames):
            continue
        for frame in frames[of_ray[-1] + 1 :]:
            return frame["file"], frame["line"], frame["function"].rpartition(".")[2], thread["thread"]
    return None
