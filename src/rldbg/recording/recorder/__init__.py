"""The recorder: the training thread pays for a snapshot, threads write it, nothing of it can harm training."""

from rldbg.recording.recorder.orders import WATCH_FOLDER, forget_orders, give_orders, note_judged, stop_step
from rldbg.recording.recorder.recorder import Recorder
from rldbg.recording.recorder.settings import RecorderSettings
