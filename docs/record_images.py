"""Pictures of the README, made from a real tour: `make images`.

docs/images/tour.svg    commands of the tour and what they print, shortened, as a terminal would show them over time
docs/images/ui-*.png    pages of `rldbg ui` on the runs of the tour (needs chromium)

.venv/bin/python docs/record_images.py [FOLDER]    FOLDER keeps the tour; one that holds a tour is used again
"""

import io
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

IMAGES = Path(__file__).parent / "images"
_COLUMNS = 112
# Of the output of a command, the lines that have these words; a line that is left out becomes dots.
SHOWN: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("check second", ("checks hold", "✗ ")),
    ("compare first second", ("first at stage", ", sample", "old_log_probs  ✗", "because B")),
    ("cast all", ("loop/",)),
    ("stacks --diagnose", ("never entered",)),
    ("run --wait 0", ("root cause", "the failure begins with")),
    ("rerun first --step 5 --set", ("differs", "first changes")),
)
_MOST_LINES = 5
# Without the fonts that rich's own format would fetch; a line appears when its command has run.
_SVG = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace; font-size: {char_height}px;
  line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
@keyframes appear {{ from {{ opacity: 0 }} to {{ opacity: 1 }} }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""


def main(folder: Path) -> None:
    log = folder / "tour.ansi"
    if not log.exists():
        folder.mkdir(parents=True, exist_ok=True)
        log.write_text(_on_a_terminal([sys.executable, "-m", "rldbg", "demo", "--run", str(folder / "tour")]))
    (IMAGES / "tour.svg").write_text(terminal_svg(log.read_text().replace(f"{folder}/tour/", "")), encoding="utf-8")
    _screenshots(folder / "tour")


def terminal_svg(printed: str) -> str:
    """The chosen commands with their chosen lines."""
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True)
    delays, at = [], 0.3
    for command, output in _commands(printed):
        chosen = next((words for name, words in SHOWN if command.removeprefix("rldbg ").startswith(name)), None)
        if chosen is None:
            continue
        lines = [Text.assemble(("$ ", "bold green"), (command, "bold")), *_shortened(output, chosen), Text("")]
        delays += [at, *[at + 0.9] * (len(lines) - 1)]
        at += 1.8
        for line in lines:
            console.print(line, no_wrap=True, overflow="ellipsis")
    svg = console.export_svg(title="rldbg demo", code_format=_SVG, unique_id="tour")
    rules = "\n".join(
        f'[clip-path="url(#tour-line-{number})"] {{ animation: appear 0.2s {delay:.1f}s both }}'
        for number, delay in enumerate(delays)
    )
    svg = svg.replace("</style>", f"{rules}\n</style>", 1)
    return re.sub(r"[ \t]+\n", "\n", svg)


def _commands(printed: str) -> Iterator[tuple[str, list[Text]]]:
    """Each command that the tour shows, and what it printed."""
    for part in re.split(r"^\$ (?=rldbg )", printed.replace("\r\n", "\n"), flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command.strip(), [Text.from_ansi(line) for line in output.split("\n── ")[0].splitlines()]


def _shortened(lines: list[Text], words: tuple[str, ...]) -> Iterator[Text]:
    kept = [line for line in lines if any(word in line.plain for word in words)]
    yield from kept[:_MOST_LINES]
    if len(kept) < len([line for line in lines if line.plain.strip()]):
        yield Text("…", "dim")


def _on_a_terminal(command: list[str]) -> str:
    """What a command prints where it has a terminal of this width."""
    ours, its = pty.openpty()
    environment = os.environ | {"COLUMNS": str(_COLUMNS), "TERM": "xterm-256color"}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=its, stderr=its, env=environment)
    os.close(its)
    pieces = []
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the last writer has closed it
            break
        if not piece:
            break
        pieces.append(piece)
    os.close(ours)
    if process.wait():
        raise SystemExit(b"".join(pieces).decode(errors="replace"))
    return b"".join(pieces).decode(errors="replace")


def _screenshots(tour: Path) -> None:
    from playwright.sync_api import sync_playwright

    server = subprocess.Popen(
        [sys.executable, "-m", "rldbg", "ui", "first", "second", "--port", "0"],
        cwd=tour,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    try:
        url = server.stdout.readline().strip()
        with sync_playwright() as playwright:
            chromium = shutil.which("chromium") or shutil.which("google-chrome")
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
            page = browser.new_context(viewport={"width": 1200, "height": 640}).new_page()
            page.set_default_timeout(100_000)
            page.goto(url)
            page.goto(f"{url.partition('?')[0]}#/compare?run=first&run=second")
            page.wait_for_selector(".stage.first")
            page.screenshot(path=str(IMAGES / "ui-compare.png"))
            browser.close()
    finally:
        server.terminate()
        server.wait()
        server.stdout.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]).absolute())
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
