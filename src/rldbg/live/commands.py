"""What a line means at `rldbg attach`, typed or scripted: for the processes at hand, for all, or for the prompt."""

from dataclasses import dataclass

from rldbg.core import RldbgError
from rldbg.live.casting import CastResult, Crowd, cast, execute_on
from rldbg.live.client import BrokerClient
from rldbg.live.folding import RankAnswer
from rldbg.live.pdb_words import PdbWords

_LEAVING = ("q", "quit", "exit", "detach")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one line gave: `cast` where several processes answered, else `text`; `answers` holds either as data."""

    text: str = ""
    answers: tuple[RankAnswer, ...] = ()
    cast: CastResult | None = None
    leaves: bool = False


class Neighbours:
    """The other processes of the run, as seen from a prompt at some of them."""

    def __init__(self, client: BrokerClient) -> None:
        self._client = client

    def switch_to(self, who: str) -> list[PdbWords]:
        return Crowd(self._client, who, stop=True).words

    def cast(self, command: str) -> CastResult:
        return cast(self._client, "all", command)

    def listing(self) -> Outcome:
        rows = self._client.request("ps")["processes"]
        places = {row["who"]: f"{row['file']}:{row['line']}" if row["file"] else "" for row in rows}
        text = "\n".join(f"{row['who']:<24} {row['state']:<8} {places[row['who']]}".rstrip() for row in rows)
        return Outcome(text, tuple(RankAnswer(row["who"], True, row["state"], places[row["who"]]) for row in rows))


class Commands:
    """Takes lines one by one. Errors are outcomes; nothing that is typed ends the prompt but the words for leaving."""

    def __init__(self, words: list[PdbWords], neighbours: Neighbours | None = None) -> None:
        self.words = words
        self.interacting = False
        self._neighbours = neighbours
        self._last = ""

    @property
    def names(self) -> list[str]:
        return [words.debuggee.facts["who"] for words in self.words]

    def here(self) -> Outcome:
        """Where the first of them is."""
        try:
            return Outcome(self.words[0].here().text)
        except RldbgError as error:
            return _failed(error)

    def take(self, line: str) -> Outcome:
        try:
            return self._interact(line.strip()) if self.interacting else self._command(line.strip())
        except RldbgError as error:
            return _failed(error)

    def _command(self, line: str) -> Outcome:
        # As in pdb, an empty line repeats the last command.
        line = self._last = line or self._last
        word, _, rest = line.partition(" ")
        if word in _LEAVING:
            return Outcome(leaves=True)
        if line == "interact":
            self.interacting = True
            return Outcome("Python in this frame; `exit` goes back to the prompt")
        if word == "ranks" and self._neighbours is not None:
            return self._ranks(rest.strip())
        if word == "all" and self._neighbours is not None and rest.strip():
            result = self._neighbours.cast(rest.strip())
            return Outcome(answers=result.answers, cast=result)
        return self._outcome(execute_on(self.words, line))

    def _ranks(self, who: str) -> Outcome:
        assert self._neighbours is not None
        if not who:
            return self._neighbours.listing()
        self.words = self._neighbours.switch_to(who)
        return self.here()

    def _interact(self, line: str) -> Outcome:
        if line in ("exit", "exit()", "quit", "quit()"):
            self.interacting = False
            return Outcome()
        return self._outcome(execute_on(self.words, line, how=PdbWords.python)) if line else Outcome()

    def _outcome(self, result: CastResult) -> Outcome:
        if len(self.words) > 1:
            return Outcome(answers=result.answers, cast=result)
        return Outcome(result.answers[0].text, result.answers)


def _failed(error: RldbgError) -> Outcome:
    text = f"*** {error}" + (f"\n    try: {error.hint}" if error.hint else "")
    return Outcome(text, (RankAnswer("", False, None, text),))
