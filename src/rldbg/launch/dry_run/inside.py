"""The first program inside a dry run's sandbox: it sets up the isolation, then starts the script.

    python -m rldbg.launch.dry_run.inside SPECIFICATION.json

Tries, in this order: namespaces (nothing outside is even visible), Landlock (nothing can be written), an unprivileged
user (little can be written). Writes the one that worked to the status descriptor, as one JSON line, before the script
starts; if none works, the script is not started.
"""

import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rldbg.launch.dry_run import kernel, layers

_NOBODY = 65534
# Reading and changing files of other users, which is harmless on the throw-away layer (chown, override, search, owner).
_HARMLESS = frozenset({0, 1, 2, 3})
_NEW = kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC
_LINGER_S = 1.0
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


@dataclass(frozen=True)
class Specification:
    """What to start, and the folders that the sandbox may use."""

    argv: list[str]
    cwd: str
    environment: dict[str, str]
    scratch: str
    methods: list[str]
    status_fd: int
    script: str

    @property
    def results(self) -> Path:
        return Path(self.scratch) / "results"


def main() -> int:
    specification = Specification(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    failures: dict[str, str] = {}
    for name in specification.methods:
        code = _attempt(name, specification, failures)
        if code is not None:
            return code
    _say(specification, {"isolation": "none", "failures": failures})
    return 0


def _attempt(name: str, specification: Specification, failures: dict[str, str]) -> int | None:
    """The script's exit code under this isolation; None if the isolation is not available."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _guarded(lambda: _METHODS[name](specification, writing), writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        word = pipe.readline().decode(errors="replace").strip()
        if word == "map":
            _map_users(child)
            # The child waits for this; its own end of the pipe stays open for the verdict.
            os.kill(child, signal.SIGUSR1)
            word = pipe.readline().decode(errors="replace").strip()
    if word == "ready":
        _say(specification, {"isolation": name, "failures": failures})
        os.kill(child, signal.SIGUSR1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    failures[name] = word or "it ended without output"
    return None


def _guarded(enter: Callable[[], None], verdict: int) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        enter()
    except OSError as error:
        os.write(verdict, f"{error.filename or 'it'}: {error.strerror}\n".encode())
    finally:
        os._exit(125)


def _wait_for_parent() -> None:
    signal.sigwait({signal.SIGUSR1})


def _map_users(child: int) -> None:
    """Root keeps all users, so that files keep their owners; any other user may only map themselves."""
    user, group = os.geteuid(), os.getegid()
    for name, own in (("uid_map", user), ("gid_map", group)):
        whole = "0 0 4294967295"
        for line in (whole, f"{own} {own} 1") if user == 0 else (f"{own} {own} 1",):
            if line != whole:
                with contextlib.suppress(OSError):
                    Path(f"/proc/{child}/setgroups").write_text("deny", encoding="ascii")
            try:
                Path(f"/proc/{child}/{name}").write_text(line, encoding="ascii")
            except OSError:
                continue
            break


def _namespaces(specification: Specification, verdict: int) -> None:
    kernel.die_with_parent()
    kernel.unshare(_NEW)
    os.write(verdict, b"map\n")
    _wait_for_parent()
    first = os.fork()
    if first == 0:
        _guarded(lambda: _as_first_process(specification, verdict), verdict)
    os.close(verdict)
    _wait_for_parent()
    # The start signal goes to this process, which passes it on: the first process of a PID namespace is special.
    with contextlib.suppress(ProcessLookupError):
        os.kill(first, signal.SIGUSR1)
    os._exit(_shell_code(os.waitpid(first, 0)[1]))


def _as_first_process(specification: Specification, verdict: int) -> None:
    kernel.die_with_parent()
    _raise_loopback()
    scratch = Path(specification.scratch)
    own = [Path("/tmp"), Path("/var/tmp"), Path(specification.cwd), Path(specification.script).parent, Path.home()]
    root = layers.build(scratch / "layers", writable=own, shared=specification.results)
    kernel.enter_root(root)
    kernel.drop_capabilities(_HARMLESS)
    kernel.no_new_privileges()
    _start(specification, verdict)


def _raise_loopback() -> None:
    """127.0.0.1 exists inside, so that scripts which look for a free port find one; it leads nowhere."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        request = struct.pack("16sh22x", b"lo", 0)
        flags = struct.unpack("16sh22x", fcntl.ioctl(handle, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(handle, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | _IFF_UP))


def _landlock(specification: Specification, verdict: int) -> None:
    kernel.die_with_parent()
    devices = [f"/dev/{name}" for name in ("null", "zero", "full", "tty") if Path(f"/dev/{name}").exists()]
    kernel.landlock_forbid_writes([str(specification.results), *devices])
    specification.environment["RLDBG_DRY_KEEP_OTHERS"] = "1"
    _start(specification, verdict)


def _unprivileged(specification: Specification, verdict: int) -> None:
    if os.geteuid() != 0:
        raise OSError(0, "only root can become an unprivileged user")
    kernel.die_with_parent()
    os.chown(specification.results, _NOBODY, _NOBODY)
    os.chown(specification.results / "calls", _NOBODY, _NOBODY)
    os.setgroups([])
    os.setgid(_NOBODY)
    os.setuid(_NOBODY)
    kernel.no_new_privileges()
    if not os.access(specification.script, os.R_OK):
        raise OSError(0, f"the user nobody cannot read {specification.script}")
    _start(specification, verdict)


def _start(specification: Specification, verdict: int) -> None:
    os.chdir(specification.cwd)
    os.write(verdict, b"ready\n")
    os.close(verdict)
    _wait_for_parent()
    os._exit(_run(specification))


def _run(specification: Specification) -> int:
    """Runs the script to its end, and gives what it left in the background a moment to end as well."""
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        os.execvpe(specification.argv[0], specification.argv, specification.environment)
    code = 0
    deadline = float("inf")
    while time.monotonic() < deadline:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG if deadline != float("inf") else 0)
        except ChildProcessError:
            break
        if pid == child:
            code = _shell_code(status)
            deadline = time.monotonic() + _LINGER_S
        elif pid == 0:
            time.sleep(0.005)
    return code


def _shell_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def _say(specification: Specification, words: dict[str, Any]) -> None:
    os.write(specification.status_fd, json.dumps(words).encode() + b"\n")
    os.close(specification.status_fd)


_METHODS: dict[str, Callable[[Specification, int], None]] = {
    "namespaces": _namespaces,
    "landlock": _landlock,
    "unprivileged": _unprivileged,
}

if __name__ == "__main__":
    sys.exit(main())
