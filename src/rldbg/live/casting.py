"""One command on many stopped processes at once."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rldbg.core import IncompleteDataError, RldbgError
from rldbg.live.client import BrokerClient
from rldbg.live.debuggee import BrokerDebuggee
from rldbg.live.folding import Fold, RankAnswer, Spread, fold
from rldbg.live.pdb_words import Answer, PdbWords

_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class CastResult:
    """Every answer, and the same folded. `not_stopped` are processes that were meant but could not be asked."""

    answers: tuple[RankAnswer, ...]
    folds: tuple[Fold, ...]
    spread: Spread | None
    not_stopped: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return all(answer.ok for answer in self.answers)

    def to_dict(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "answers": [answer.to_dict() for answer in self.answers],
            "folded": [each.to_dict() for each in self.folds],
        }
        if self.spread:
            body["spread"] = self.spread.to_dict()
        return body


class Crowd:
    """Prompts at several processes that obey together."""

    def __init__(self, client: BrokerClient, who: str, *, stop: bool = False, wait_s: float = 30.0) -> None:
        processes = client.request("select", who=who)["processes"]
        meant = [p for p in processes if stop or p["state"] == "stopped"]
        if not meant:
            raise IncompleteDataError(
                f"nothing that {who!r} names is stopped", f"`rldbg pause {who}` stops what runs; `rldbg ps` shows it"
            )
        self.not_stopped = tuple(p["who"] for p in processes if p not in meant)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            debuggees = list(pool.map(lambda p: BrokerDebuggee(client, f"@{p['pid']}", stop=stop), meant))
        self._debuggees = debuggees
        self.words = [PdbWords(debuggee, wait_s=wait_s) for debuggee in debuggees]

    def __enter__(self) -> "Crowd":
        return self

    def __exit__(self, *_: object) -> None:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(BrokerDebuggee.leave, self._debuggees))

    @property
    def names(self) -> list[str]:
        return [words.debuggee.facts["who"] for words in self.words]

    def execute(self, command: str) -> CastResult:
        return execute_on(self.words, command, self.not_stopped)


def execute_on(
    crowd: Sequence[PdbWords],
    command: str,
    not_stopped: tuple[str, ...] = (),
    *,
    how: Callable[[PdbWords, str], Answer] = PdbWords.execute,
) -> CastResult:
    """The same command everywhere at once, answers folded."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = list(pool.map(lambda words: _ask(words, command, how), crowd))
    folds, spread = fold(answers)
    return CastResult(tuple(answers), tuple(folds), spread, not_stopped)


def _ask(words: PdbWords, command: str, how: Callable[[PdbWords, str], Answer]) -> RankAnswer:
    who = words.debuggee.facts["who"]
    try:
        answer = how(words, command)
    except RldbgError as error:
        answer = Answer(f"*** {error}" + (f" ({error.hint})" if error.hint else ""), ok=False)
    return RankAnswer(who, answer.ok, answer.value if answer.value is not None else answer.text, answer.text)


def cast(client: BrokerClient, who: str, command: str, *, wait_s: float = 30.0) -> CastResult:
    """Sends one pdb command to every stopped process that `who` names; after `c` nobody waits for the next stop."""
    with Crowd(client, who, wait_s=0.0 if is_continue(command) else wait_s) as crowd:
        return crowd.execute(command)


def is_continue(command: str) -> bool:
    return command.strip() in ("c", "cont", "continue")
