"""A recording made by hand, for tests that need its files and journal in a particular state."""

import numpy as np

from rldbg.core import Identity, SampleId
from rldbg.recording import Record, RecordKey
from rldbg.recording.formats import native
from rldbg.recording.formats.checksum import crc32_of
from rldbg.recording.journal import JournalWriter


class Writer:
    """A recording made by hand: files and journal lines in whatever state a test wants."""

    def __init__(self, root, identity=None):
        self.root = root
        self.journal = JournalWriter(root, identity or Identity(role="policy", host="elsewhere", pid=1), "safetensors")
        self._id = 0

    def intent(self, key, rows=2):
        self._id += 1
        self.journal.intent([self._id], key, rows)
        return self._id

    def close(self):
        self.journal.close(release=True)

    def file(self, *keys, samples=True, journaled=True):
        """One file with a record for each key; returns its path."""
        ids = [self.intent(key) for key in keys]
        rows = (SampleId("g0", 0), SampleId("g0", 1)) if samples else ()
        records = [Record(key, {"log_probs": np.zeros((2, 3), np.float32)}, rows, role="policy") for key in keys]
        path = self.root / keys[0].kind / f"step_{keys[0].step:06d}_rank{keys[0].rank}.safetensors"
        path.parent.mkdir(exist_ok=True)
        header, buffers = native.encode(records)
        path.write_bytes(header + b"".join(buffers))
        if journaled:
            self.journal.done(ids, path.relative_to(self.root).as_posix(), path.stat().st_size, crc32_of(path))
        return path


def key(step=0, rank=0, micro=0):
    return RecordKey("forward_data", step, rank, micro)
