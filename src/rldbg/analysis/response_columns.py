"""In which columns of padded rows the responses of known samples are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rldbg.core import SampleId
from rldbg.recording import EncodedArray

# So much better a layout must fit for values to be taken from other columns than those declared.
_CLEARLY = 0.25


class Extent(NamedTuple):
    """How long a sample's sequence and its prompt are; where its response began in the padded record, and how wide that
    was (0 for ragged rows); the sequence, which of its tokens are trained on, and the engine's log probs of them."""

    length: int
    prompt: int
    column: int
    width: int
    tokens: np.ndarray
    trained: np.ndarray
    sampled: np.ndarray | None


Extents = Mapping[SampleId, Extent]


def sequence_starts(ids: np.ndarray, sequences: list[np.ndarray]) -> np.ndarray | None:
    """The first column from which each padded row holds its sample's tokens; None where a row does not hold them."""
    starts = []
    for row, tokens in zip(ids, sequences, strict=True):
        size = len(tokens)
        if not 0 < size <= len(row):
            return None
        likely = np.flatnonzero((row[: len(row) - size + 1] == tokens[0]) & (row[size - 1 :] == tokens[-1])).tolist()
        start = next((at for at in likely if np.array_equal(row[at : at + size], tokens)), None)
        if start is None:
            return None
        starts.append(start)
    return np.array(starts)


def is_one_early(trained: np.ndarray, starts: np.ndarray) -> bool:
    """Whether rows of a sequence's width hold the value of the token behind each column: most masks say so."""
    used = trained.any(axis=1)
    first = np.argmax(trained, axis=1)[used] - starts[used]
    return 2 * int(np.count_nonzero(first == -1)) > len(first)


def response_starts(trained: np.ndarray, prompt: np.ndarray, responses: np.ndarray, used: np.ndarray) -> np.ndarray:
    """The column in which each row's response begins.

    Prompts are padded on the left, and all responses begin in one column; or whole rows are, and all responses end in
    one; or rows are padded on the right. Most rows decide: a row whose mask lacks its first token is out of line with
    the others, and stays comparable.
    """
    first = np.argmax(trained, axis=1)
    best: np.ndarray = first
    most = 0
    for base in (np.zeros_like(prompt), -responses, prompt):
        behind, counts = np.unique((first - base)[used], return_counts=True)
        if counts.max() > most:
            best, most = base + behind[np.argmax(counts)], int(counts.max())
    return best


def layout(
    value: np.ndarray | EncodedArray, trained: np.ndarray | None, samples: Sequence[Extent]
) -> np.ndarray | None:
    """The column of each row's first response token, where rows cover whole sequences; None where nothing tells.

    A mask tells by being that of the trajectories. Without one the values do: log probs are those that the engine
    sampled with up to the engine's noise, and are 0 on padding, if anything is.
    """
    length, prompt = (np.array([sample[n] for sample in samples]) for n in range(2))
    if value.shape[1] <= (length - prompt).max():
        return None
    found = [(starts, _misfit(value, trained, starts, samples)) for starts in _layouts(value.shape[1], samples)]
    if not found:
        return None
    best, misfit = min(found, key=lambda item: item[1])
    return best if misfit < (np.inf if trained is None else 0.5) else None


def end_together(value: np.ndarray | EncodedArray, trained: np.ndarray | None, samples: Sequence[Extent]) -> bool:
    """Whether rows hold responses alone, padded on the left: if they began in column 0, some would be trained beyond
    their end, and none is if they end in the last one. Without a mask, values must fit clearly better."""
    responses = np.array([sample.length - sample.prompt for sample in samples])
    columns = value.shape[1]
    if columns < responses.max() or (responses == columns).all() or len(value) != len(samples):
        return False
    if trained is not None:
        places = np.arange(columns)[None]
        beyond = trained & (places >= responses[:, None])
        return bool(beyond.any() and not (trained & (places < columns - responses[:, None])).any())
    if columns > responses.max():  # prompts may be there as well
        return False
    begin, end = (_misfit(value, None, starts, samples) for starts in (0 * responses, columns - responses))
    return end < _CLEARLY * begin


def _layouts(columns: int, samples: Sequence[Extent]) -> Iterator[np.ndarray]:
    """Where responses may begin in rows of whole sequences, with or without a value for the first token."""
    length, prompt, column, width = (np.array([sample[n] for sample in samples]) for n in range(4))
    responses = length - prompt
    if ((width == columns) | (width == columns + 1)).all():  # as the trajectories
        yield column - (width - columns)
    if length.max() - columns in (0, 1):
        yield prompt - (length.max() - columns)  # padded on the right
        yield columns - responses  # padded on the left
    if prompt.max() + responses.max() - columns in (0, 1):  # prompts on the left, responses on the right
        yield np.full(len(samples), columns - responses.max())


def _misfit(
    value: np.ndarray | EncodedArray, trained: np.ndarray | None, starts: np.ndarray, samples: Sequence[Extent]
) -> float:
    """The share of rows whose mask is another than that of the trajectories; without a mask, how far values are from
    what the engine sampled with, or how many are 0."""
    if (starts < 0).any():
        return float("inf")
    dense = np.asarray(value) if trained is None else trained
    off = []
    for row, start, sample in zip(dense, starts.tolist(), samples, strict=True):
        used = sample.trained[sample.prompt :]
        part = row[start : start + len(used)]
        if len(part) < len(used):
            return float("inf")
        if trained is not None:
            off.append(float(not np.array_equal(part, used)))
        elif sample.sampled is not None:
            gap = np.abs(part - sample.sampled[sample.prompt :])[used]
            off += gap[np.isfinite(gap)].tolist()
        else:
            off += (part[used] == 0).tolist()
    return float(np.mean(off)) if off else float("inf")
