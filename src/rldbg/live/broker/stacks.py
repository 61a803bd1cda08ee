"""Where one process is: its agent's word first, py-spy where the interpreter cannot answer or C frames are wanted."""

import os
from typing import Any

from rldbg.agent import Message, WireError
from rldbg.live.broker.processes import Process, ProcessTable
from rldbg.live.broker.py_spy import dump, parse

_PATIENCE_S = 3.0


async def stack_of(process: Process, everyone: ProcessTable, wanted: Message) -> Message:
    """The process's line in `ps`, with `threads`, `groups` and `flight_record`, or `unanswered` and the reason."""
    entry: dict[str, Any] = process.to_dict()
    if not process.is_alive:
        return entry | {"unanswered": "the process has ended"}
    found = await _ask_agent(process, wanted)
    if found.get("threads") and not wanted.get("native"):
        return entry | found
    threads = await _spy(process, everyone, wanted)
    if isinstance(threads, str):
        return entry | found | {"unanswered": f"{found.get('unanswered', '')}; {threads}".strip("; ")}
    return entry | {**found, "threads": threads, "unanswered": "", "source": "py-spy"}


async def _ask_agent(process: Process, wanted: Message) -> Message:
    if process.agent is None:
        return {"unanswered": "no agent"}
    body = {"locals": bool(wanted.get("locals")), "flight_record": bool(wanted.get("flight_record"))}
    try:
        answer: Message = await process.agent.request("stacks", body, timeout_s=_PATIENCE_S)
    except (WireError, TimeoutError) as error:
        return {"unanswered": str(error) or f"its interpreter did not answer within {_PATIENCE_S:g} s"}
    return answer


async def _spy(process: Process, everyone: ProcessTable, wanted: Message) -> list[Message] | str:
    pid, host = int(process.facts.get("pid") or 0), process.facts.get("host")
    options = ["--native"] * bool(wanted.get("native"))
    if host == os.uname().nodename:
        return await dump(pid, options)
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
    return parse(str(answer["threads"]))
