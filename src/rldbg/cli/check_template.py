"""`rldbg check-template MODEL`: whether a chat template is suitable for multi-turn training."""

from dataclasses import replace
from pathlib import Path

import click

from rldbg.cli.application import verb
from rldbg.cli.output import show
from rldbg.core import ExitCode


@verb("check-template")
@click.argument("model")
@click.option("--turns", metavar="ROLES", help="Roles of one conversation, for example user,assistant,user,assistant.")
@click.option("--tools", type=click.Path(path_type=Path), help="JSON file with your own tools; the first is called.")
@click.option("--conversation", type=click.Path(path_type=Path), help="JSON file with your own messages and tools.")
@click.option("--template", type=click.Path(path_type=Path), help="Try this Jinja template instead of the model's.")
def command(
    model: str,
    turns: str | None,
    tools: Path | None,
    conversation: Path | None,
    template: Path | None,
    as_json: bool,
) -> int:
    """Check the chat template of MODEL, a folder or a hub name in the local cache, for multi-turn training.

    Conversations are rendered turn by turn, as a rollout does. Without --turns, --tools and --conversation, three
    standard ones are used: plain, with reasoning, and with a tool call. Exit code 1 when a property is broken.

    \b
    rldbg check-template ./model                        a folder with a tokenizer
    rldbg check-template ./model --template new.jinja   another template
    """
    from rldbg.reports.template import to_terminal
    from rldbg.templates import (
        conversation_of_roles,
        conversation_with_tools,
        examine_template,
        load_template,
        read_conversation,
        read_tools,
        standard_conversations,
    )

    chosen = [conversation_of_roles([role.strip() for role in turns.split(",")])] if turns else []
    chosen += [read_conversation(conversation)] if conversation is not None else []
    if tools is not None:
        own = read_tools(tools)
        chosen = [replace(item, tools=own) for item in chosen] + [conversation_with_tools(own)]
    loaded = load_template(model, template=template)
    report = examine_template(loaded, chosen or standard_conversations(), model=model)
    show(report.to_dict(), as_json, lambda: to_terminal(report))
    return ExitCode.FINDING if report.broken else ExitCode.OK
