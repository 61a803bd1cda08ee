"""The journal of one writer process: whole lines in one write call, never rewritten.

What a reader can rely on after kill -9: every record handed over has an intent line, every file that has its name and
was finished in order has a done line with its size and checksum.
"""

import json
import os
import re
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from rldbg.core import Identity
from rldbg.recording.records import SCHEMA_VERSION, RecordKey

_ENCODE = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_encoded_kind = lru_cache(maxsize=256)(_ENCODE)


class Journal:
    """An append-only file of JSON lines; every method is one write."""

    def __init__(self, directory: Path, identity: Identity, format: str) -> None:
        folder = directory / "journal"
        folder.mkdir(parents=True, exist_ok=True)
        host = re.sub(r"[^A-Za-z0-9._-]", "_", identity.host) or "host"
        self.writer = f"{host}-{os.getpid()}-{time.time_ns()}"
        self.path = folder / f"{self.writer}.jsonl"
        self._before = ""
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._line(
            {
                "event": "open",
                "schema_version": SCHEMA_VERSION,
                "time": time.time(),
                "identity": identity.to_dict(),
                "format": format,
            }
        )

    def intent(self, ids: Sequence[int], key: RecordKey, rows: int) -> None:
        """One line a record; the micro-batch numbers of those after the first follow that of the key."""
        # Formatted by hand: this is written on the training thread.
        before = f'"key":[{_encoded_kind(key.kind)},{key.step},{key.rank}'
        after = f'{key.epoch},{key.mini_batch}],"rows":{rows}}}'
        lines = (f'{{"event":"intent","id":{id},{before},{key.micro + n},{after}' for n, id in enumerate(ids))
        self._write("\n".join(lines))

    def done(self, ids: Sequence[int], file: str, size: int, crc32: int) -> None:
        numbers = ",".join(map(str, ids))
        self._write(f'{{"event":"done","ids":[{numbers}],"file":{_ENCODE(file)},"size":{size},"crc32":{crc32}}}')

    def drop(self, ids: Sequence[int], reason: str) -> None:
        self._line({"event": "drop", "ids": ids, "reason": reason})

    def delete(self, file: str, reason: str) -> None:
        self._line({"event": "delete", "file": file, "reason": reason})

    def stop(self, reason: str) -> None:
        self._line({"event": "stop", "reason": reason})

    def close(self, *, release: bool) -> None:
        """The last line. The file is let go only if nobody can be about to write to it: numbers of files come again."""
        self._line({"event": "close", "time": time.time()})
        if release:
            os.close(self._descriptor)
            self._descriptor = -1

    def _line(self, event: dict[str, Any]) -> None:
        self._write(_ENCODE(event))

    def _write(self, text: str) -> None:
        line = (self._before + text + "\n").encode("utf-8", "backslashreplace")
        written = os.write(self._descriptor, line)
        self._before = ""
        if written != len(line):
            self._before = "\n"  # so that the next line is whole, if there is room for one
            raise OSError(f"only {written} of {len(line)} bytes fitted into {self.path.name}")
