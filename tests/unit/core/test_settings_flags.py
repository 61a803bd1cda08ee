"""Settings that travel to another process as its command line."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from rldbg.core import UsageError, as_flags, read_flags, setting
from rldbg.inference.settings import ServerSettings
from rldbg.training_service import ServiceSettings


@dataclass(frozen=True, slots=True)
class Group:
    """A group."""

    name: str
    """Its name."""
    folder: Path | None = None
    """A folder."""
    count: int = setting(1, at_least=1)
    """How many."""
    mode: Literal["a", "b"] = "a"
    """Which."""
    quick: bool = False
    """Whether."""
    also: tuple[str, ...] = ()
    """More."""


@pytest.mark.parametrize(
    "settings",
    [
        Group("x"),
        Group("two words", Path("/a b"), 3, "b", True, ("one", "--two=2")),
        ServerSettings("tiny", Path("/s/0.ready"), "recording", recording=Path("/r"), nearest=True, port=80),
        ServiceSettings("tiny", Path("/s"), Path("/s/0.ready"), alias=("p", "q"), dtype="bfloat16", deterministic=True),
    ],
)
def test_what_is_written_is_read_again(settings):
    assert read_flags(type(settings), "p", as_flags(settings)) == settings


def test_defaults_are_left_out():
    assert as_flags(Group("x")) == ["--name=x"]
    assert as_flags(Group("x", quick=True, also=("a", "b"))) == ["--name=x", "--quick", "--also=a", "--also=b"]


def test_both_sides_refuse_what_is_not_a_setting(capsys):
    with pytest.raises(UsageError, match="invalid count: 0"):
        as_flags(Group("x", count=0))
    with pytest.raises(UsageError, match="invalid count: 0"):
        read_flags(Group, "p", ["--name", "x", "--count", "0"])
    for words in (["--count", "1"], ["--name", "x", "--mode", "c"], ["--name", "x", "--what"]):
        with pytest.raises(SystemExit):
            read_flags(Group, "p", words)
    with pytest.raises(SystemExit):
        read_flags(Group, "p", ["--help"])
    assert "How many." in capsys.readouterr().out
