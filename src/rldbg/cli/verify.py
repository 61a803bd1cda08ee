"""`rldbg verify`: read every file of a recording and say what is missing, truncated, corrupt or was never written."""

import click

from rldbg.cli.application import verb
from rldbg.cli.output import show
from rldbg.cli.progress import progress
from rldbg.core import ExitCode, Severity, worst


@verb("verify", short_help="Find missing, truncated, corrupt and never written files.")
@click.argument("path")
@click.option("--layout", help="Layout, if not detected (`rldbg frameworks` lists the names).")
def command(path: str, layout: str | None, as_json: bool) -> int:
    """Read every file of a recording and report what is wrong with it.

    Exit code: 0 no problems, 1 findings, 4 no recording or no readable record.

    \b
    rldbg verify RUN   all files
    """
    from rldbg.recording import is_unreadable_whole, open
    from rldbg.reports.recording import verification_to_terminal

    recording = open(path, layout)
    with progress("reading", "records", total=len(recording.listing.entries), as_json=as_json) as advance:
        recording.on_read = advance
        findings = recording.verify()
    is_fine = worst(findings) in (None, Severity.INFO)
    document = {"ok": is_fine, "findings": [finding.to_dict() for finding in findings]}
    records = len(recording.listing.entries)
    show(document, as_json, lambda: [verification_to_terminal(recording.title, records, findings, is_fine)])
    if is_fine:
        return ExitCode.OK
    return ExitCode.INCOMPLETE if is_unreadable_whole(recording, findings) else ExitCode.FINDING
