"""`rldbg frameworks [NAME]`: what is supported of each framework, and which hooks the installed version has."""

import click

from rldbg.cli.application import verb
from rldbg.cli.output import show


@verb("frameworks")
@click.argument("name", required=False)
def command(name: str | None, as_json: bool) -> int:
    """List frameworks and what of them is supported, or show NAME with all its hooks.

    Exit code 1 when the installed version of a framework lacks a function that rldbg hooks.
    """
    from rldbg.frameworks import find_framework, frameworks, support_of
    from rldbg.reports.frameworks import framework_details, framework_table

    found = [support_of(framework) for framework in ([find_framework(name)] if name else frameworks())]
    document = {"frameworks": [support.to_dict() for support in found]}
    show(document, as_json, lambda: [framework_details(found[0]) if name else framework_table(found)])
    return 1 if any(support.missing for support in found) else 0
