"""A client's connection to a broker: blocking requests, many at a time from many threads."""

import contextlib
import errno
import getpass
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

from rldbg.agent import (
    BrokerAddress,
    Connection,
    Peer,
    Refused,
    RequestFailed,
    WireError,
    ask_to_be_reached,
    dial,
)
from rldbg.core import ExitCode, IncompleteDataError, PrerequisiteError, RldbgError, UnreachableError, UsageError
from rldbg.live.broker_lock import is_held

# A broker checks twice per second whether it should listen on another address.
_WIDENING_S = 5.0
# `rldbg run` restarts a broker within two seconds, a busy host later.
_REPLACED_S = 10.0
_NO_ROUTE = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH})
_ERRORS: dict[str, type[RldbgError]] = {
    kind.kind: kind for kind in (UsageError, PrerequisiteError, IncompleteDataError, UnreachableError)
}


class BrokerError(RldbgError):
    """The broker could not do what was asked."""

    kind = "broker"
    exit_code = ExitCode.FINDING


def connect(run: Path, kind: str = "client", **about: Any) -> Connection:
    """A proven connection to the broker of a run. While `rldbg run` replaces a killed broker, to the next one; where
    no route leads to it, once it listens where one does."""
    began = time.monotonic()
    while True:
        seen = BrokerAddress.read(run)
        try:
            return _connect(run, kind, about)
        except UnreachableError as error:
            # Judged by what was there before the attempt: the next broker may have come since.
            has_changed = BrokerAddress.read(run) != seen
            is_cut_off = _is_cut_off(error, seen)
            if is_cut_off:
                ask_to_be_reached(run)
            patience_s = _WIDENING_S if is_cut_off else _REPLACED_S
            is_worth_a_wait = is_cut_off or has_changed or _is_being_replaced(run, seen)
            if time.monotonic() > began + patience_s or not is_worth_a_wait:
                raise
        time.sleep(0.05)


def _is_cut_off(error: UnreachableError, seen: BrokerAddress | None) -> bool:
    """Whether the network, and not the broker on another host, has refused the connection."""
    cause = error.__cause__
    is_elsewhere = seen is not None and seen.node not in ("", socket.gethostname())
    return is_elsewhere and isinstance(cause, OSError) and (isinstance(cause, TimeoutError) or cause.errno in _NO_ROUTE)


def is_being_replaced(run: Path) -> bool:
    """Whether the broker was killed, and the `rldbg run` that restarts it is alive."""
    return _is_being_replaced(run, BrokerAddress.read(run))


def _is_being_replaced(run: Path, address: BrokerAddress | None) -> bool:
    if address is None:
        # The file of the killed one is gone, that of the next is not there yet.
        return _facts(run).get("ended_at", 0.0) is None
    if address.node != socket.gethostname() or address.owner_pid in (0, os.getpid()):
        return False
    return Path(f"/proc/{address.owner_pid}").exists() and not is_held(run)


def _connect(run: Path, kind: str, about: dict[str, Any]) -> Connection:
    address = _address(run)
    try:
        return dial(address, kind=kind, token=address.token, about={"name": _name()} | about)
    except Refused as error:
        same = "use the same rldbg version on both sides"
        hint = same if "protocol" in str(error) else f"see which processes are there: rldbg ps --run {run}"
        raise PrerequisiteError(f"the broker of {run} refused: {error}", hint) from error
    except (OSError, WireError) as error:
        if _has_ended(run):
            raise UnreachableError(f"the run {run} has ended, and its broker with it", _what_is_left(run)) from error
        if isinstance(error, OSError) and error.errno in _NO_ROUTE:
            raise UnreachableError(
                f"the broker of {run} listens at {address.place}, out of reach from here: {error}",
                "start the run with an address that all its hosts reach: rldbg run --listen ADDRESS",
            ) from error
        if is_held(run):
            raise UnreachableError(
                f"the broker of {run} is running and does not answer: {error}",
                "it is stopped (Ctrl-Z, SIGSTOP) or its host is very busy: resume it, or wait and try again",
            ) from error
        raise UnreachableError(
            f"the broker of {run} does not answer at {address.place}: {error}",
            f"start a new one: rldbg broker start --run {run}; agents reconnect by themselves",
        ) from error


def _address(run: Path) -> BrokerAddress:
    """The broker's address. A broker on another host's loopback is asked to listen where this host can reach it."""
    deadline = time.monotonic() + _WIDENING_S
    while True:
        address = BrokerAddress.read(run)
        if address is None:
            raise UnreachableError(f"the run {run} has no live broker: {_since_when(run)}", _what_is_left(run))
        if not address.is_out_of_reach(socket.gethostname()):
            return address
        if time.monotonic() > deadline:
            raise UnreachableError(
                f"the broker of {run} listens on the loopback of {address.node} only",
                f"run this on {address.node}, or start the job with `rldbg run --listen ADDRESS`",
            )
        ask_to_be_reached(run)
        time.sleep(0.1)


def _has_ended(run: Path) -> bool:
    return _facts(run).get("ended_at") is not None


def _facts(run: Path) -> dict[str, Any]:
    """run.json; empty where there is none."""
    try:
        return dict(json.loads((run / "run.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _since_when(run: Path) -> str:
    if not run.is_dir():
        return "no such folder"
    return "it has ended, or was never started"


def _what_is_left(run: Path) -> str:
    crashes = sorted((run / "crashes").glob("*.json"), key=lambda file: file.stat().st_mtime)
    if crashes:
        return f"inspect its last crash: rldbg attach {crashes[-1]}"
    return "start a job in it: rldbg run --run DIR -- COMMAND; `rldbg ps` without --run finds live runs"


class BrokerClient:
    """Requests to one broker; use as a context manager."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self._peer = Peer(connect(run))
        threading.Thread(target=self._read, name="broker-client", daemon=True).start()

    def __enter__(self) -> "BrokerClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._peer.close()

    def request(self, op: str, timeout_s: float = 60.0, **body: Any) -> Any:
        """The broker's answer; its errors are raised as the same exception types."""
        try:
            return self._peer.request(op, body, timeout_s)
        except RequestFailed as error:
            kind = _ERRORS.get(str(error.answer.get("kind")), BrokerError)
            raise kind(str(error), str(error.answer.get("hint") or "")) from None
        except TimeoutError:
            raise UnreachableError(f"the broker did not answer {op} within {timeout_s:g} s") from None
        except WireError as error:
            raise UnreachableError(
                f"the connection to the broker was lost: {error}", f"`rldbg ps --run {self.run}` connects again"
            ) from error

    def _read(self) -> None:
        with contextlib.suppress(WireError):
            self._peer.serve()


def _name() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{os.uname().nodename}:{os.getpid()}"
