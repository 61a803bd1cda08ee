"""Files whose frames a debugger or this tool put on top of the user's."""

from rldbg.agent import TOOL_FILES

NOT_THE_USERS = (*TOOL_FILES, "/rldbg/agent/", "/rldbg/auto.py")
