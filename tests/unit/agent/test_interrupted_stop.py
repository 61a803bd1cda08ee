"""Ctrl-C while the debugger is being loaded is the program's: its traceback shows nothing of ours, and a program that
goes on can be stopped again."""

import socket
import sys
import traceback
from types import SimpleNamespace

import pytest

from rldbg.agent import debugger
from rldbg.agent.peer import Connection
from rldbg.agent.process import Agent
from rldbg.agent.settings import Settings


def _load_what_takes_long():
    raise KeyboardInterrupt


def test_the_traceback_ends_where_the_program_waits(tmp_path, monkeypatch):
    agent, told = Agent(Settings(run=tmp_path)), []
    monkeypatch.setattr("rldbg.agent.process.has_own_terminal", lambda: False)
    monkeypatch.setattr(agent, "_announced_stop", lambda *_: _load_what_takes_long())
    agent._link.abandon()
    link = SimpleNamespace(wait_connected=lambda _s: True, tell=lambda event, body: told.append((event, body["stop"])))
    monkeypatch.setattr(agent, "_link", link)
    with pytest.raises(KeyboardInterrupt) as raised:
        agent.stop(sys._getframe())
    shown = "".join(traceback.format_exception(raised.value))
    assert "_load_what_takes_long" not in shown and "During handling" not in shown
    assert told == [("stop_failed", 1)]


def test_a_session_that_was_interrupted_while_it_opened_is_over(tmp_path, monkeypatch):
    pairs = []

    def dial(_number):
        pairs.append(socket.socketpair())
        return Connection(pairs[-1][0])

    fails = [KeyboardInterrupt, RuntimeError]

    def connect(*_where, **_options):
        if fails:
            raise fails.pop(0)

    debugpy = SimpleNamespace(configure=lambda **_: None, connect=connect)
    monkeypatch.setattr(debugger, "load_debugpy", lambda _fallback: debugpy)
    made = debugger.Debugger(
        Settings(run=tmp_path),
        dial=dial,
        redial=lambda *_: None,
        why_none=lambda _at: "over",
        ended=lambda _number: None,
    )
    made.__dict__["_tracing"] = SimpleNamespace(arm=lambda _trace: None, disarm=lambda: None)
    with pytest.raises(KeyboardInterrupt):
        made.open()
    with pytest.raises(debugger.NoDebugger):
        made.open()
    assert made.open() == 3 and made.open() == 3
    relay, made._relay = made._relay, None
    relay.close()
    for near, far in pairs:
        near.close()
        far.close()
