"""Files whose frames a debugger or this tool put on top of the user's."""

NOT_THE_USERS = (
    "/debugpy/",
    "/pydevd",
    "/ray/util/rpdb.py",
    "/ray/util/debugpy.py",
    "/rldbg/agent/",
    "/rldbg/auto.py",
)
