"""What to read: files, folders, globs, a run folder, a Ray session directory, `-` for a pipe, `.gz`.

A file that cannot be read becomes a finding; the others are still read.
"""

import glob
import gzip
import io
import json
import os
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from rldbg.core import Finding, IncompleteDataError, Severity
from rldbg.doctor.logs.cleaning import Speaker
from rldbg.doctor.logs.clock import stated_year
from rldbg.doctor.logs.newest_first import TurnedLog, is_newest_first
from rldbg.doctor.logs.run_evidence import crash_speaker, crash_text, is_crash_file, without_reports

CHUNK_BYTES = 4 << 20
MARGIN_BYTES = 1 << 16
_UNPACKED = 1 << 10
_COUNTED = 1 << 18
"""Every place that is looked at has at least this much text on both sides, or the file's end."""

_NO_LOG = re.compile(
    r"\.(?:pth?|bin|safetensors|npy|npz|parquet|arrow|onnx|gguf|pkl|pickle|png|jpe?g|gif|pdf|mp4|so|o|a|pyc|whl|zip|tar|tgz"
    r"|zst|xz|bz2|nsys-rep|qdrep|qdstrm|sqlite|db|lock|pid|sock|ya?ml|toml|py|md|sh|cfg|ini|rst|html)"
)
_OF_BROKER = frozenset(("broker.json", "breakpoints.json", "exception_holds.json"))
_NOT_LOGS = _OF_BROKER | {"run.json", "run_settings.json", "functions.sh", "metrics.jsonl", "ray_current_cluster"}
_OF_A_RUN = frozenset(("armed", "stacks", "profiles", "reports"))
"""Folders of a run that hold no logs; its reports quote them."""
_RAY_WORKER = re.compile(r"(?:python-core-)?worker-(?P<id>[0-9a-f]{20,})-[0-9a-f]*-?(?P<pid>\d+)\.")
_RANK_NAME = re.compile(r"(?:^|[._/-])rank[_-]?(\d+)(?=[._/-]|$)")
_NODE_NAME = re.compile(r"(?:^|/)(?:node[_-]?)?(\d{1,3}(?:\.\d{1,3}){3}|node[_-]?\w+|host[_-]?\w+)(?=/|$|[._-])")
_DUMP_NAME = re.compile(r"^(?:_dump_|nccl_trace_rank_|comm_lib_trace_rank_)\d+$")


_HEAD_BYTES = 1 << 14


