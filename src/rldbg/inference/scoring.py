"""Log probs of given tokens: by an engine of this process with a model's weights, or by a server."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from rldbg.core import IncompleteDataError, NoAnswerError, UnreachableError, http_request

TokenRows = Sequence[Sequence[int]]
_TIMEOUT_S = 600.0
_SHOWN = 300


def score_embedded(model: Any, rows: TokenRows, *, temperature: float = 1.0, together: bool = True) -> list[np.ndarray]:
    """What the engine of `rldbg serve` gives each token of each row, NaN for the first; all rows at once, or alone."""
    from rldbg.inference.embedded.loading import embed
    from rldbg.inference.embedded.text import NoText
    from rldbg.inference.generation import GenerationJob, SamplingSettings

    async def scored() -> list[np.ndarray]:
        settings = SamplingSettings(max_new_tokens=0, temperature=temperature)
        backend = embed(model, text=NoText(), device="cpu")
        jobs = [GenerationJob(str(n), tuple(row), settings, seed=0, prompt_from=0) for n, row in enumerate(rows)]
        try:
            if together:
                outcomes = await asyncio.gather(*(backend.submit(job).outcome() for job in jobs))
            else:
                outcomes = [await backend.submit(job).outcome() for job in jobs]
        finally:
            await backend.close()
        return [_row(outcome.prompt_logprobs) for outcome in outcomes]

    return asyncio.run(scored())


def score_over_http(
    address: str, rows: TokenRows, *, temperature: float = 1.0, together: bool = True
) -> list[np.ndarray]:
    """The same by a server: SGLang's /generate, or /v1/completions of vLLM and others where that does not answer.

    An address that ends in /v1 is asked by the second form only. `rldbg serve` knows both.
    """
    if not together:
        return [score_over_http(address, [row], temperature=temperature)[0] for row in rows]
    tokens = [list(map(int, row)) for row in rows]
    base = (address if "://" in address else f"http://{address}").rstrip("/")
    refusals = []
    for path, ask in (("/generate", _by_generate), ("/v1/completions", _by_completions)):
        if path == "/generate" and base.endswith("/v1"):
            continue
        try:
            return ask(base.removesuffix("/v1"), tokens, temperature)
        except (IncompleteDataError, KeyError, TypeError) as error:
            refusals.append(f"{path}: {error}")
    raise IncompleteDataError(
        f"the engine at {address} does not score tokens ({'; '.join(refusals)})",
        "it must know SGLang's /generate with return_logprob, or /v1/completions with echo and logprobs",
    )


def _by_generate(base: str, tokens: list[list[int]], temperature: float) -> list[np.ndarray]:
    sampling = {"max_new_tokens": 0, "temperature": temperature}
    body = {"input_ids": tokens, "sampling_params": sampling, "return_logprob": True, "logprob_start_len": 0}
    answer = _asked("POST", f"{base}/generate", body)
    return [_row([item[0] for item in one["meta_info"]["input_token_logprobs"]]) for one in answer]


def _by_completions(base: str, tokens: list[list[int]], temperature: float) -> list[np.ndarray]:
    """vLLM makes at least one token, which is left out."""
    model = _asked("GET", f"{base}/v1/models")["data"][0]["id"]
    body = {"model": model, "prompt": tokens, "max_tokens": 1, "temperature": temperature, "echo": True, "logprobs": 0}
    choices = sorted(_asked("POST", f"{base}/v1/completions", body)["choices"], key=lambda item: int(item["index"]))
    scores = [_row(choice["logprobs"]["token_logprobs"]) for choice in choices]
    if [len(row) >= len(ids) for row, ids in zip(scores, tokens, strict=True)].count(False):
        raise IncompleteDataError("its answers do not have the log probs of the prompt")
    return [row[: len(ids)] for row, ids in zip(scores, tokens, strict=True)]


def _asked(method: str, url: str, body: Any = None) -> Any:
    content = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    try:
        answer = http_request(method, url, content=content, headers=headers, timeout_s=_TIMEOUT_S)
    except NoAnswerError as error:
        raise UnreachableError(f"the engine does not answer at {url}: {error}", "see `rldbg serve ls`") from error
    if not answer.is_success:
        raise IncompleteDataError(f"{answer.status_code} {answer.text[:_SHOWN]}")
    return answer.json()


def _row(values: Sequence[float | None]) -> np.ndarray:
    return np.asarray([np.nan if value is None else value for value in values], dtype=np.float64)
