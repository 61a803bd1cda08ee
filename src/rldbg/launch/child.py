"""The command that is run: started with our terminal, told of every signal that it would not get itself, waited for."""

import os
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence

from rldbg.core import PrerequisiteError

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_WAITED = {*_FORWARDED, signal.SIGCHLD}
_FROM_TERMINAL = 0x80  # SI_KERNEL: the terminal sent it to the whole foreground group, the child included


def run_child(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    prepare: Callable[[], None] = lambda: None,
    started: Callable[[int], None] = lambda _pid: None,
    tick: Callable[[], None] = lambda: None,
    every_s: float = 0.5,
    output: tuple[int, int] = (1, 2),
) -> int:
    """Runs a command to its end and returns the status a shell would show: 128 + n after signal n.

    `output` are the descriptors it gets as standard output and error.

    The child shares our process group, so that pdb on the terminal works. Signals are taken by waiting for them,
    because only then is it known who sent them; threads that `prepare` starts inherit that they are not disturbed.
    """
    program = shutil.which(argv[0], path=environment.get("PATH"))
    if program is None:
        raise PrerequisiteError(f"there is no command {argv[0]!r} on this machine", "check the spelling and PATH")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
    try:
        prepare()
        actions = [(os.POSIX_SPAWN_DUP2, ours, theirs) for ours, theirs in zip(output, (1, 2), strict=True)]
        pid = os.posix_spawn(program, list(argv), dict(environment), setsigmask=before, file_actions=actions)
        started(pid)
        return _wait(pid, tick, every_s)
    finally:
        while signal.sigtimedwait(_WAITED, 0) is not None:
            continue
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(pid: int, tick: Callable[[], None], every_s: float) -> int:
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        info = signal.sigtimedwait(_WAITED, every_s)
        if info is None:
            tick()
        elif info.si_signo in _FORWARDED and info.si_code != _FROM_TERMINAL:
            os.kill(pid, info.si_signo)
