"""Groups of commands, which answer a call without a command by their help and exit code 2 in every version of click."""

import click


class NoCommandError(click.UsageError):
    """A group was called without a command. The message is its help."""


class CommandGroup(click.Group):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            raise NoCommandError(ctx.get_help(), ctx)
        return super().parse_args(ctx, args)
