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
    every_s: float = 0.5,
    output: tuple[int, int] = (1, 2),
) -> int:
    """Runs a command to its end and returns the status a shell would show: 128 + n after signal n.

    `output` are the descriptors it gets as standard output and error. `asked_to_end` is called with the name of each
    signal that asks the command to end. `left_over` lists processes that the command has started and that outlive it.

    The child shares our process group, so that pdb on the terminal works. Signals are received by waiting for them,
    because only then is the sender known; threads that `prepare` starts inherit the blocked signals.
    """
    program = shutil.which(argv[0], path=environment.get("PATH"))
    if program is None:
        raise PrerequisiteError(f"command not found: {argv[0]!r}", "check the spelling and PATH")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
    try:
        prepare()
        actions = [(os.POSIX_SPAWN_DUP2, ours, theirs) for ours, theirs in zip(output, (1, 2), strict=True)]
        try:
            pid = os.posix_spawn(program, list(argv), dict(environment), setsigmask=before, file_actions=actions)
        except OSError as error:
            words = f"{program} cannot be started: {error.strerror}"
            raise PrerequisiteError(words, "check the interpreter that its first line names (#!)") from error
        started(pid)
        code, asked = _wait(pid, tick, asked_to_end, every_s)
        if asked is not None:
            _end_left_over(left_over, asked, every_s)
        return code
    finally:
        while signal.sigtimedwait(_WAITED, 0) is not None:
            continue
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(
    pid: int, tick: Callable[[], None], asked_to_end: Callable[[str], None], every_s: float
) -> tuple[int, signal.Signals | None]:
    """The exit status, and the signal by which somebody other than the terminal asked for the end."""
    asked = None
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            # A signal to the whole group (of a scheduler, the terminal) may have ended it before we took ours.
            while (info := signal.sigtimedwait(_ENDING, 0)) is not None:
                asked_to_end(signal.Signals(info.si_signo).name)
                if info.si_code != _FROM_TERMINAL:
                    asked = signal.Signals(info.si_signo)
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code, asked
        info = signal.sigtimedwait(_WAITED, every_s)
        if info is not None and info.si_signo in _ENDING:
            asked_to_end(signal.Signals(info.si_signo).name)
        if info is None:
            tick()
        elif info.si_signo in _FORWARDED and info.si_code != _FROM_TERMINAL:
            if info.si_signo == signal.SIGTERM and asked == signal.SIGTERM:
                # The first SIGTERM left the command time to end by itself.
                _kill_tree(pid)
            else:
                os.kill(pid, info.si_signo)
            if info.si_signo in _ENDING:
                asked = signal.Signals(info.si_signo)


def _end_left_over(left_over: Callable[[], Sequence[int]], asked: signal.Signals, every_s: float) -> None:
    """Passes the signal on to processes that have outlived the command. It was sent to us alone: those of our group are
    the run's own, those in groups of their own (daemons) were meant to outlive it. The next signal kills them."""
    group = os.getpgrp()
    told: set[int] = set()
    deadline = time.monotonic() + _GRACE_S
    while left := [pid for pid in left_over() if _group_of(pid) == group]:
        again = signal.sigtimedwait(_ENDING, every_s if told else 0)
        kills = again is not None or time.monotonic() > deadline
        for pid in left:
            if kills or pid not in told:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if kills else asked)
        if kills:
            return
        told.update(left)


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _kill_tree(pid: int) -> None:
    processes = [psutil.Process(pid)]
    processes += processes[0].children(recursive=True)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
