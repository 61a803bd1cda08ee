"""Runs one pdb command in many stopped processes at once."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rldbg.agent import Message
from rldbg.core import IncompleteDataError, RldbgError
from rldbg.live.client.broker_client import BrokerClient
from rldbg.live.prompt.debuggee import BrokerDebuggee
from rldbg.live.prompt.grouping import AnswerGroup, RankAnswer, Spread, group_answers
from rldbg.live.prompt.pdb_commands import PdbCommands
from rldbg.live.prompt.selected_frame import CommandResult

_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class BroadcastResult:
    """Every answer, and equal answers grouped. `not_stopped` are selected processes that could not be asked."""

    answers: tuple[RankAnswer, ...]
    groups: tuple[AnswerGroup, ...]
    spread: Spread | None
    not_stopped: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return all(answer.ok for answer in self.answers)

    def to_dict(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "answers": [answer.to_dict() for answer in self.answers],
            "folded": [each.to_dict() for each in self.groups],
        }
        if self.spread:
            body["spread"] = self.spread.to_dict()
        return body


class ProcessGroup:
    """Prompts in several stopped processes; each command runs in all of them."""

    def __init__(
        self,
        client: BrokerClient,
        who: str,
        *,
        stop: bool = False,
        wait_s: float = 30.0,
        on_delay: Callable[[Message], None] | None = None,
    ) -> None:
        processes = client.request("select", who=who)["processes"]
        meant = [p for p in processes if stop or p["state"] == "stopped"]
        if not meant:
            raise IncompleteDataError(
                f"{who!r} matches no stopped process", f"`rldbg pause {who}` pauses running ones; `rldbg ps` lists them"
            )
        self.not_stopped = tuple(p["who"] for p in processes if p not in meant)
        limit_s = min(wait_s, 10.0) if on_delay is None else wait_s

        def attach(process: Message) -> BrokerDebuggee:
            return BrokerDebuggee(client, f"@{process['pid']}", stop=stop, wait_s=limit_s, on_delay=on_delay)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            debuggees = list(pool.map(attach, meant))
        self._debuggees = debuggees
        self.prompts = [PdbCommands(debuggee, wait_s=wait_s) for debuggee in debuggees]
        for prompt in self.prompts if stop else ():
            prompt.stand_in_users_task()

    def __enter__(self) -> "ProcessGroup":
        return self

    def __exit__(self, *_: object) -> None:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(BrokerDebuggee.leave, self._debuggees))

    @property
    def names(self) -> list[str]:
        return [prompt.debuggee.facts["who"] for prompt in self.prompts]

    def execute(self, command: str) -> BroadcastResult:
        return execute_on(self.prompts, command, self.not_stopped)


def execute_on(
    prompts: Sequence[PdbCommands],
    command: str,
    not_stopped: tuple[str, ...] = (),
    *,
    how: Callable[[PdbCommands, str], CommandResult] = PdbCommands.execute,
) -> BroadcastResult:
    """Runs the same command in all processes at once and groups the answers."""
    if len(prompts) == 1:
        answers = [_ask(prompts[0], command, how)]
    else:
        pool = ThreadPoolExecutor(_AT_ONCE)
        try:
            answers = list(pool.map(lambda prompt: _ask(prompt, command, how), prompts))
        finally:
            # Ctrl-C does not wait for answers that may take long.
            pool.shutdown(wait=False, cancel_futures=True)
    groups, spread = group_answers(answers)
    return BroadcastResult(tuple(answers), tuple(groups), spread, not_stopped)


def _ask(prompt: PdbCommands, command: str, how: Callable[[PdbCommands, str], CommandResult]) -> RankAnswer:
    who = prompt.debuggee.facts["who"]
    try:
        answer = how(prompt, command)
    except RldbgError as error:
        answer = CommandResult(f"*** {error}" + (f" ({error.hint})" if error.hint else ""), ok=False)
    return RankAnswer(who, answer.ok, answer.value if answer.value is not None else answer.text, answer.text)


def broadcast(client: BrokerClient, who: str, command: str, *, wait_s: float = 30.0) -> BroadcastResult:
    """Runs a pdb command in every stopped process selected by `who`; after `c` the next stop is not waited for."""
    with ProcessGroup(client, who, wait_s=0.0 if is_continue(command) else wait_s) as group:
        return group.execute(command)


def is_continue(command: str) -> bool:
    return command.strip() in ("c", "cont", "continue")
