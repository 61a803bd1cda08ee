"""The recorder: the training thread only makes a copy, other threads write it, and no error can affect training."""

from rldbg.recording.recorder.checked_steps import WATCH_FOLDER, note_judged, remove_left, steps_removed_unchecked
from rldbg.recording.recorder.later import Later
from rldbg.recording.recorder.orders import forget_orders, give_orders, stop_step
from rldbg.recording.recorder.recorder import Recorder
from rldbg.recording.recorder.settings import RecorderSettings
