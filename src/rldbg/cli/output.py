"""The only place that prints. Results go to stdout, everything else to stderr.

`--json` output is faithful; in text, control characters that come from files are made visible.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, TextIO

import click

from rldbg.core import Environment

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

SCHEMA_VERSION = 1
QUIET = "rldbg.quiet"
STDOUT = "<stdout>"


def print_json(body: Mapping[str, Any]) -> None:
    """Print one JSON document on stdout."""
    _write_line(to_json(body), sys.stdout)


def to_json(body: Mapping[str, Any]) -> str:
    """The document that --json prints."""
    from rldbg.reports import json_text

    return json_text.to_json({"schema_version": SCHEMA_VERSION} | dict(body))


def show(document: Mapping[str, Any], as_json: bool, shown: "Callable[[], Iterable[RenderableType]]") -> None:
    """Print a result: its JSON document, or what `shown` makes of it for people, text by the line."""
    print_json(document) if as_json else print_all(shown())


def print_all(shown: "Iterable[RenderableType]") -> None:
    """Print what a report is made of: text by the line, anything else rendered."""
    for item in shown:
        print_line(item) if isinstance(item, str) else print_result(item)


def print_error(error: Mapping[str, str], *, as_json: bool) -> None:
    if as_json:
        _write_line(json.dumps({"error": dict(error)}), sys.stdout)
        return
    if error.get("kind") == "interrupted":
        _write_line(error["message"], sys.stderr)  # by the user: not an error
        return
    hint = f"\n  try: {visible(error['hint'])}" if error["hint"] else ""
    page = f"\n  see: rldbg help {error['topic']}" if error.get("topic") else ""
    _write_line(f"error: {visible(error['message'])}{hint}{page}", sys.stderr)


def console(*, stderr: bool = False) -> "Console":
    """A rich console for one stream; without any escapes if NO_COLOR is set or the stream is not a terminal."""
    from rich.console import Console

    plain = bool(Environment().text("NO_COLOR"))
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 120
    system: Literal["auto"] | None = None if plain else "auto"
    return Console(stderr=stderr, color_system=system, highlight=False, soft_wrap=False, width=width)


def print_result(renderable: "RenderableType") -> None:
    """Print a result on stdout; control characters in it are made visible."""
    with _naming_stdout():
        console().print(_Harmless(renderable), crop=False)


class _Harmless:
    """A renderable whose texts have their control characters made visible, and no blanks behind its lines; its own
    styles stay."""

    def __init__(self, renderable: "RenderableType") -> None:
        self._renderable = renderable

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[Segment]":
        from rich.segment import Segment

        for line in Segment.split_lines(console.render(self._renderable, options)):
            while line and not line[-1].control and not line[-1].text.rstrip(" "):
                line.pop()
            for segment in line:
                text = segment.text.rstrip(" ") if segment is line[-1] else segment.text
                yield segment if segment.control else Segment(visible(text), segment.style)
            yield Segment.line()


def print_line(text: str) -> None:
    """Print one line of a result on stdout."""
    _write_line(visible(text), sys.stdout)


def print_note(text: str) -> None:
    """Print progress or advice on stderr, unless --quiet was given."""
    if not is_quiet():
        _write_line(visible(text), sys.stderr)


def is_quiet() -> bool:
    """Whether --quiet was given to the verb that runs."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(QUIET))


def _write_line(text: str, stream: TextIO) -> None:
    """In one write, so that ranks that share a stream do not mix lines; and flushed, because a verb may run for hours
    afterwards."""
    with _naming_stdout() if stream is sys.stdout else nullcontext():
        stream.write(text + "\n")
        stream.flush()


@contextmanager
def _naming_stdout() -> Iterator[None]:
    """The system does not say that it is stdout that has no room."""
    try:
        yield
    except OSError as error:
        error.filename = STDOUT
        raise


def visible(text: str) -> str:
    """Text with control characters made visible, so that a file's content cannot drive the terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else f"\\x{ord(char):02x}" for char in text)
