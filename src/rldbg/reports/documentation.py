"""Pages of the documentation: their list, and one of them."""

from collections.abc import Mapping

from rich.console import RenderableType
from rich.markdown import Markdown

from rldbg.reports.tables import table


def titles_to_terminal(titles: Mapping[str, str]) -> RenderableType:
    return table("topic", "page", rows=titles.items())


def page_to_terminal(text: str) -> RenderableType:
    return Markdown(text, hyperlinks=False)
