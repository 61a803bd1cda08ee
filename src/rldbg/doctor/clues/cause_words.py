"""What a clue says of a cause: the words that stand for those of its entry."""

from typing import NamedTuple


class CauseWords(NamedTuple):
    """What is empty leaves the words of the entry; steps come before its own."""

    detail: str = ""
    title: str = ""
    title_zh: str = ""
    cause: str = ""
    fix: tuple[str, ...] = ()
    is_whole: bool = False
    """Whether the steps are all there are to do."""
