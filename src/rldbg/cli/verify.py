"""`rldbg verify`: read every file of a recording and say what is missing, truncated, corrupt or was never written."""

from collections import Counter

import click

from rldbg.cli.application import verb
from rldbg.cli.output import print_findings, print_json, print_note, print_result
from rldbg.core import ExitCode, Finding, Severity, by_severity, worst

_MAX_OF_A_KIND = 10


@verb("verify", short_help="Find what is missing, truncated, corrupt or was never written.")
@click.argument("path")
@click.option("--layout", help="The layout, when it is not recognised: nexrl, slime, verl, ...")
def command(path: str, layout: str | None, as_json: bool) -> int:
    """Read every file of a recording and say what is wrong with it.

    Exit code 0: nothing is wrong. 1: there are findings. 4: there is nothing there, or not one record can be read.
    """
    from rldbg.recording import open
    from rldbg.recording.verification import is_unreadable_whole

    recording = open(path, layout)
    findings = recording.verify()
    is_fine = worst(findings) in (None, Severity.INFO)
    if as_json:
        print_json({"ok": is_fine, "findings": [finding.to_dict() for finding in findings]})
    else:
        _report(recording.title, len(recording.listing.entries), findings, is_fine)
    if is_fine:
        return ExitCode.OK
    return ExitCode.INCOMPLETE if is_unreadable_whole(recording, findings) else ExitCode.FINDING


def _report(title: str, records: int, findings: list[Finding], is_fine: bool) -> None:
    """The worst first; of each kind of finding only so many, because a lost disk makes thousands."""
    from rich.text import Text

    if is_fine:
        print_result(Text.assemble(("✓ ", "green"), f"{title}: " + _count_whole(records)))
    shown: Counter[str] = Counter()
    kept = []
    for finding in by_severity(findings):
        shown[finding.id] += 1
        if shown[finding.id] <= _MAX_OF_A_KIND:
            kept.append(finding)
    print_findings(kept)
    for id, count in shown.items():
        if count > _MAX_OF_A_KIND:
            print_note(f"… and {count - _MAX_OF_A_KIND:,} more {id}: --json lists them all")


def _count_whole(records: int) -> str:
    return "1 record, whole" if records == 1 else f"{records:,} records, all of them whole"
