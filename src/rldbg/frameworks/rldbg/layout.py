"""Our own recordings; writer and reader of them stand together in `recording`."""

from rldbg.recording.layouts.rldbg import RldbgLayout

LAYOUT = RldbgLayout()
