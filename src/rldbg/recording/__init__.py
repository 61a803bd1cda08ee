"""The recorded plane: `Recorder` writes recordings, `open` reads ours and other frameworks'.

Names are loaded when they are first used: nothing here imports torch, and listing verbs import no writer.
"""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.recording.assembly import CannotAssemble, assemble, is_sharded, part_held
    from rldbg.recording.conversion import convert
    from rldbg.recording.dump_options import how_to_record
    from rldbg.recording.formats.batch_file import write_batch
    from rldbg.recording.formats.shared_lists import SharedLists
    from rldbg.recording.kinds import KINDS, Field, Kind, Mode, Scope, Shape, kinds_of
    from rldbg.recording.layouts import IDS_FROM, VALIDATION, Entry
    from rldbg.recording.recorder import (
        WATCH_FOLDER,
        Later,
        Recorder,
        RecorderSettings,
        forget_orders,
        give_orders,
        note_judged,
        remove_left,
        steps_removed_unchecked,
        stop_step,
    )
    from rldbg.recording.recording import Recording, open
    from rldbg.recording.records import (
        OTHER_MODEL,
        SCHEMA_VERSION,
        EncodedArray,
        Ragged,
        Record,
        RecordKey,
        prompt_lengths,
    )
    from rldbg.recording.run_life import RunLife
    from rldbg.recording.samples import Sample, SampleRow
    from rldbg.recording.settings import (
        DebugBlock,
        RolloutWorkerBlock,
        debug_block_from_environment,
        named_kinds,
        origins_of,
        parse_debug_block,
        parse_rollout_worker_block,
        record_overrides,
        recorder_settings,
    )
    from rldbg.recording.statistics import statistics_of
    from rldbg.recording.summary import Summary, sample_entries
    from rldbg.recording.token_columns import TokenColumns
    from rldbg.recording.token_text import TokenText, find_tokenizer
    from rldbg.recording.tree import FileFact, LocalTree, Tree, head
    from rldbg.recording.verification import is_unreadable_whole

__getattr__, __dir__ = lazy_names(__name__)
