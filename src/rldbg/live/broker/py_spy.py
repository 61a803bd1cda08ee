"""Stacks from outside, for processes whose interpreter cannot answer: py-spy, where it is installed and allowed."""

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from rldbg.agent import Message

_TIMEOUT_S = 15.0


def find_py_spy() -> str | None:
    beside_python = shutil.which("py-spy", path=str(Path(sys.executable).parent))
    return beside_python or shutil.which("py-spy")


async def dump(pid: int, options: list[str]) -> list[Message] | str:
    """The threads of a process of this host, in the agent's form; else the reason why not."""
    tool = find_py_spy()
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
        async with asyncio.timeout(_TIMEOUT_S):
            text, complaint = await child.communicate()
    except TimeoutError:
        child.kill()
        return f"py-spy did not finish within {_TIMEOUT_S:g} s"
    if child.returncode:
        words = complaint.decode("utf-8", "replace").strip().splitlines()
        return f"py-spy: {words[-1] if words else 'failed'}"
    return parse(text)


def parse(text: bytes | str) -> list[Message] | str:
    """py-spy's JSON as the agent would have put it: the main thread first, the agent's own threads left out."""
    try:
        threads = [_thread(thread) for thread in json.loads(text)]
        users = [thread for thread in threads if not thread["thread"].startswith("rldbg-")]
        return sorted(users, key=lambda thread: not thread["main"])
    except (ValueError, KeyError) as error:
        return f"py-spy said something else than expected: {error}"


def _thread(thread: dict[str, Any]) -> Message:
    frames = [
        {"file": str(f.get("filename") or ""), "line": int(f.get("line") or 0), "function": str(f["name"])}
        for f in thread.get("frames") or []
    ]
    name = str(thread.get("thread_name") or thread.get("thread_id"))
    is_main = name == "MainThread" or thread.get("os_thread_id") == thread.get("pid")
    return {"thread": name, "main": is_main, "frames": frames}
