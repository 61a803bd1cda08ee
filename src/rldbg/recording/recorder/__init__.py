"""The recorder: the training thread only makes a copy, other threads write it, and no error can affect training."""

from rldbg.recording.recorder.later import Later
from rldbg.recording.recorder.orders import WATCH_FOLDER, forget_orders, give_orders, note_judged, stop_step
from rldbg.recording.recorder.recorder import Recorder
from rldbg.recording.recorder.settings import RecorderSettings
