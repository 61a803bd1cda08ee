"""Parquet, which needs pyarrow: the one place that imports it, and how its errors become ours."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rldbg.core import PrerequisiteError, explained_as
from rldbg.recording.formats.malformed import Malformed, reading


def pyarrow() -> Any:
    """The pyarrow package with its parquet module loaded."""
    message = "parquet needs pyarrow, which is not installed"
    with explained_as(PrerequisiteError, ImportError, message, "pip install 'rldbg[parquet]'"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow


def read_table(path: Path) -> Any:
    """The whole file as a pyarrow Table."""
    arrow = pyarrow()
    with reading(path), _as_malformed(arrow):
        # One thread: a pool of them costs more than it gains on dumps, and outlives the call.
        return arrow.parquet.read_table(path, use_threads=False)


def read_columns(path: Path) -> dict[str, list[Any]]:
    """The whole file as columns of plain Python values."""
    table = read_table(path)
    with reading(path):
        return {name: table.column(name).to_pylist() for name in table.column_names}


def count_rows(path: Path) -> int:
    """The number of rows, from the footer alone."""
    arrow = pyarrow()
    with reading(path), _as_malformed(arrow):
        return int(arrow.parquet.read_metadata(path).num_rows)


@contextmanager
def _as_malformed(arrow: Any) -> Iterator[None]:
    try:
        yield
    except arrow.ArrowException as error:
        raise Malformed(f"not a readable parquet file: {str(error)[:200]}") from error
