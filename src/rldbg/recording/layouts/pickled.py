"""What layouts of torch.save files share: what their first bytes tell, and objects of unknown classes as data."""

import struct
from typing import Any

from rldbg.recording.formats.opaque import Opaque, OpaqueClass


def mentions(start: bytes, text: str) -> bool:
    """Whether a pickle names this string, as it writes a key of a mapping the first time.

    data.pkl is the first member of a torch.save file and is stored as it is, so its first bytes are the file's.
    """
    encoded = text.encode()
    long_form = b"X" + struct.pack("<I", len(encoded)) + encoded
    short_form = b"\x8c" + bytes([len(encoded)]) + encoded
    return long_form in start or short_form in start


def plain(value: Any) -> Any:
    """Data without stand-ins: an object of a class we do not know becomes a mapping of what it held."""
    if isinstance(value, Opaque):
        held = value.attributes() or {"args": list(value.args), **value.kwargs}
        return {"class": f"{value.module}.{value.name}"} | {str(key): plain(item) for key, item in held.items()}
    if isinstance(value, OpaqueClass):
        return f"{value.module}.{value.name}"
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
