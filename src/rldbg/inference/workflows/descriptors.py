"""Room for thousands of connections: the limit of open files is raised as far as this user may."""

import resource

_A_CONNECTION = 4  # an agent's, the gate's, the server's, and one to spare
_OWN = 256


def room_for(concurrency: int) -> int:
    """How many connections may be open at once for that many episodes; beyond it requests wait for their turn."""
    wanted = _A_CONNECTION * concurrency + _OWN
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    available = wanted if soft == resource.RLIM_INFINITY else min(soft, wanted)
    return max((available - _OWN) // _A_CONNECTION, 8)
