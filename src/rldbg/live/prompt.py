"""The interactive prompt: pdb's words with history, completion and highlighting, at one process or several at once."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory
from prompt_toolkit.lexers import PygmentsLexer
from pygments.lexers.python import PythonLexer  # type: ignore[import-untyped]

from rldbg.core import RldbgError
from rldbg.live.casting import CastResult, execute_on
from rldbg.live.folding import compress
from rldbg.live.pdb_words import HELP, PdbWords

_WORDS = sorted({word for line in HELP.splitlines() for word in line.split() if word.isalpha() and word.islower()})


class Prompt:
    """Reads commands until the user leaves. `write` prints; leaving never resumes anything."""

    def __init__(
        self,
        words: list[PdbWords],
        *,
        write: Callable[[str], None],
        show_cast: Callable[[CastResult], None],
        switch: Callable[[str], list[PdbWords]] | None = None,
        cast_all: Callable[[str], CastResult] | None = None,
        list_ranks: Callable[[], str] | None = None,
        history: Path | None = None,
    ) -> None:
        self._words = words
        self._write = write
        self._show_cast = show_cast
        self._switch = switch
        self._cast_all = cast_all
        self._list_ranks = list_ranks
        self._interacting = False
        self._last = ""
        self._session: PromptSession[str] = PromptSession(
            history=FileHistory(str(history)) if history else None,
            lexer=PygmentsLexer(PythonLexer),
            completer=_Completer(self),
            complete_while_typing=False,
        )

    @property
    def first(self) -> PdbWords:
        return self._words[0]

    def run(self) -> None:
        self._greet()
        while True:
            try:
                line = self._session.prompt(self._label())
            except KeyboardInterrupt:
                continue
            except EOFError:
                return
            if not self.take(line):
                return

    def take(self, line: str) -> bool:
        """One line typed by the user; False when it was the last."""
        line = line.strip()
        if self._interacting:
            self._interact(line)
            return True
        # As in pdb, an empty line repeats the last command.
        line = line or self._last
        self._last = line
        word, _, rest = line.partition(" ")
        if word in ("q", "quit", "exit", "detach"):
            return False
        if word == "interact":
            self._interacting = True
            self._write("Python in this frame; `exit` goes back to the prompt")
        elif word == "ranks" and self._list_ranks is not None:
            self._ranks(rest.strip())
        elif word == "all" and self._cast_all is not None:
            self._guard(lambda: self._show_cast(self._cast_all(rest)))  # type: ignore[misc]
        else:
            self._guard(lambda: self._execute(line))
        return True

    def _execute(self, line: str) -> None:
        if len(self._words) > 1:
            self._show_cast(execute_on(self._words, line))
            return
        answer = self.first.execute(line)
        if answer.text:
            self._write(answer.text)

    def _interact(self, line: str) -> None:
        if line in ("exit", "exit()", "quit", "quit()"):
            self._interacting = False
        elif line:
            self._guard(lambda: self._python(line))

    def _python(self, line: str) -> None:
        for words in self._words:
            answer = words.python(line)
            if answer.text:
                self._write(answer.text)

    def _ranks(self, who: str) -> None:
        if who and self._switch is not None:
            switch = self._switch
            self._guard(lambda: self._change(switch(who)))
        elif self._list_ranks is not None:
            self._write(self._list_ranks())

    def _change(self, words: list[PdbWords]) -> None:
        self._words = words
        self._greet()

    def _greet(self) -> None:
        self._guard(lambda: self._write(self.first.here().text))

    def _guard(self, act: Callable[[], Any]) -> None:
        """Errors are shown and the prompt goes on."""
        try:
            act()
        except RldbgError as error:
            self._write(f"*** {error}" + (f"\n    try: {error.hint}" if error.hint else ""))

    def _label(self) -> str:
        names = compress(words.debuggee.facts["who"] for words in self._words)
        return f"{names} >>> " if self._interacting else f"({names}) "

    def names_at(self, text: str, column: int) -> list[str]:
        """What the process itself would complete."""
        try:
            body = self.first.debuggee.ask("completions", frameId=self.first.frame["id"], text=text, column=column + 1)
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
