"""The recorded plane: `Recorder` writes recordings, `open` reads ours and other frameworks'.

Names are loaded when they are first used: nothing here imports torch, and listing verbs import no writer.
"""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.recording.batch_file import write_batch
    from rldbg.recording.kinds import KINDS, Field, Kind, Mode, Scope, Shape, kinds_of
    from rldbg.recording.layouts import IDS_FROM, VALIDATION, Entry
    from rldbg.recording.recorder import Recorder, RecorderSettings
    from rldbg.recording.recording import Recording, open
    from rldbg.recording.records import SCHEMA_VERSION, EncodedArray, Ragged, Record, RecordKey
    from rldbg.recording.samples import Sample, SampleRow
    from rldbg.recording.settings import (
        DebugBlock,
        debug_block_from_environment,
        parse_debug_block,
        parse_rollout_worker_block,
        recorder_settings,
    )
    from rldbg.recording.summary import Summary

__getattr__, __dir__ = lazy_names(__name__)