@dataclass(frozen=True, slots=True)
class LogSource:
    """One log: where it is, and what its name says about its writer."""

    path: Path | None
    """None is standard input."""
    speaker: Speaker = field(default_factory=Speaker)

    @property
    def name(self) -> str:
        return "<stdin>" if self.path is None else str(self.path)

    @property
    def year(self) -> int:
        """The year of stamps that have none: that of the file's last change."""
        moment = datetime.now(UTC) if self.path is None else datetime.fromtimestamp(self.path.stat().st_mtime, UTC)
        return moment.year

    @property
    def stated_year(self) -> int:
        """The year that the first lines of the log state, or 0; a pipe cannot be looked into."""
        if self.path is None:
            return 0
        try:
            with self.open() as stream:
                return stated_year(stream.read(MARGIN_BYTES))
        except (OSError, EOFError, zlib.error):
            return 0

    @property
    def size(self) -> int:
        if self.path is None:
            return 0
        return len(crash_text(self.path)) if is_crash_file(self.path) else self.path.stat().st_size

    def open(self) -> BinaryIO:
        if self.path is None:
            return sys.stdin.buffer
        if is_crash_file(self.path):
            return io.BytesIO(crash_text(self.path))
        with open(self.path, "rb", buffering=0) as raw:
            head = raw.read(_HEAD_BYTES)
            packed = head[:2] == b"\x1f\x8b"
            if not packed and is_newest_first(head, os.fstat(raw.fileno()).st_size):
                return TurnedLog(head + raw.readall())
        # A GzipFile closes only a file that it opened itself.
        return gzip.GzipFile(self.path) if packed else open(self.path, "rb", buffering=0)  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a log. Places in [begin, end) belong to it; the rest is margin shared with its neighbours."""

    data: bytes | bytearray
    offset: int
    """Where `data` begins in the log."""
    begin: int
    end: int
    first_line: int
    """The number of the line in which `data` begins, counted from 1."""
    is_last: bool


def chunks(stream: BinaryIO) -> Iterator[Chunk]:
    """The log in overlapping pieces, in flat memory. A damaged gzip gives what could be unpacked, then raises.

    All pieces share one buffer: a piece is valid until the next one is asked for.
    """
    buffer = bytearray(2 * MARGIN_BYTES + CHUNK_BYTES)
    filled = offset = begin = 0
    first_line = 1
    wide: str | None = None
    while True:
        fresh, damage = _fill(stream, buffer, filled)
        if offset == 0 and filled == 0:
            wide = _utf16(buffer)
        if wide:
            yield from _narrowed(stream, wide, bytes(buffer[:fresh]))
            return
        filled += fresh
        data = buffer if filled == len(buffer) else buffer[:filled]
        is_last = filled < len(buffer) or damage is not None
        end = filled if is_last else filled - MARGIN_BYTES
        yield Chunk(data, offset, begin, end, first_line, is_last)
        if damage is not None:
            raise damage
        if is_last:
            return
        keep = end - MARGIN_BYTES
        first_line += _newlines(data, keep)
        buffer[: filled - keep] = buffer[keep:filled]
        filled, offset, begin = filled - keep, offset + keep, end - keep


def _fill(stream: BinaryIO, buffer: bytearray, start: int) -> tuple[int, Exception | None]:
    """Fills the rest of the buffer, or less only at the end or where the log is damaged: pipes deliver in pieces.

    A gzip is unpacked in small pieces, because the piece in which the damage lies is lost as a whole.
    """
    view = memoryview(buffer)
    at = start
    reader: object = stream
    piece = _UNPACKED if isinstance(reader, gzip.GzipFile) else len(buffer)
    try:
        while at < len(buffer):
            count = stream.readinto(view[at : at + piece])  # type: ignore[attr-defined]
            if not count:
                break
            at += count
    except (OSError, EOFError, zlib.error) as error:
        return at - start, error
    return at - start, None


def _narrowed(stream: BinaryIO, encoding: str, head: bytes) -> Iterator[Chunk]:
    """A log in UTF-16, as some shells on Windows write it: read whole, it is never large."""
    text = (head + stream.read()).decode(encoding, "replace").encode()
    yield Chunk(bytearray(text), 0, 0, len(text), 1, is_last=True)


def _newlines(data: bytearray, end: int) -> int:
    import numpy as np

    view = np.frombuffer(data, dtype=np.uint8, count=end)
    return sum(int(np.count_nonzero(view[at : at + _COUNTED] == 10)) for at in range(0, end, _COUNTED))


def _utf16(head: bytearray) -> str | None:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16-le" if head[0] == 0xFF else "utf-16-be"
    return None


@dataclass(frozen=True, slots=True)
class Found:
    """The result of looking for logs."""

    sources: tuple[LogSource, ...]
    dump_folders: tuple[Path, ...]
    """Folders with flight-recorder dumps of torch."""
    stacks: tuple[Path, ...]
    """Files with the stacks of all ranks that a run kept."""
    findings: tuple[Finding, ...]


def find_sources(paths: Sequence[str | Path], *, or_none: bool = False) -> Found:
    """Every log under the given paths; IncompleteDataError when there is none at all, unless that may be."""
    sources: list[LogSource] = []
    dumps: list[Path] = []
    stacks: list[Path] = []
    findings: list[Finding] = []
    for path in paths:
        if str(path) == "-":
            sources.append(LogSource(None))
            continue
        matches = [Path(path)] if os.path.lexists(path) else _expanded(str(path))
        if not matches:
            raise IncompleteDataError(f"{path} does not exist", "check the path; quote globs, or give a folder")
        for match in matches:
            for part in (match, *_ray_logs_of(match)):
                _collect(part, sources, dumps, findings)
            stacks += sorted(match.glob("stacks/*.json")) if _is_run(match) else []
    unique = {(os.path.realpath(source.path) if source.path else None): source for source in sources}
    if not unique and not dumps and not findings and not or_none:
        raise IncompleteDataError(
            f"no log files under {', '.join(map(str, paths))}", "give the files: rldbg doctor FILE..."
        )
    crashes = [source.path for source in unique.values() if source.path and is_crash_file(source.path)]
    told = {*crashes} - {*without_reports(crashes)}
    read = tuple(source for source in unique.values() if source.path not in told)
    return Found(read, tuple(dict.fromkeys(dumps)), tuple(stacks), tuple(findings))


def _is_run(path: Path) -> bool:
    return (path / "run.json").is_file()


def _ray_logs_of(path: Path) -> list[Path]:
    """Where Ray wrote the logs of a run, as far as they are still there."""
    if not _is_run(path):
        return []
    try:
        named = json.loads((path / "run.json").read_text(encoding="utf-8")).get("ray_logs") or []
        return [Path(name) for name in named if Path(name).exists()]
    except (OSError, ValueError, AttributeError, TypeError):
        return []


def _expanded(pattern: str) -> list[Path]:
    return [Path(name) for name in sorted(glob.glob(pattern, recursive=True))]  # noqa: PTH207 - absolute patterns too


def _collect(path: Path, sources: list[LogSource], dumps: list[Path], findings: list[Finding]) -> None:
    if not path.is_dir():
        sources.append(_source(path, path.name))
        return

    def refuse(error: OSError) -> None:
        findings.append(unreadable(str(error.filename), error))

    for folder, subfolders, names in os.walk(path, onerror=refuse):
        subfolders.sort()
        subfolders[:] = [
            name for name in subfolders if name not in ("recording", ".git", "__pycache__", "runtime_resources")
        ]
        if "run.json" in names:
            subfolders[:] = [name for name in subfolders if name not in _OF_A_RUN]
        if sum(1 for name in names if _DUMP_NAME.match(name)) >= 1:
            dumps.append(Path(folder))
        for name in sorted(names):
            file = Path(folder, name)
            if not _DUMP_NAME.match(name) and _looks_like_log(file):
                sources.append(_source(file, str(file.relative_to(path.parent))))


def _looks_like_log(file: Path) -> bool:
    suffix = Path(file.name[:-3]).suffix if file.name.endswith(".gz") else file.suffix
    return not _NO_LOG.fullmatch(suffix.lower()) and file.name not in _NOT_LOGS and file.is_file()


def _source(path: Path, shown: str) -> LogSource:
    if is_crash_file(path):
        return LogSource(path, crash_speaker(path))
    worker = _RAY_WORKER.search(path.name)
    rank = _RANK_NAME.search(shown)
    node = _NODE_NAME.search(str(Path(shown).parent) if "/" in shown else "")
    return LogSource(
        path,
        Speaker(
            name=path.name.split(".")[0] if path.name.startswith(("raylet", "gcs_server", "dashboard")) else "",
            pid=worker["pid"] if worker else "",
            node=node[1] if node else "",
            rank=rank[1] if rank else "",
        ),
    )


def unreadable(name: str, error: Exception) -> Finding:
    """The finding for a log that could not be read, or not to its end."""
    if isinstance(error, PermissionError):
        fix = f"run as the user who owns it, or: sudo chmod a+r {name}"
    elif isinstance(error, EOFError | zlib.error | gzip.BadGzipFile):
        fix = "copy the file again from its node; what could be unpacked was read"
    else:
        fix = "check the file and give it again"
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return Finding("log-unreadable", Severity.WARNING, name, (reason,), "this log was not read to its end", (fix,))
