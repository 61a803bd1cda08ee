"""torch.save files and plain pickles, read without torch and without running anything they ask for.

Tensors come back as numpy arrays that are views of the mapped file (EncodedArray for the dtypes numpy has not),
read-only and alive as long as they are used. Unknown classes come back as Opaque. See `rldbg.recording.formats`
for what a reader promises.
"""

from pathlib import Path
from typing import Any

import numpy as np

from rldbg.recording.formats.legacy_torch import MAGIC
from rldbg.recording.formats.malformed import Malformed, reading
from rldbg.recording.formats.mapped_file import file_bytes
from rldbg.recording.formats.opaque import Opaque
from rldbg.recording.formats.ragged_lists import ragged_from_lists
from rldbg.recording.formats.safe_unpickler import unpickle, unpickle_legacy
from rldbg.recording.formats.torch_rebuild import BITS, Storage, StorageClass, refuse_quantized
from rldbg.recording.formats.zip_archive import ZipArchive

__all__ = ["Opaque", "load_pickle", "load_pt", "ragged_from_lists", "verify_pt"]

_RESAVE_HINT = "load it once with torch, if you trust it, and save it again with torch.save"


def load_pt(source: Path | str | bytes, *, arrays: bool = False) -> Any:
    """The object in a torch.save file (or in its bytes), as plain data and numpy arrays.

    With `arrays`, lists of 32 or more numbers of one kind come as 1-D arrays (int64, float64, bool), many times faster.
    """
    with reading(_name_of(source)):
        data = _bytes_of(source)
        if _is_legacy(data):
            return unpickle_legacy(bytes(data), arrays=arrays)
        archive = _open_archive(data)
        pickled = _pickle_member(archive)
        if not archive.check(pickled):
            raise Malformed("its checksum does not match: data.pkl was changed after it was written")
        storages = _Storages(archive, pickled.removesuffix("data.pkl"))
        return unpickle(archive.read(pickled), storages, arrays=arrays)


def load_pickle(source: Path | str | bytes, *, arrays: bool = False) -> Any:
    """The object in a plain pickle, under the same rules as load_pt."""
    with reading(_name_of(source)):
        return unpickle(_bytes_of(source), arrays=arrays)


def verify_pt(path: Path) -> tuple[str, ...]:
    """The members whose bytes are not those their checksum was made of; reads the whole file.

    The format from before zip files has no checksums.
    """
    with reading(path):
        data = _bytes_of(path)
        if _is_legacy(data):
            return ()
        archive = _open_archive(data)
        return tuple(member for member in archive.members if not archive.check(member))


class _Storages:
    """Answers the persistent ids of torch.save: each names a storage by type, key and number of values."""

    def __init__(self, archive: ZipArchive, prefix: str) -> None:
        self._archive = archive
        self._prefix = prefix
        self._loaded: dict[str, Storage] = {}
        order = f"{prefix}byteorder"
        self._is_swapped = order in archive.members and bytes(archive.read(order)) == b"big"

    def __call__(self, pid: Any) -> Storage:
        if not isinstance(pid, tuple) or len(pid) < 5 or pid[0] != "storage":
            raise Malformed(f"an unknown persistent id: {pid!r:.60}")
        _, kind, key, _, count = pid[:5]
        if not isinstance(kind, StorageClass):
            return refuse_quantized() if "Q" in str(kind) else _unknown_storage(kind)
        if type(key) is not str or type(count) is not int or count < 0:
            raise Malformed(f"an unknown persistent id: {pid!r:.60}")
        if key not in self._loaded:
            self._loaded[key] = self._load(key, kind.dtype)
        storage = self._loaded[key]
        item_bytes = BITS[kind.dtype].itemsize if kind.dtype else 1
        if storage.dtype != kind.dtype or count * item_bytes > len(storage.data):
            raise Malformed(f"storage {key!r:.20} claims {count} values, but holds {len(storage.data)} bytes")
        return storage

    def _load(self, key: str, dtype: str) -> Storage:
        member = f"{self._prefix}data/{key}"
        if member not in self._archive.members:
            raise Malformed(f"storage {key!r:.20} is not in the file")
        data = np.frombuffer(self._archive.read(member), dtype=np.uint8)
        return Storage(data, dtype, self._is_swapped)


def _unknown_storage(kind: Any) -> Storage:
    raise Malformed(f"an unknown storage type: {kind!r:.60}")


def _name_of(source: Path | str | bytes) -> str:
    return "bytes in a pickle" if isinstance(source, bytes) else str(source)


def _bytes_of(source: Path | str | bytes) -> memoryview:
    return memoryview(source) if isinstance(source, bytes) else file_bytes(source)


def _is_legacy(data: memoryview) -> bool:
    return bytes(data[: len(MAGIC)]) == MAGIC


def _open_archive(data: memoryview) -> ZipArchive:
    head = bytes(data[:16])
    if head.startswith(b"PK"):
        return ZipArchive(data)
    if not head:
        raise Malformed("the file is empty", "the writer was stopped before it wrote anything: record the step again")
    if head.startswith(b"\x80"):
        raise Malformed("a raw pickle, not a torch.save file", _RESAVE_HINT)
    raise Malformed("not a torch.save file", "a .pt file of torch.save starts with PK; rldbg show DIR lists recordings")


def _pickle_member(archive: ZipArchive) -> str:
    found = [name for name in archive.members if name == "data.pkl" or name.endswith("/data.pkl")]
    if not found:
        raise Malformed("a zip file without data.pkl", "it is not a torch.save file; TorchScript archives are not data")
    return min(found, key=len)
