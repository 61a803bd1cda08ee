"""The last pass over the result of a pickle: placeholders become arrays, and data that would exhaust a reader is
refused.

A pickle may hold itself, nest without end, or name one list a million times; a few bytes then stand for more than
any reader can walk. Each container is visited once here, so this pass itself is bounded by the file.
"""

from typing import Any

import numpy as np

from rldbg.recording.formats.malformed import Malformed
from rldbg.recording.formats.numpy_rebuild import ArrayShell, DtypeShell
from rldbg.recording.formats.opaque import Opaque

_MAX_DEPTH = 100
_FREE_ITEMS = 1 << 24
_ITEMS_PER_BYTE = 16
_PLAIN = frozenset({int, float, str, bool, type(None), bytes, complex})


def settled(value: Any, size_bytes: int) -> Any:
    """The value with every shell replaced. `size_bytes` is how much of a file it was made from."""
    settling = _Settling(max(_FREE_ITEMS, _ITEMS_PER_BYTE * size_bytes))
    return settling.visit(value, 0)[0]


class _Settling:
    def __init__(self, max_items: int) -> None:
        self._max_items = max_items
        self._built_items = 0
        self._done: dict[int, tuple[Any, int, int]] = {}  # id: (settled value, items in all, height)
        self._open: set[int] = set()
        self._keep: list[Any] = []  # what was replaced must stay alive, or its id would be given to another object

    def visit(self, value: Any, depth: int) -> tuple[Any, int, int]:
        """The settled value, how many items it stands for when walked, and how deep it nests."""
        kind = type(value)
        if kind in _PLAIN:
            return value, 1, 0
        key = id(value)
        if key in self._done:
            return self._done[key]
        if depth > _MAX_DEPTH:
            raise Malformed(f"data nested deeper than {_MAX_DEPTH} levels")
        if key in self._open:
            if isinstance(value, Opaque):  # objects know their parents; data that holds itself is not data
                return repr(value), 1, 0
            raise Malformed("data that contains itself")
        self._open.add(key)
        result = self._container(value, depth + 1)
        self._open.discard(key)
        if result[1] > self._max_items:
            raise Malformed(f"a few bytes that stand for more than {self._max_items} items")
        if result[2] > _MAX_DEPTH:
            raise Malformed(f"data nested deeper than {_MAX_DEPTH} levels")
        self._done[key] = result
        self._keep.append(value)
        return result

    def _container(self, value: Any, depth: int) -> tuple[Any, int, int]:
        if isinstance(value, list):
            return self._list(value, depth)
        if isinstance(value, dict):
            count, height = 1, 0
            for key, item in value.items():
                _, key_count, key_height = self.visit(key, depth)
                new, item_count, item_height = self.visit(item, depth)
                if new is not item:
                    value[key] = new
                count += key_count + item_count
                height = max(height, key_height, item_height)
            return value, count, height + 1
        if isinstance(value, tuple):
            items, count, height = self._all(value, depth)
            return (
                (tuple(items) if any(a is not b for a, b in zip(items, value, strict=True)) else value),
                count,
                height,
            )
        if isinstance(value, set | frozenset):
            _, count, height = self._all(value, depth)
            return value, count, height
        if isinstance(value, Opaque):
            return self._opaque(value, depth)
        if isinstance(value, ArrayShell):
            array = value.build()
            self._built_items += array.size
            if self._built_items > self._max_items:
                raise Malformed(f"a few bytes that stand for more than {self._max_items} items")
            return self._array(array, depth)
        if isinstance(value, np.ndarray):
            return self._array(value, depth)
        if isinstance(value, DtypeShell):
            return value.dtype, 1, 0
        return value, 1, 0  # EncodedArray, numpy scalars, dates, classes: leaves

    def _list(self, value: list[Any], depth: int) -> tuple[Any, int, int]:
        if _PLAIN.issuperset(map(type, value)):
            return value, len(value) + 1, 1
        items, count, height = self._all(value, depth)
        value[:] = items
        return value, count, height

    def _all(self, values: Any, depth: int) -> tuple[list[Any], int, int]:
        items, count, height = [], 1, 0
        for value in values:
            item, item_count, item_height = self.visit(value, depth)
            items.append(item)
            count += item_count
            height = max(height, item_height)
        return items, count, height + 1

    def _opaque(self, value: Opaque, depth: int) -> tuple[Any, int, int]:
        args, args_count, args_height = self.visit(value.args, depth)
        kwargs, kwargs_count, kwargs_height = self.visit(value.kwargs, depth)
        state, state_count, state_height = self.visit(value.state, depth)
        items, items_count, items_height = self.visit(value.items, depth)
        entries, entries_count, entries_height = self.visit(value.entries, depth)
        value.args, value.kwargs, value.state, value.items, value.entries = args, kwargs, state, items, entries
        count = args_count + kwargs_count + state_count + items_count + entries_count
        return value, count, 1 + max(args_height, kwargs_height, state_height, items_height, entries_height)

    def _array(self, array: np.ndarray, depth: int) -> tuple[Any, int, int]:
        if array.dtype != object:
            return array, array.size, 1
        flat = array.reshape(-1)
        items, count, height = self._all(flat, depth)
        for index, item in enumerate(items):
            flat[index] = item
        return array, count, height
