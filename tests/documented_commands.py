"""The commands that README, documentation and skills show: where they stand, and whether the command line has them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from rldbg.cli.application import application

ROOT = Path(__file__).parents[1]
_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_MARK = re.compile(r"<!-- (run|not run: [^>]*?|from the tour) -->\s*$")
# Characters after which another command begins.
_ENDS = {"&&", "||", ";", "|", "&", ">", ">>", "2>&1", "<"}


@dataclass(frozen=True)
class Block:
    """A fenced block, and the comment that stands right before it."""

    page: str
    language: str
    text: str
    mark: str
    line: int

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    return [
        *sorted(ROOT.glob("README*.md")),
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "skills").rglob("*.md")),
    ]


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        before = _MARK.search(text[: match.start()])
        line = text.count("\n", 0, match.start()) + 1
        mark = before[1] if before else ""
        found.append(Block(str(page.relative_to(ROOT)), match[2], match[3], mark, line))
    return found


def commands(text: str) -> Iterator[list[str]]:
    """Every `rldbg ...` of a block of shell lines, as words."""
    for line in text.replace("\\\n", " ").splitlines():
        try:
            words = shlex.split(line.strip().removeprefix("$ "), comments=True)
        except ValueError:
            continue
        while "rldbg" in words:
            words = words[words.index("rldbg") :]
            end = next((place for place, word in enumerate(words) if word in _ENDS), len(words))
            command = [word.rstrip(";") for word in words[:end]]
            yield command
            words = words[1:] if "--" not in command else words[command.index("--") + 1 :]


def shown_commands(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Commands in blocks of shell lines, at the beginning of lines in other blocks, and within sentences."""
    text = page.read_text(encoding="utf-8")
    for block in blocks(page):
        lines = block.text
        if block.language == "" and page.name != "verbs.md":  # which is the help itself
            # What explains the command stands in a second column.
            lines = "\n".join(line.split("   ")[0] for line in lines.splitlines() if re.match(r"(\$ )?rldbg ", line))
        if block.language == "bash" or lines is not block.text:
            yield from ((str(block), command) for command in commands(lines))
    for inline in re.findall(r"(?<!`)`(rldbg [^`\n]+)`", _FENCE.sub("", text)):
        yield from ((str(page.relative_to(ROOT)), command) for command in commands(inline))


def complaint(words: list[str]) -> str:
    """What the command line does not have; empty when all is there."""
    command: click.Command = application
    rest, seen = words[1:], "rldbg"
    known = _options(command)
    while rest and rest[0] != "--":
        word = rest.pop(0)
        context = click.Context(command, info_name=seen)
        if word.startswith("-") and len(word) > 1 and not re.fullmatch(r"-\d+", word):
            name = word.partition("=")[0]
            if name not in known:
                return f"`{seen}` has no option {name}"
            # An option whose value may be left out has none before another option.
            if known[name] and "=" not in word and rest and not rest[0].startswith("--"):
                rest.pop(0)
        elif isinstance(command, click.Group):
            found = command.get_command(context, word)
            if found is None:
                is_placeholder = not word[0].isalpha() or word.isupper()
                return "" if is_placeholder else f"`{seen}` has no verb {word}"
            command, seen = found, f"{seen} {word}"
            known |= _options(command)
        elif not command.allow_interspersed_args or command.ignore_unknown_options:
            return ""
    return ""


def _options(command: click.Command) -> dict[str, bool]:
    """Every option, and whether it takes a value."""
    found = {"--help": False, "-h": False}
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            takes = not parameter.is_flag and not parameter.count
            found |= dict.fromkeys((*parameter.opts, *parameter.secondary_opts), takes)
    return found
