"""Small text files that other processes read while they are written again."""

import os
from pathlib import Path


def write_whole(file: Path, text: str, *, mode: int = 0o666) -> None:
    """Writes under another name and renames: a file of this name is never seen half written. The umask applies."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with open(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
    temporary.replace(file)
