"""`--record [KINDS]`, whose value may be left out before a script, a program or an override."""

import shutil
from pathlib import Path

import click

record_option = click.option(
    "--record", is_flag=False, flag_value="all", metavar="[KINDS]", help="Record all kinds, or those named."
)


class RecordingCommand(click.Command):
    """A verb with `record_option`: `--record ./train.sh` and `--record seed=1` record all kinds."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with_value = {
            name for each in self.params if isinstance(each, click.Option) and not each.is_flag for name in each.opts
        }
        place = 0
        while place < len(args) and args[place] != "--":
            word, following = args[place], args[place + 1 : place + 2]
            if word == "--record" and following and not _may_be_kinds(following[0]):
                args = [*args[:place], "--record=all", *args[place + 1 :]]
            elif word in with_value:
                place += 1
            elif not word.startswith("-") and not ctx.allow_interspersed_args:
                break  # what follows belongs to the user's own program
            place += 1
        return super().parse_args(ctx, args)


def _may_be_kinds(text: str) -> bool:
    """Whether a word names kinds, or would name them if it were spelt right."""
    from rldbg.recording import KINDS

    if {part.strip() for part in text.split(",")} <= {"all", *KINDS}:
        return True
    return not ("=" in text or text[:1] in "-~" or Path(text).exists() or shutil.which(text))
