"""Ordered integers as runs of neighbours: 0 to 3, 5."""

from collections.abc import Iterable


def number_ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """First and last of each run."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found
