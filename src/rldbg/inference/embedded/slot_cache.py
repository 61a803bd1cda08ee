"""Keys and values of the sequences that are running, one row each, in tensors that stay where they are.

A row holds its tokens from column 0 on; what lies beyond its length is never read. Rows 0 .. count - 1 are in
use: a sequence that ends is replaced by the last one, so that a forward pass reads views, not copies.

Shapes in names: b rows, h heads, t columns, d head dimension.
"""

from typing import Any

_ROWS = 8
_COLUMNS = 64


class SlotCache:
    """Takes the place of transformers' cache: a model calls `update` once per layer in every forward pass."""

    def __init__(self) -> None:
        self.count = 0
        self.lengths: list[int] = []
        self._rows = 0
        self._columns = 0
        self._layers: list[tuple[Any, Any]] = []
        self._prefill: slice | None = None
        self._places: Any = None
        self._width = 0
        self.is_compileable = False

    # The interface that models and masks expect of a cache.

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0 if self._prefill is not None else self._width - 1

    def update(self, keys_bhtd: Any, values_bhtd: Any, layer_idx: int, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Stores what a layer computed; what it attends to is returned."""
        while len(self._layers) <= layer_idx:
            self._layers.append((self._room(keys_bhtd), self._room(values_bhtd)))
        keys, values = self._layers[layer_idx]
        if self._prefill is not None:
            length = keys_bhtd.shape[2]
            keys[self._prefill, :, :length] = keys_bhtd
            values[self._prefill, :, :length] = values_bhtd
            return keys_bhtd, values_bhtd
        rows, columns = self._places
        keys[rows, :, columns] = keys_bhtd[:, :, 0]
        values[rows, :, columns] = values_bhtd[:, :, 0]
        return keys[: self.count, :, : self._width], values[: self.count, :, : self._width]

    # The scheduler's side.

    def begin_prefill(self, lengths: list[int]) -> None:
        """New rows after the others; the next forward pass is their prompts, padded on the right."""
        start, self.count = self.count, self.count + len(lengths)
        self.lengths += lengths
        self._reserve(self.count, max(lengths) + 1)
        self._prefill = slice(start, self.count)

    def begin_decode(self, rows: Any, columns: Any) -> int:
        """The next forward pass is one token of every row, at these columns; how many columns it will read."""
        self._prefill = None
        self._width = max(self.lengths) + 1
        self._reserve(self.count, self._width)
        self._places = (rows, columns)
        self.lengths = [length + 1 for length in self.lengths]
        return self._width

    def remove(self, row: int) -> None:
        """Ends a row; the last one moves into its place."""
        self.count -= 1
        length = self.lengths.pop()
        if row != self.count:
            self.lengths[row] = length
            for keys, values in self._layers:
                keys[row, :, :length] = keys[self.count, :, :length]
                values[row, :, :length] = values[self.count, :, :length]
        if not self.count:
            self.clear()

    def clear(self) -> None:
        """Forgets everything and gives the memory back."""
        self.count, self.lengths = 0, []
        self._rows = self._columns = 0
        self._layers = []

    def _room(self, like: Any) -> Any:
        return like.new_zeros((self._rows, like.shape[1], self._columns, like.shape[3]))

    def _reserve(self, rows: int, columns: int) -> None:
        """Makes the tensors large enough, by doubling; what they hold is kept."""
        if rows <= self._rows and columns <= self._columns:
            return
        held_rows, held_columns = self._rows, self._columns
        self._rows = _grown(max(held_rows, _ROWS), rows)
        self._columns = _grown(max(held_columns, _COLUMNS), columns)
        layers = []
        for pair in self._layers:
            grown = [self._room(tensor) for tensor in pair]
            for new, old in zip(grown, pair, strict=True):
                new[:held_rows, :, :held_columns] = old
            layers.append((grown[0], grown[1]))
        self._layers = layers


def _grown(size: int, wanted: int) -> int:
    while size < wanted:
        size *= 2
    return size
