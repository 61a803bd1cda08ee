"""Signals that end processes: who may have sent one, and what would prove it."""

import signal

_SIGNALLED = 128
"""What a shell adds to the number of the signal that ended a command."""
_WHO_SENDS = {
    signal.SIGKILL: "the kernel or the container for lack of memory, a scheduler, or a person: run "
    'dmesg -T | grep -iE "killed process|oom" on that node and cat /sys/fs/cgroup/memory.events in the container '
    "(oom_kill above 0 proves it)",
    signal.SIGTERM: "a scheduler (time limit, preemption), a launcher on another node, or a person: run "
    "sacct -j <job> --format=JobID,State,ExitCode,Elapsed,Timelimit or kubectl describe pod <pod>",
    signal.SIGBUS: "the kernel, for memory of a mapped file that is not there: df -h /dev/shm, which is too small "
    "in many containers (docker run --shm-size 16g, or --ipc=host)",
    signal.SIGABRT: "the process itself, in native code: its last output or a core dump; a driver of Ray that was sent "
    'SIGTERM ends so too, with "*** SIGTERM received" in its output: a scheduler, ray stop, a supervisor or a person',
    signal.SIGHUP: "the terminal or the SSH connection that closed: start the command in tmux, with nohup, or as a job",
}


def sender_of(exit_code: int) -> str:
    """For the signal that an exit code stands for; empty where it is none."""
    number = -exit_code if exit_code < 0 else exit_code - _SIGNALLED
    if number not in {each.value for each in signal.Signals}:
        return ""
    name = signal.Signals(number).name
    sent = _WHO_SENDS.get(signal.Signals(number), "the process itself, in native code: its last output or a core dump")
    return f"exit code {exit_code} is signal {number} ({name}); possible senders: {sent}"
