"""`rldbg ui`: look at runs, samples, comparisons and stopped ranks in a browser."""

from pathlib import Path

import click

from rldbg.cli.application import verb
from rldbg.cli.output import print_json, print_line, print_note
from rldbg.core import ExitCode, UsageError


@verb("ui", short_help="Open runs, samples, comparisons and stopped ranks in a browser.")
@click.argument("roots", nargs=-1, metavar="[RUN|DIR|URL]...")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8400, show_default=True, help="Port; 0 takes a free one."
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; any but loopback needs the token."
)
@click.option("--open", "open_browser", is_flag=True, help="Open the page in this machine's browser.")
@click.option(
    "--export",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write a static report of the runs into this folder instead; it opens from disk.",
)
@click.option("--layout", help="Layout of the recordings.  [default: detected]")
@click.option("--tokenizer", metavar="PATH", help="Folder of the tokenizer, if not found in the run.")
def command(
    roots: tuple[str, ...],
    port: int,
    host: str,
    open_browser: bool,
    export: Path | None,
    layout: str | None,
    tokenizer: str | None,
    as_json: bool,
) -> int:
    """Open runs, samples, comparisons and stopped ranks in a browser.

    Each argument is a run folder, a recording, a folder of them, or a URL (default: the runs of this folder).

    \b
    rldbg ui runs/            all runs below a folder
    rldbg ui A B              two runs, to compare
    rldbg ui A --export out   a report to share
    """
    from rldbg.ui import Catalogue, export_report, serve

    for root in roots:
        if "://" not in root and not Path(root).expanduser().exists():
            raise UsageError(
                f"{root}: no such file or folder", "give a run folder, a recording, a folder of them, or a URL"
            )
    catalogue = Catalogue(roots, layout=layout, tokenizer=tokenizer)
    if export is not None:
        written = export_report(catalogue, export)
        print_json(written) if as_json else print_line(f"report: {written['index']} ({written['bytes']:,} bytes)")
        return ExitCode.OK

    def at_start(url: str) -> None:
        print_json({"url": url}) if as_json else print_line(url)
        print_note("stop with Ctrl-C")
        if open_browser:
            import webbrowser

            webbrowser.open(url)

    serve(catalogue, host=host, port=port, at_start=at_start)
    return ExitCode.OK
