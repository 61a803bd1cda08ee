"""`rldbg weights map`: which trainer tensors an engine's tensors hold, and by which rule."""

import click

from rldbg.cli.application import verb
from rldbg.cli.output import show
from rldbg.core import ExitCode, UsageError


@verb("weights")
@click.argument("action", type=click.Choice(["map"]))
@click.argument("run", required=False)
@click.argument("engine", required=False)
def command(action: str, run: str | None, engine: str | None, as_json: bool) -> int:
    """Show the rules that match tensor names (map), or the matches in RUN.

    RUN is a recording of kind `weights`, whose sent and held names are matched; or a model folder, followed
    by the folder of the engine's weights. Exit code 1 when a tensor has no match.

    \b
    rldbg weights map       the rules
    rldbg weights map RUN   the matches in a recording
    """
    from rldbg.reports.weights import mapping_to_terminal, rules_to_terminal
    from rldbg.weights import RULES, map_names, tensor_names

    if run is None:
        show({"rules": [rule.to_dict() for rule in RULES]}, as_json, lambda: rules_to_terminal(RULES))
        return ExitCode.OK
    trainer_names, engine_names = tensor_names(run, engine)
    if not trainer_names or not engine_names:
        raise UsageError(
            f"{run} has no record of what the engine holds", "record the kind `weights`, or give two model folders"
        )
    mapped = map_names(engine_names, trainer_names)
    show({"tensors": [item.to_dict() for item in mapped]}, as_json, lambda: mapping_to_terminal(mapped))
    unknown = any(item.rule in ("unknown", "not held") for item in mapped)
    return ExitCode.FINDING if unknown else ExitCode.OK
