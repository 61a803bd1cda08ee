"""A client's connection to a broker: blocking requests, many at a time from many threads."""

import getpass
import json
import os
import threading
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from rldbg.agent import BrokerAddress, Connection, Message, Refused, WireError, dial
from rldbg.core import ExitCode, IncompleteDataError, PrerequisiteError, RldbgError, UnreachableError, UsageError

_ERRORS: dict[str, type[RldbgError]] = {
    kind.kind: kind for kind in (UsageError, PrerequisiteError, IncompleteDataError, UnreachableError)
}


class BrokerError(RldbgError):
    """The broker could not do what was asked."""

    kind = "broker"
    exit_code = ExitCode.FINDING


def connect(run: Path, kind: str = "client", **about: Any) -> Connection:
    """A proven connection to the broker of a run."""
    address = BrokerAddress.read(run)
    if address is None:
        raise UnreachableError(f"the run {run} has no live broker: {_since_when(run)}", _what_is_left(run))
    try:
        return dial((address.host, address.port), kind=kind, token=address.token, about={"name": _name()} | about)
    except Refused as error:
        raise PrerequisiteError(f"the broker of {run} refused: {error}", "use the same rldbg on both sides") from error
    except (OSError, WireError) as error:
        if _has_ended(run):
            raise UnreachableError(f"the run {run} has ended, and its broker with it", _what_is_left(run)) from error
        raise UnreachableError(
            f"the broker of {run} does not answer at {address.host}:{address.port}: {error}",
            f"`rldbg broker start --run {run}` starts a new one; agents find it by themselves",
        ) from error


def _has_ended(run: Path) -> bool:
    try:
        return json.loads((run / "run.json").read_text(encoding="utf-8")).get("ended_at") is not None
    except (OSError, ValueError, AttributeError):
        return False


def _since_when(run: Path) -> str:
    if not run.is_dir():
        return "there is no such folder"
    return "it has ended, or was never started"


def _what_is_left(run: Path) -> str:
    crashes = sorted((run / "crashes").glob("*.json"), key=lambda file: file.stat().st_mtime)
    if crashes:
        return f"its last crash can still be looked at: rldbg attach {crashes[-1]}"
    return "start the job in it: rldbg run --run DIR -- COMMAND; `rldbg ps` without --run finds runs that live"


class BrokerClient:
    """Requests to one broker; use as a context manager."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self._connection = connect(run)
        self._sending = threading.Lock()
        self._answers: dict[int, SimpleQueue[Message]] = {}
        self._last_id = 0
        self._lost = ""
        threading.Thread(target=self._read, name="broker-client", daemon=True).start()

    def __enter__(self) -> "BrokerClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def request(self, op: str, timeout_s: float = 60.0, **body: Any) -> Any:
        """The broker's answer; its errors are raised as what they were there."""
        answers: SimpleQueue[Message] = SimpleQueue()
        with self._sending:
            self._last_id += 1
            number = self._last_id
            self._answers[number] = answers
            try:
                self._connection.send({"type": "request", "id": number, "op": op, "body": body})
            except WireError as error:
                raise UnreachableError(f"the broker is gone: {error}", f"`rldbg ps --run {self.run}` again") from error
        try:
            message = answers.get(timeout=timeout_s)
        except Empty:
            raise UnreachableError(f"the broker did not answer {op} within {timeout_s:g} s") from None
        finally:
            self._answers.pop(number, None)
        if message.get("ok"):
            return message.get("body")
        kind = _ERRORS.get(str(message.get("kind")), BrokerError)
        raise kind(str(message.get("error")), str(message.get("hint") or ""))

    def _read(self) -> None:
        try:
            while True:
                message = self._connection.receive()
                waiting = self._answers.get(int(message.get("id") or 0))
                if waiting is not None:
                    waiting.put(message)
        except WireError as error:
            for waiting in list(self._answers.values()):
                waiting.put({"ok": False, "kind": "unreachable", "error": f"the broker is gone: {error}"})


def _name() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{os.uname().nodename}:{os.getpid()}"
