"""`rldbg help`: the documentation, which is part of the package and needs no network."""

import re
import sys
from difflib import get_close_matches
from pathlib import Path

import click

from rldbg.cli.application import verb
from rldbg.cli.output import print_json, print_line, print_result
from rldbg.cli.verbs import VERBS, documentation
from rldbg.core import UsageError


@verb("help")
@click.argument("topic", required=False)
@click.option("--path", "only_path", is_flag=True, help="Print where the page is instead of its text.")
def command(topic: str | None, only_path: bool, as_json: bool) -> None:
    """Read a page of the documentation: of a verb, a problem (`hangs`), a framework, or any other.

    Without TOPIC, list all pages.

    \b
    rldbg help hangs     a problem
    rldbg help compare   a verb
    """
    from rldbg.reports.documentation import page_to_terminal, titles_to_terminal

    pages = topics()
    if topic is None:
        titles = {name: title_of(page) for name, page in pages.items()}
        print_json({"pages": titles}) if as_json else print_result(titles_to_terminal(titles))
        return
    page = _find(topic, pages)
    text = re.sub(r"<!--.*?-->\s*", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    if as_json:
        print_json({"topic": topic, "path": str(page), "text": text})
    elif only_path:
        print_line(str(page))
    elif sys.stdout.isatty():
        print_result(page_to_terminal(text))
    else:
        print_line(text.rstrip("\n"))


def topics() -> dict[str, Path]:
    """Every page by its name below the documentation's folder, without its ending."""
    folder = documentation()
    pages = {str(page.relative_to(folder).with_suffix("")): page for page in folder.rglob("*.md")}
    return dict(sorted(pages.items()))


def title_of(page: Path) -> str:
    with page.open(encoding="utf-8") as file:
        return next((line[2:].strip() for line in file if line.startswith("# ")), page.stem)


def _find(topic: str, pages: dict[str, Path]) -> Path:
    """By name, by verb, or by the last part of a name."""
    name = topic.strip().removesuffix(".md").lower()
    of_verb = {each.name: each.topic for each in VERBS}
    names = [name, of_verb.get(name, name), *(full for full in pages if full.rpartition("/")[2] == name)]
    found = next((pages[each] for each in names if each in pages), None)
    if found is None:
        near = get_close_matches(name, [*pages, *(full.rpartition("/")[2] for full in pages)], n=1)
        hint = f"did you mean `rldbg help {near[0]}`?" if near else "`rldbg help` lists the pages"
        raise UsageError(f"no page about {topic!r}", hint)
    return found
