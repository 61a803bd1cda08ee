"""The user's command as a child in our process group: signals are passed on, and its exit status is a shell's."""

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence

import psutil

from rldbg.core import PrerequisiteError

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_WAITED = {*_FORWARDED, signal.SIGCHLD}
# What SLURM and Kubernetes grant between SIGTERM and SIGKILL.
_GRACE_S = 30.0
# One request may come as two signals: of the terminal and of a shell or a launcher that passes it on.
_SAME_REQUEST_S = 0.1
# A program may answer Ctrl-C and go on (pdb, a prompt): one that comes much later asks anew.
_TERMINAL_AGAIN_S = 30.0
_FROM_TERMINAL = 0x80  # SI_KERNEL: the terminal sent it to the whole foreground group, the child included


def run_child(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    prepare: Callable[[], None] = lambda: None,
    started: Callable[[int], None] = lambda _pid: None,
    tick: Callable[[], None] = lambda: None,
    asked_to_end: Callable[[str], None] = lambda _name: None,
    left_over: Callable[[], Sequence[int]] = tuple,
    say: Callable[[str], None] = lambda _text: None,
    every_s: float = 0.5,
    output: tuple[int, int] = (1, 2),
) -> int:
    """Runs a command to its end and returns the status a shell would show: 128 + n after signal n.

    `output` are the descriptors it gets as standard output and error. `asked_to_end` is called with the name of each
    signal that asks the command to end. The second one ends it and all it has started at once: that is told
    as SIGKILL. `left_over` lists processes that the command has started and that outlive it.

    The child shares our process group, so that pdb on the terminal works. Signals are received by waiting for them,
    because only then is the sender known; threads that `prepare` starts inherit the blocked signals.
    """
    program = shutil.which(argv[0], path=environment.get("PATH"))
    if program is None:
        raise PrerequisiteError(f"command not found: {argv[0]!r}", "check the spelling and PATH")
    # `nohup` ignores SIGHUP, for us and the command alike.
    unheard = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED - unheard)
    try:
        prepare()
        actions = [(os.POSIX_SPAWN_DUP2, ours, theirs) for ours, theirs in zip(output, (1, 2), strict=True)]
        try:
            pid = os.posix_spawn(program, list(argv), dict(environment), setsigmask=before, file_actions=actions)
        except OSError as error:
            words = f"{program} cannot be started: {error.strerror}"
            raise PrerequisiteError(words, "check the interpreter that its first line names (#!)") from error
        started(pid)
        end = _End(pid, asked_to_end)
        code = _wait(pid, tick, end, every_s)
        if end.asked is not None:
            _end_left_over(left_over, end, every_s, say)
        return code
    finally:
        while signal.sigtimedwait(_WAITED, 0) is not None:
            continue
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _End:
    """What was asked of the command by signals, and everything it had started by then."""

    def __init__(self, pid: int, asked_to_end: Callable[[str], None]) -> None:
        self.asked: signal.Signals | None = None
        self.is_of_terminal = False
        self.kills = False
        self._command = psutil.Process(pid)
        self._asked_to_end = asked_to_end
        self._at = 0.0
        self._family: set[psutil.Process] = set()

    def take(self, number: int, code: int) -> bool:
        """One ending signal; whether it is a request of its own."""
        elapsed_s = time.monotonic() - self._at
        is_of_terminal = code == _FROM_TERMINAL
        # No terminal and no shell sends SIGTERM.
        is_apart = elapsed_s >= _SAME_REQUEST_S or number == signal.SIGTERM
        if self.asked == number and not is_apart:
            return False
        is_again = self.asked is not None and is_apart
        is_late = is_of_terminal and self.is_of_terminal and elapsed_s > _TERMINAL_AGAIN_S
        self.asked, self.is_of_terminal = signal.Signals(number), is_of_terminal
        self.look()
        kills = is_again and not is_late and not self.kills
        if kills:
            # Before anybody is told: the broker may be slow to answer.
            self._kill()
        self._asked_to_end(self.asked.name)
        if kills:
            self._asked_to_end(signal.SIGKILL.name)
        self._at = time.monotonic()
        return True

    def look(self) -> None:
        """Launchers put their ranks into sessions of their own: once the launcher is gone, nothing leads to them."""
        if self.asked is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._family.update(self._command.children(recursive=True))

    def kill(self) -> None:
        self._kill()
        self._asked_to_end(signal.SIGKILL.name)

    def _kill(self) -> None:
        self.kills = True
        self.look()
        for process in (self._command, *self._family):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def survivors(self) -> tuple[list[int], list[int]]:
        """What runs outside of our group although the command has ended: ranks of its launcher, and others."""
        group = os.getpgrp()
        alive = [each for each in self._family if _is_alive(each) and _group_of(each.pid) != group]
        ranks = [each.pid for each in alive if _is_rank(each)]
        return sorted(ranks), sorted(each.pid for each in alive if each.pid not in ranks)


def _wait(pid: int, tick: Callable[[], None], end: _End, every_s: float) -> int:
    """The exit status of the command."""
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            # A signal to the whole group (of a scheduler, the terminal) may have ended it before we took ours.
            while (info := signal.sigtimedwait(_ENDING, 0)) is not None:
                end.take(info.si_signo, info.si_code)
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        info = signal.sigtimedwait(_WAITED, every_s)
        end.look()
        if info is None:
            tick()
        elif info.si_signo in _ENDING:
            if end.take(info.si_signo, info.si_code) and not end.kills and info.si_code != _FROM_TERMINAL:
                os.kill(pid, info.si_signo)
        elif info.si_signo in _FORWARDED and info.si_code != _FROM_TERMINAL:
            os.kill(pid, info.si_signo)


def _end_left_over(
    left_over: Callable[[], Sequence[int]], end: _End, every_s: float, say: Callable[[str], None]
) -> None:
    """Passes the signal on to processes that have outlived the command and did not get it: those of our group, unless
    the terminal sent it to all of them, and ranks in sessions of their own. Other processes in groups of their own
    (daemons) were meant to outlive it, and are named. The next signal kills them."""
    told: set[int] = set()
    deadline = time.monotonic() + _GRACE_S
    while left := _to_end(left_over, end):
        if not told and not end.kills:
            say(f"the command has ended; ending what it has left: {_named(left)}")
        info = signal.sigtimedwait(_ENDING, every_s if told else 0)
        if info is not None:
            end.take(info.si_signo, info.si_code)
        if time.monotonic() > deadline and not end.kills:
            end.kill()
        for pid in left:
            if end.kills or pid not in told:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if end.kills else end.asked or signal.SIGTERM)
        if end.kills:
            break
        told.update(left)
    if not end.kills and (others := end.survivors()[1]):
        say(
            f"still running, in sessions of their own: {_named(others)}; to end them: kill {' '.join(map(str, others))}"
        )


def _to_end(left_over: Callable[[], Sequence[int]], end: _End) -> list[int]:
    group = os.getpgrp()
    ours = [] if end.is_of_terminal else [pid for pid in left_over() if _group_of(pid) == group]
    return [*ours, *end.survivors()[0]]


def _named(pids: Sequence[int]) -> str:
    words = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            words.append(f"{psutil.Process(pid).name()} (process {pid})")
    return ", ".join(words)


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _is_rank(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        return "RANK" in process.environ()
    return False


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None
