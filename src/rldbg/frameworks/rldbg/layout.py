"""Our own recordings; their writer and reader are in `recording`."""

from rldbg.recording.layouts.rldbg import RldbgLayout

LAYOUT = RldbgLayout()
