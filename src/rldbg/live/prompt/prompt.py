"""The interactive prompt: pdb's commands with history, completion and highlighting, in one process or in several."""

from collections.abc import Callable, Iterable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory
from prompt_toolkit.lexers import PygmentsLexer
from pygments.lexers.python import PythonLexer  # type: ignore[import-untyped]

from rldbg.core import RldbgError
from rldbg.live.prompt.broadcast import BroadcastResult
from rldbg.live.prompt.commands import CommandOutcome, Commands
from rldbg.live.prompt.grouping import compress
from rldbg.live.prompt.prompt_text import HELP

_WORDS = sorted({word for line in HELP.splitlines() for word in line.split() if word.isalpha() and word.islower()})


class Prompt:
    """Reads commands until the user leaves. `write` prints; leaving never resumes anything."""

    def __init__(
        self,
        commands: Commands,
        *,
        write: Callable[[str], None],
        show_broadcast: Callable[[BroadcastResult], None],
        history: Path | None = None,
    ) -> None:
        self._commands = commands
        self._write = write
        self._show_broadcast = show_broadcast
        self._session: PromptSession[str] = PromptSession(
            history=FileHistory(str(history)) if history else None,
            lexer=PygmentsLexer(PythonLexer),
            completer=_Completer(self),
            complete_while_typing=False,
        )

    def run(self) -> None:
        outcome = self._commands.here()
        while not outcome.leaves:
            if outcome.broadcast is not None:
                self._show_broadcast(outcome.broadcast)
            elif outcome.text:
                self._write(outcome.text)
            try:
                line = self._session.prompt(self._label())
            except KeyboardInterrupt:
                outcome = CommandOutcome()
                continue
            except EOFError:
                return
            outcome = self._taken(line)

    def _taken(self, line: str) -> CommandOutcome:
        try:
            return self._commands.take(line)
        except KeyboardInterrupt:
            return self._commands.interrupt()

    def _label(self) -> str:
        names = compress(self._commands.names)
        return f"{names} >>> " if self._commands.interacting else f"({names}) "

    def names_at(self, text: str, column: int) -> list[str]:
        """What the process itself would complete."""
        first = self._commands.prompts[0]
        try:
            body = first.debuggee.ask("completions", frameId=first.frame["id"], text=text, column=column + 1)
        except RldbgError:
            return []
        return [str(each.get("label")) for each in body.get("targets") or []]


class _Completer(Completer):
    def __init__(self, prompt: Prompt) -> None:
        self._prompt = prompt

    def get_completions(self, document: Document, _event: CompleteEvent) -> Iterable[Completion]:
        word = document.get_word_before_cursor(WORD=False)
        before = document.text_before_cursor
        if before.strip() == word:
            yield from (Completion(name, -len(word)) for name in _WORDS if name.startswith(word))
        for name in self._prompt.names_at(before.rpartition(" ")[2], len(before.rpartition(" ")[2])):
            yield Completion(name, -len(word))
