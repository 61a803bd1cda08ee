"""The stacks of one process: from its agent, or from py-spy if the interpreter cannot answer or C frames are wanted."""

import asyncio
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from rldbg.agent import Message, WireError
from rldbg.agent.waits import add_native_waits, look, may_wait_for_gpu, may_wait_for_interpreter
from rldbg.live.broker.kept_files import KeptFiles
from rldbg.live.broker.processes import Process, ProcessTable

_PATIENCE_S = 3.0
# Analysing waits takes longer, especially when many processes are asked at once.
_WAITS_S = 8.0
_SEEN = (
    *("threads", "tasks", "ended", "children", "raised", "suspended", "forked"),
    *("distributed", "process_groups", "groups_made"),
)
_PY_SPY_S = 15.0


async def stack_of(process: Process, everyone: ProcessTable, wanted: Message) -> Message:
    """The process's line in `ps`, with `threads`, `groups` and `flight_record`, or `unanswered` and the reason."""
    entry: dict[str, Any] = process.to_dict()
    # What it told by itself; an agent that answers tells it anew.
    since_s = time.time() - process.said_at
    entry["said"] = [each | {"ago_s": each["ago_s"] + since_s} for each in process.said.get("errors") or []]
    if not process.is_alive:
        told = {name: process.said.get(name) for name in ("process_name", "started_by")}
        return entry | told | {"unanswered": "the process has ended"}
    found = await _ask_agent(process, wanted)
    pid, is_here = int(process.facts.get("pid") or 0), process.facts.get("host") == os.uname().nodename
    if found.get("threads") and wanted.get("waits") and is_here and may_wait_for_gpu(pid, found["threads"]):
        await asyncio.to_thread(add_native_waits, pid, found["threads"])
        found["spied"] = True
    if found.get("threads") and not wanted.get("native"):
        return entry | found
    if wanted.get("waits") and is_here:
        # From outside, as for processes without an agent.
        native = bool(wanted.get("native"))
        seen = (await asyncio.to_thread(look, [pid], children=False, native=native))[0]
        if may_wait_for_interpreter(seen["threads"]):
            await asyncio.to_thread(add_native_waits, pid, seen["threads"])
        if seen["threads"]:
            more = {"unanswered": "", "source": seen["source"], "spied": True}
            return entry | found | {name: seen[name] for name in _SEEN} | more
    threads = await _spy(process, everyone, wanted)
    if isinstance(threads, str):
        return entry | found | {"unanswered": f"{found.get('unanswered', '')}; {threads}".strip("; ")}
    return entry | {**found, "threads": threads, "unanswered": "", "source": "py-spy"}


async def keep_stacks(processes: ProcessTable, run: Path, files: KeptFiles) -> None:
    """Saves the stacks of all processes at the first crash: RUN/stacks/at_first_crash.json."""
    file = run / "stacks" / "at_first_crash.json"
    alive = [process for process in processes if process.is_alive and not process.facts.get("idle")]
    stacks = await asyncio.gather(*(stack_of(process, processes, {"flight_record": True}) for process in alive))
    body = {"schema_version": 1, "time": time.time(), "stacks": stacks}
    files.write(file, json.dumps(body, default=str), "the stacks at the first crash are not known")


async def _ask_agent(process: Process, wanted: Message) -> Message:
    if process.agent is None:
        return {"unanswered": "no agent"}
    body = {name: bool(wanted.get(name)) for name in ("locals", "flight_record", "waits")}
    try:
        patience_s = _WAITS_S if body["waits"] else _PATIENCE_S
        answer: Message = await process.agent.request("stacks", body, timeout_s=patience_s)
    except (WireError, TimeoutError) as error:
        return {"unanswered": str(error) or f"its interpreter did not answer within {patience_s:g} s"}
    return answer


async def _spy(process: Process, everyone: ProcessTable, wanted: Message) -> list[Message] | str:
    pid, host = int(process.facts.get("pid") or 0), process.facts.get("host")
    options = ["--native"] * bool(wanted.get("native"))
    if host == os.uname().nodename:
        return await py_spy_dump(pid, options)
    agents = (each.agent for each in everyone if each is not process and each.facts.get("host") == host)
    neighbour = next((agent for agent in agents if agent is not None), None)
    if neighbour is None:
        return f"no other agent on {host} could look at it"
    try:
        answer = await neighbour.request("spy", {"pid": pid, "options": options}, timeout_s=20.0)
    except (WireError, TimeoutError) as error:
        return str(error) or f"the agent next to it on {host} did not answer"
    if "threads" not in answer:
        return str(answer.get("reason"))
    return _parse(str(answer["threads"]))


def _find_py_spy() -> str | None:
    beside_python = shutil.which("py-spy", path=str(Path(sys.executable).parent))
    return beside_python or shutil.which("py-spy")


async def py_spy_dump(pid: int, options: list[str]) -> list[Message] | str:
    """The threads of a process of this host, in the agent's form; else the reason why not."""
    tool = _find_py_spy()
    if tool is None:
        return "py-spy is not installed (pip install py-spy)"
    child = await asyncio.create_subprocess_exec(
        tool,
        "dump",
        "--json",
        *options,
        "--pid",
        str(pid),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_PY_SPY_S):
            text, complaint = await child.communicate()
    except TimeoutError:
        return f"py-spy did not finish within {_PY_SPY_S:g} s"
    finally:
        if child.returncode is None:  # also when the client has left
            child.kill()
    if child.returncode:
        words = complaint.decode("utf-8", "replace").strip().splitlines()
        return f"py-spy: {words[-1] if words else 'failed'}"
    return _parse(text)


def _parse(text: bytes | str) -> list[Message] | str:
    """py-spy's JSON as the agent would have put it: the main thread first, the agent's own threads left out."""
    try:
        threads = [_thread(thread) for thread in json.loads(text)]
        users = [thread for thread in threads if not thread["thread"].startswith("rldbg-")]
        return sorted(users, key=lambda thread: not thread["main"])
    except (ValueError, KeyError) as error:
        return f"unexpected output of py-spy: {error}"


def _thread(thread: dict[str, Any]) -> Message:
    frames = [
        {"file": str(f.get("filename") or ""), "line": int(f.get("line") or 0), "function": str(f["name"])}
        for f in thread.get("frames") or []
    ]
    name = str(thread.get("thread_name") or thread.get("thread_id"))
    is_main = name == "MainThread" or thread.get("os_thread_id") == thread.get("pid")
    return {"thread": name, "main": is_main, "frames": frames}
