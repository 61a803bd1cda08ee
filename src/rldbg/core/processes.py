"""Whether a process of this host still runs. Process ids are reused: the time of the start tells two apart."""

# The clock by which the system dates starts is coarse.
_COARSE_S = 1.0


def is_running(pid: int, known_since: float | None = None) -> bool:
    """Whether the process runs; one that has ended and was not waited for does not. `known_since` is a time at which it
    ran already: one that started later has the same id by chance."""
    import psutil

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return known_since is None or bool(process.create_time() <= known_since + _COARSE_S)
    except (psutil.NoSuchProcess, ValueError, OverflowError):
        return False
