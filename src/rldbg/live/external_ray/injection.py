"""Shows values in a worker that has no agent: modules of the agent are sent as source text and stay in memory."""

import json
from pathlib import Path
from typing import Any

import rldbg.agent
from rldbg.agent import Message
from rldbg.core import UsageError
from rldbg.live.broker.debug_session import DebugSession
from rldbg.live.broker.stop import Stop, fill_stop

_MODULES = ("values", "post_mortem_adapter", "async_tasks")
_PACKAGE = "_rldbg_lent"
_HOOK = "_debugpy_excepthook"
_TRANSLATED = frozenset({"stackTrace", "scopes", "variables", "evaluate", "exceptionInfo", "threads"})


def lending_expression() -> str:
    """One expression that makes the modules and leaves them on `sys`; harmless when evaluated twice."""
    folder = Path(rldbg.agent.__file__).parent
    sources = {name: (folder / f"{name}.py").read_text(encoding="utf-8") for name in _MODULES}
    program = f"""
import sys, types
if not hasattr(sys, "_rldbg_values"):
    package = types.ModuleType({_PACKAGE!r}); package.__path__ = []; sys.modules[{_PACKAGE!r}] = package
    for name, text in {sources!r}.items():
        module = types.ModuleType({_PACKAGE!r} + "." + name); module.__package__ = {_PACKAGE!r}
        sys.modules[module.__name__] = module
        exec(compile(text, "<rldbg " + name + ">", "exec"), module.__dict__)
        setattr(package, name, module)
    sys._rldbg_values = package.values
    sys._rldbg_async_tasks = package.async_tasks
    sys._rldbg_post_mortem_adapter = package.post_mortem_adapter
"""
    return f"__import__('builtins').exec({program!r}, {{}})"


async def prepare_stop(session: DebugSession, stop: Stop, frames: list[Message]) -> None:
    """Called at each stop of such a worker, before clients are told."""
    if not frames:
        return
    lend = {"expression": lending_expression(), "frameId": frames[0]["id"], "context": "repl"}
    await session.request("evaluate", lend)
    hook = next((frame for frame in frames if frame.get("name") == _HOOK), None)
    if hook is None:
        session.translation = None
        return
    # Ray's post-mortem through current debuggers shows the hook's own stack on Python 3.12; the exception is its local.
    translation = PostMortemAdapterInside(int(hook["id"]))
    await translation.prepare(session)
    session.translation = translation
    stop.reason = "exception"
    fill_stop(stop, (await session.request("stackTrace", {"threadId": stop.thread_id}))["stackFrames"])


class PostMortemAdapterInside:
    """Passes requests to an adapter over the exception's frames that lives in the worker, through evaluations."""

    commands = _TRANSLATED

    def __init__(self, hook_frame: int) -> None:
        self._hook_frame = hook_frame

    async def prepare(self, session: DebugSession) -> None:
        adapter = "__import__('sys')._rldbg_post_mortem_adapter.PostMortemAdapter(error[1])"
        await self._evaluate(session, f"setattr(__import__('sys'), '_rldbg_post_mortem', {adapter})")

    async def forward(self, session: DebugSession, command: str, arguments: dict[str, Any]) -> Message:
        request = json.dumps({"seq": 1, "type": "request", "command": command, "arguments": arguments})
        handled = f"__import__('sys')._rldbg_post_mortem.handle(__import__('json').loads({request!r}))[0]"
        result = await self._evaluate(session, f"__import__('sys')._rldbg_values.JsonText({handled})")
        try:
            response: Message = json.loads(result)
        except ValueError as error:
            raise UsageError(f"the worker's answer could not be read: {result[:200]}") from error
        return response

    async def _evaluate(self, session: DebugSession, expression: str) -> str:
        arguments = {"expression": expression, "frameId": self._hook_frame, "context": "watch"}
        response = await session.forward_untranslated("evaluate", arguments)
        if not response.get("success"):
            raise UsageError(str(response.get("message")))
        return str((response.get("body") or {}).get("result"))
