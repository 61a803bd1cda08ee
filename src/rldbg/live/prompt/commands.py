"""Lines at `rldbg attach`, typed or scripted: a command for the attached processes, for all, or for the prompt."""

from dataclasses import dataclass

from rldbg.core import RldbgError
from rldbg.live.client.broker_client import BrokerClient
from rldbg.live.prompt.broadcast import BroadcastResult, ProcessGroup, broadcast, execute_on
from rldbg.live.prompt.grouping import RankAnswer
from rldbg.live.prompt.pdb_commands import PdbCommands

_LEAVING = ("q", "quit", "exit", "quit()", "exit()", "detach")


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """What one line gave: `broadcast` where several processes answered, else `text`; `answers` holds either as data."""

    text: str = ""
    answers: tuple[RankAnswer, ...] = ()
    broadcast: BroadcastResult | None = None
    leaves: bool = False


class OtherProcesses:
    """The other processes of the run, as seen from a prompt at some of them."""

    def __init__(self, client: BrokerClient) -> None:
        self._client = client

    def switch_to(self, who: str) -> list[PdbCommands]:
        return ProcessGroup(self._client, who, stop=True).prompts

    def broadcast(self, command: str) -> BroadcastResult:
        return broadcast(self._client, "all", command)

    def listing(self) -> CommandOutcome:
        rows = self._client.request("ps")["processes"]
        places = {row["who"]: f"{row['file']}:{row['line']}" if row["file"] else "" for row in rows}
        text = "\n".join(f"{row['who']:<24} {row['state']:<8} {places[row['who']]}".rstrip() for row in rows)
        return CommandOutcome(
            text, tuple(RankAnswer(row["who"], True, row["state"], places[row["who"]]) for row in rows)
        )


class Commands:
    """Takes lines one by one. Errors are outcomes; nothing but a command for leaving ends the prompt."""

    def __init__(self, prompts: list[PdbCommands], others: OtherProcesses | None = None) -> None:
        self.prompts = prompts
        self.interacting = False
        self._others = others
        self._last = ""

    @property
    def names(self) -> list[str]:
        return [prompt.debuggee.facts["who"] for prompt in self.prompts]

    def here(self) -> CommandOutcome:
        """Where the first of them is."""
        try:
            return CommandOutcome(self.prompts[0].here().text)
        except RldbgError as error:
            return _failed(error)

    def take(self, line: str) -> CommandOutcome:
        try:
            return self._interact(line.strip()) if self.interacting else self._command(line.strip())
        except RldbgError as error:
            return _failed(error)

    def interrupt(self) -> CommandOutcome:
        """Ctrl-C while a command runs: as in pdb, the resumed processes are stopped again."""
        try:
            for prompt in self.prompts:
                prompt.debuggee.pause()
                prompt.forget()
        except RldbgError as error:
            return _failed(error)
        return self.here()

    def _command(self, line: str) -> CommandOutcome:
        # As in pdb, an empty line repeats the last command.
        line = self._last = line or self._last
        word, _, rest = line.partition(" ")
        if word in _LEAVING:
            return CommandOutcome(leaves=True)
        if line == "interact":
            self.interacting = True
            return CommandOutcome("Python in this frame; `exit` returns to the prompt")
        if word == "ranks" and self._others is not None:
            return self._ranks(rest.strip())
        if word == "all" and self._others is not None and rest.strip():
            result = self._others.broadcast(rest.strip())
            return CommandOutcome(answers=result.answers, broadcast=result)
        return self._outcome(execute_on(self.prompts, line))

    def _ranks(self, who: str) -> CommandOutcome:
        assert self._others is not None
        if not who:
            return self._others.listing()
        self.prompts = self._others.switch_to(who)
        return self.here()

    def _interact(self, line: str) -> CommandOutcome:
        if line in ("exit", "exit()", "quit", "quit()"):
            self.interacting = False
            return CommandOutcome()
        return self._outcome(execute_on(self.prompts, line, how=PdbCommands.python)) if line else CommandOutcome()

    def _outcome(self, result: BroadcastResult) -> CommandOutcome:
        if len(self.prompts) > 1:
            return CommandOutcome(answers=result.answers, broadcast=result)
        return CommandOutcome(result.answers[0].text, result.answers)


def _failed(error: RldbgError) -> CommandOutcome:
    text = f"*** {error}" + (f"\n    try: {error.hint}" if error.hint else "")
    return CommandOutcome(text, (RankAnswer("", False, None, text),))
