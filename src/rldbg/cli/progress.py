"""Progress with a rate on a terminal, for work that takes more than two seconds; nothing in a pipe."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rldbg.cli.output import console, is_quiet

if TYPE_CHECKING:
    from rich.progress import Task

SHOWN_AFTER_S = 2.0


@contextmanager
def progress(what: str, unit: str, *, total: int | None = None, as_json: bool = False) -> Iterator[Callable[[], None]]:
    """Yields a function to call once per unit of work done, from any thread."""
    if as_json or is_quiet() or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TimeElapsedColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: "Task") -> Text:
            of = f" of {int(task.total):,}" if task.total is not None else ""
            rate = f", {task.speed:,.0f} per s" if task.speed else ""
            return Text(f"{int(task.completed):,}{of} {unit}{rate}")

    bar = (BarColumn(),) if total is not None else ()
    shown = Progress(
        SpinnerColumn(), what, *bar, Rate(), TimeElapsedColumn(), console=console(stderr=True), transient=True
    )
    task = shown.add_task(what, total=total)
    timer = threading.Timer(SHOWN_AFTER_S, shown.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda: shown.advance(task)
    finally:
        timer.cancel()
        timer.join()
        shown.stop()
