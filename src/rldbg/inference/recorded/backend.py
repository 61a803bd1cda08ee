"""The backend that answers from a recording. Nothing is made up: what was not recorded is a 404 that names the nearest.

Which generation a request gets, in this order:
1. the one whose random numbers it asks for: that of its seed, where requests have one;
2. the next one of its prompt that was not given out yet, in recorded order, and of the policy version that is loaded
   when the client has told one by updating weights.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rldbg.core import Finding, Severity
from rldbg.inference.backend import BackendStatus, ModelCard, PauseMode, WeightVersion
from rldbg.inference.generation import Delta, Finish, GenerationJob, Likeliest, Outcome, PendingGeneration
from rldbg.inference.recorded.generations import RecordedGeneration, RecordedGenerations, first_difference, prompt_key
from rldbg.inference.request_error import RequestError
from rldbg.weights import Fingerprint

_SHOWN_TOKENS = 16
_SHOWN_FINDINGS = 5


class RecordedBackend:
    """Make it inside the event loop that will use it."""

    def __init__(self, generations: RecordedGenerations, card: ModelCard, *, nearest: bool = False) -> None:
        self._generations = generations
        self._card = card
        self._takes_nearest = nearest
        self._version = WeightVersion()
        self._told = False
        self._paused: list[tuple[GenerationJob, PendingGeneration]] | None = None
        self._asked = 0
        self._unknown = 0
        self._first_unknown: list[str] = []
        self._made_do = 0
        self._cut = 0
        self._without_top = 0

    @property
    def card(self) -> ModelCard:
        return self._card

    def submit(self, job: GenerationJob, *, streams: bool = False) -> PendingGeneration:
        if job.prompt_from is not None:
            raise RequestError("a recording has no log probs of prompts")
        if not job.prompt and not job.prompt_text:
            raise RequestError("the prompt is empty")
        answer = PendingGeneration(job)
        if self._paused is not None:
            self._paused.append((job, answer))
        else:
            self._give(job, answer)
        return answer

    def _give(self, job: GenerationJob, answer: PendingGeneration) -> None:
        self._asked += 1
        item = self._find(job)
        item.given += 1
        outcome = self._outcome(job, item)
        answer.push(Delta(outcome.tokens, outcome.logprobs, outcome.top, outcome.text))
        answer.finish(outcome)

    def _find(self, job: GenerationJob) -> RecordedGeneration:
        known = self._generations.by_prompt.get(prompt_key(job.prompt)) if job.prompt else None
        if job.prompt_text is not None and known is None:
            known = self._generations.by_text.get(job.prompt_text)
        if known is None:
            return self._unknown_prompt(job)
        own = next((item for item in known if job.seed in (item.key, item.seed) and not item.given), None)
        if own is not None:
            return own
        of_version = [item for item in known if not self._told or item.version == self._version.number]
        fresh = next((item for item in of_version if not item.given), None)
        return fresh or self._used_up(job, known, of_version)

    def _unknown_prompt(self, job: GenerationJob) -> RecordedGeneration:
        near = self._generations.nearest(job.prompt)
        if not job.prompt:
            message = (
                f"no generation for the text {job.prompt_text!r:.200} in {self._generations.title}, and no tokenizer "
                f"to look for its tokens (serve with --model PATH); a recorded prompt is {self._shown(near.prompt)}"
            )
            return self._missed(message, near)
        message = (
            f"no generation for this prompt of {len(job.prompt)} tokens in {self._generations.title}; the nearest "
            f"recorded prompt has {len(near.prompt)} tokens and differs from token "
            f"{first_difference(near.prompt, job.prompt)} on ({near.place}): {self._shown(near.prompt)}"
        )
        return self._missed(message, near)

    def _used_up(
        self, job: GenerationJob, known: Sequence[RecordedGeneration], of_version: Sequence[RecordedGeneration]
    ) -> RecordedGeneration:
        if of_version:
            message = f"this prompt was recorded {_times(len(of_version))}" + (
                f" with policy version {self._version.number}" if self._told else ""
            )
            message += f", and all of these were served: this is request {len(of_version) + 1} for it"
        else:
            versions = sorted({item.version for item in known})
            message = f"this prompt was recorded with policy versions {versions}, not with {self._version.number}"
        return self._missed(f"{message} ({known[0].place}): {self._shown(known[0].prompt)}", (of_version or known)[-1])

    def _missed(self, message: str, substitute: RecordedGeneration) -> RecordedGeneration:
        if not self._takes_nearest:
            self._unknown += 1
            if len(self._first_unknown) < _SHOWN_FINDINGS and message not in self._first_unknown:
                self._first_unknown.append(message)
            raise RequestError(message, 404)
        self._made_do += 1
        return substitute

    def _best(self, place: Likeliest, count: int) -> Likeliest:
        """Engines may add the token that was drawn to the likeliest ones."""
        best = sorted(place, key=lambda item: -item[1])[:count]
        return [(self._id_of(token) if isinstance(token, str) else token, logprob) for token, logprob in best]

    def _id_of(self, name: str) -> int | str:
        """The one token with this text, for routes that speak of ids; the text itself where none or several have it."""
        text = self._card.text
        try:
            ids = [text.added[name]] if name in text.added else [i for i in text.encode(name) if i not in text.special]
        except RequestError:  # the model has no tokenizer
            return name
        return ids[0] if len(ids) == 1 and text.decode(ids, skip_special=False) == name else name

    def _outcome(self, job: GenerationJob, item: RecordedGeneration) -> Outcome:
        limit = job.settings.max_new_tokens
        cut = len(item.tokens) > limit
        self._cut += cut
        tokens = [int(token) for token in item.tokens[:limit]]
        logprobs = [float("nan")] * len(tokens) if item.logprobs is None else item.logprobs[:limit].tolist()
        top = [self._best(place, job.top_logprobs) for place in item.top[:limit]] if job.top_logprobs else []
        if job.top_logprobs and (not top or min(map(len, top)) < job.top_logprobs):
            self._without_top += 1
        return Outcome(
            tokens=tokens,
            logprobs=logprobs,
            versions=[item.version] * len(tokens),
            finish=self._finish(job, item, cut=cut),
            weight_version=str(item.version),
            logprob_mode=job.settings.logprob_mode,
            top=top,
            text=item.text,
            answer=None if cut else item.answer,
            prompt=job.prompt or tuple(item.prompt.tolist()),
        )

    def _finish(self, job: GenerationJob, item: RecordedGeneration, *, cut: bool) -> Finish:
        """The finish reason as recorded; if it is not known, derived from the tokens."""
        stops, tokens = job.settings.stop_token_ids | self._card.end_ids, item.tokens
        if cut or item.finish == "length" or not len(tokens):
            return Finish("length")
        if item.finish is None and tokens[-1] not in stops and len(tokens) >= job.settings.max_new_tokens:
            return Finish("length")
        return Finish("stop", int(tokens[-1]) if item.stop is None and item.finish is None else item.stop)

    def _shown(self, prompt: np.ndarray) -> str:
        text = self._card.text.decode(prompt.tolist(), skip_special=False)
        ids = ", ".join(str(token) for token in prompt[:_SHOWN_TOKENS]) + (
            ", ..." if len(prompt) > _SHOWN_TOKENS else ""
        )
        return f"[{ids}]" + (f" {text[:200]!r}" if text else "")

    def abort(self, job_id: str | None, *, with_samples: bool = False) -> None:
        """Answers are whole as soon as they are asked for, except while paused."""
        held = self._paused or []
        for job, answer in held:
            if job_id is None or job.id == job_id:
                answer.finish(_aborted(job, self._version))
        if self._paused is not None:
            self._paused = [(job, answer) for job, answer in held if not answer.done]

    async def pause(self, mode: PauseMode) -> None:
        self._paused = self._paused or []
        if mode == "abort":
            self.abort(None)

    async def resume(self) -> None:
        held, self._paused = self._paused or [], None
        for job, answer in held:
            try:
                self._give(job, answer)
            except RequestError as error:
                answer.fail(error)

    async def load_folder(self, folder: Path, label: str | None) -> WeightVersion:
        return await self._advance(label)

    async def load_file(self, file: Path, label: str | None) -> WeightVersion:
        return await self._advance(label)

    async def load_tensors(self, tensors: Mapping[str, Any], label: str | None) -> WeightVersion:
        return await self._advance(label)

    async def name_version(self, label: str) -> WeightVersion:
        return await self._advance(label)

    async def _advance(self, label: str | None) -> WeightVersion:
        """Only the version of the weights is used."""
        self._told = True
        self._version = self._version.next(label)
        return self._version

    def status(self) -> BackendStatus:
        given = sum(len(item.tokens) * item.given for item in self._generations.all)
        paused = self._paused is not None
        return BackendStatus(0, len(self._paused or ()), paused, self._version, 0, given, self._asked)

    async def fingerprints(self) -> list[Fingerprint]:
        raise RequestError("a recording has no weights", 404)

    def summary(self) -> Mapping[str, Any]:
        used = sum(1 for item in self._generations.all if item.given)
        return {
            "recording": self._generations.title,
            "generations": len(self._generations.all),
            "consumed": used,
            "not_consumed": len(self._generations.all) - used,
            "requests": self._asked,
            "unknown_prompts": self._unknown,
            "answered_by_nearest": self._made_do,
            "cut_by_max_new_tokens": self._cut,
            "without_top_logprobs": self._without_top,
        }

    def report(self) -> Mapping[str, Any]:
        """The report: what was and was not consumed, and findings."""
        facts = self.summary()
        text = (
            f"{facts['consumed']} of {facts['generations']} recorded generations were consumed by {facts['requests']} "
            f"requests; {facts['unknown_prompts']} were unknown, {facts['answered_by_nearest']} took the nearest"
        )
        return {"summary": text, "facts": facts, "findings": [item.to_dict() for item in self._findings()]}

    def _findings(self) -> list[Finding]:
        where, findings = self._generations.title, []
        if self._unknown:
            findings.append(
                Finding(
                    "serve.unknown_prompt",
                    Severity.ERROR,
                    where,
                    evidence=tuple(self._first_unknown),
                    cause=f"{self._unknown} requests were not in the recording",
                    fix=("run the framework with the data, seed and chat template of the recorded run",),
                )
            )
        if self._made_do or self._cut:
            findings.append(
                Finding(
                    "serve.not_exact",
                    Severity.WARNING,
                    where,
                    cause=f"{self._made_do} answers are of another prompt or were given twice, "
                    f"{self._cut} were cut short",
                    fix=("serve with --strict to see each of them as an error",),
                )
            )
        if self._without_top:
            cause = f"{self._without_top} requests asked for more top log probs than were recorded"
            findings.append(Finding("serve.no_top_logprobs", Severity.WARNING, where, cause=cause))
        left = [item for item in self._generations.all if not item.given]
        if left and self._asked:
            shown = tuple(item.place for item in left[:_SHOWN_FINDINGS])
            cause = f"{len(left)} recorded generations were never requested"
            findings.append(Finding("serve.not_consumed", Severity.INFO, where, evidence=shown, cause=cause))
        return findings

    async def close(self) -> None:
        self.abort(None)


def _aborted(job: GenerationJob, version: WeightVersion) -> Outcome:
    return Outcome([], [], [], Finish("abort", message="Abort before prefill: aborted"), version.label)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
