"""Paused workers of a foreign Ray cluster, as processes of the broker: listed by Ray, held by us once looked at.

Ray drops a worker from its list as soon as a debugger attaches, and a debugger that leaves lets the worker run on; the
broker therefore keeps each session until somebody continues it.
"""

import asyncio
import json
import os
import shutil
import socket
import sys
import time
from pathlib import Path
from typing import Any

from rldbg.agent import PEER_LIMIT_BYTES, snake_case
from rldbg.core import UnreachableError
from rldbg.live.broker.peer import Stream
from rldbg.live.broker.processes import Process, ProcessTable
from rldbg.live.broker.session import Stop
from rldbg.live.broker.sessions import Sessions
from rldbg.live.foreign_ray.dashboard import Dashboard, PausedWorker
from rldbg.live.foreign_ray.injection import prepare_stop

_NOT_THE_USERS = ("ray/util/debugpy.py", "ray/util/rpdb.py", "/debugpy/", "pydevd")
ADVICE = (
    "nothing is stopped. The usual reasons:",
    "- debugpy is not installed in the workers' environment: breakpoint() is then passed over with a log line",
    "- RAY_DEBUG is set to something other than 1 (0 switches breakpoints off; legacy sessions are listed separately)",
    "- the breakpoint is in a process that Ray does not own (an engine, a pool): start the job with `rldbg run`",
    "- RAY_DEBUG_POST_MORTEM=1 was exported after `ray start` and did not reach the workers: use runtime_env env_vars",
)


class HeldWorkers:
    """Keeps the broker's process table in step with what Ray says is paused."""

    def __init__(self, dashboard: Dashboard, processes: ProcessTable, sessions: Sessions) -> None:
        self._dashboard = dashboard
        self._processes = processes
        self._sessions = sessions
        self._by_worker: dict[str, Process] = {}
        self._looked = asyncio.Lock()
        self.last_answer = time.monotonic()

    async def refresh(self) -> None:
        """Asks Ray who is paused. Raises what the dashboard raises."""
        async with self._looked:
            waiting = await asyncio.to_thread(self._dashboard.paused)
            self.last_answer = time.monotonic()
            for worker in waiting:
                self._take_in(worker)
            paused = {worker.worker_id for worker in waiting}
            for worker_id, process in list(self._by_worker.items()):
                if worker_id not in paused and process.session is None:
                    # It runs: Ray has no way to reach it until its next breakpoint.
                    self._processes.remove(self._by_worker.pop(worker_id))
            await asyncio.gather(*(self._locate(process) for process in self._by_worker.values()))

    def _take_in(self, worker: PausedWorker) -> None:
        process = self._by_worker.get(worker.worker_id)
        if process is None:
            process = self._processes.add(_facts(worker), open_session=self._open)
            process.declared = Stop(reason="breakpoint")
            self._by_worker[worker.worker_id] = process
        process.facts = _facts(worker)
        if process.session is None and process.declared is None:
            process.declared = Stop(reason="breakpoint")
        self._processes.rename()

    async def _open(self, process: Process) -> None:
        address = process.facts["address"]
        try:
            async with asyncio.timeout(10.0):
                reader, writer = await asyncio.open_connection(*address)
        except (OSError, TimeoutError) as error:
            raise UnreachableError(
                f"the debug port {address[0]}:{address[1]} of {process.who} is not reachable: {error}",
                "workers listen on their node's address: run rldbg on that cluster, or through `rldbg tunnel`",
            ) from error
        stream = Stream(reader, writer, PEER_LIMIT_BYTES)
        self._sessions.spawn(self._sessions.hold(process, stream, prepare_stop=prepare_stop))

    async def _locate(self, process: Process) -> None:
        """Where a worker that nobody holds yet is paused: read from outside if allowed, else by taking hold of it."""
        stop = process.declared
        if stop is None or stop.file or process.session is not None:
            return
        place = await _place_from_outside(process) if _is_local(process) else None
        if place is None:
            session = await self._sessions.of(process)
            await process.wait_until(lambda: session.stop is not None or session.ended.is_set(), 10.0)
            return
        stop.file, stop.line, stop.function, stop.thread = place


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
    tool = shutil.which("py-spy", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")
    if tool is None:
        return None
    command = [tool, "dump", "--json", "--nonblocking", "--pid", str(process.facts["pid"])]
    spy = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(5.0):
            text, _ = await spy.communicate()
        return paused_place(json.loads(text)) if spy.returncode == 0 else None
    except (TimeoutError, ValueError):
        if spy.returncode is None:
            spy.kill()
        return None


def paused_place(threads: list[dict[str, Any]]) -> tuple[str, int, str, str] | None:
    """File, line, function and thread of the user's frame that called the breakpoint, from a py-spy dump."""
    for thread in threads:
        frames = thread.get("frames") or []
        names = {frame["name"] for frame in frames}
        # After an exception the user's frames are gone from the stack; only a debugger can show them.
        if "_wait_for_attach" not in names or "_post_mortem" in names:
            continue
        for frame in frames:
            file = str(frame.get("filename") or "")
            if not any(part in file for part in _NOT_THE_USERS) and frame["name"] != "helper":
                return file, int(frame.get("line") or 0), str(frame["name"]), str(thread.get("thread_name") or "")
    return None
