"""Log probs of given tokens: by an engine of this process with a model's weights, or by a server."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from rldbg.core import IncompleteDataError, NoAnswerError, UnreachableError, http_request

Rows = Sequence[Sequence[int]]
_TIMEOUT_S = 600.0


def score_embedded(model: Any, rows: Rows, *, temperature: float = 1.0, together: bool = True) -> list[np.ndarray]:
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


def score_over_http(address: str, rows: Rows, *, temperature: float = 1.0, together: bool = True) -> list[np.ndarray]:
    """The same by SGLang's native protocol; `rldbg serve` speaks it too."""
    if not together:
        return [score_over_http(address, [row], temperature=temperature)[0] for row in rows]
    body = {
        "input_ids": [list(map(int, row)) for row in rows],
        "sampling_params": {"max_new_tokens": 0, "temperature": temperature},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    url = f"http://{address.removeprefix('http://').rstrip('/')}/generate"
    headers = {"Content-Type": "application/json"}
    try:
        answer = http_request("POST", url, content=json.dumps(body).encode(), headers=headers, timeout_s=_TIMEOUT_S)
    except NoAnswerError as error:
        raise UnreachableError(f"the engine at {address} does not answer: {error}", "see `rldbg serve ls`") from error
    if not answer.is_success:
        raise IncompleteDataError(
            f"the engine at {address} does not score tokens: {answer.text[: 1 << 12]}",
            "it must speak SGLang's /generate with return_logprob",
        )
    return [_row([item[0] for item in one["meta_info"]["input_token_logprobs"]]) for one in json.loads(answer.content)]


def _row(values: Sequence[float | None]) -> np.ndarray:
    return np.asarray([np.nan if value is None else value for value in values], dtype=np.float64)
