"""One continuation while it grows: its tokens so far, and when it has to stop."""

from dataclasses import dataclass, field

from rldbg.algorithms import LogprobMode, TopTokens
from rldbg.inference.embedded.constraints import Matcher
from rldbg.inference.generation import Delta, Finish, GenerationJob, Outcome, PendingGeneration, Text
from rldbg.inference.request_error import RequestError

# A stop text is looked for in the last tokens only: as many as it has characters, and some that print nothing.
_SILENT_TOKENS = 8


@dataclass(slots=True, eq=False)
class Sequence:
    """Used by the engine's thread alone, except for its answer."""

    job: GenerationJob
    answer: PendingGeneration
    streams: bool
    stop_ids: frozenset[int]
    limit: int
    matcher: Matcher | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    top: list[TopTokens] = field(default_factory=list)
    prompt_logprobs: list[float | None] = field(default_factory=list)
    prompt_top: list[TopTokens] = field(default_factory=list)
    prompt_ranks: list[int | None] = field(default_factory=list)
    finish: Finish | None = None
    failure: RequestError | None = None
    sent: int = 0

    @property
    def known(self) -> tuple[int, ...]:
        """Everything a forward pass has to see: the prompt, and what was made since."""
        return (*self.job.prompt, *self.tokens) if self.tokens else self.job.prompt

    @property
    def reserved(self) -> int:
        """How long it can become."""
        return len(self.job.prompt) + self.limit

    def add(self, token: int, logprob: float, version: int, top: TopTokens, text: Text) -> None:
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        if self.job.top_logprobs:
            self.top.append(top)
        self.finish = self._ended(token, text)

    def _ended(self, token: int, text: Text) -> Finish | None:
        settings = self.job.settings
        if self.matcher is not None and self.matcher.consume(token):
            if self.matcher.error:
                self.failure = RequestError(f"constraint failed at token {len(self.tokens)}: {self.matcher.error}")
                return Finish("abort", message=self.failure.message)
            return Finish("stop", token if token in self.stop_ids else None)
        if len(self.tokens) >= settings.min_new_tokens:
            if token in self.stop_ids:
                return Finish("stop", token)
            for stop in settings.stop_texts:
                if stop in text.decode(self.tokens[-len(stop) - _SILENT_TOKENS :], skip_special=False):
                    return Finish("stop", stop)
        return Finish("length") if len(self.tokens) >= self.limit else None

    def delta(self) -> Delta:
        """What was made since the last one."""
        start, self.sent = self.sent, len(self.tokens)
        return Delta(self.tokens[start:], self.logprobs[start:], self.top[start:])

    def outcome(self, weight_version: str) -> Outcome:
        assert self.finish is not None
        settings = self.job.settings
        mode: LogprobMode = "raw" if settings.temperature == 0 else settings.logprob_mode
        return Outcome(
            tokens=self.tokens,
            logprobs=self.logprobs,
            versions=self.versions,
            finish=self.finish,
            weight_version=weight_version,
            logprob_mode=mode,
            top=self.top,
            prompt_logprobs=self.prompt_logprobs,
            prompt_top=self.prompt_top,
            prompt_ranks=self.prompt_ranks,
        )
