"""The recording backend: recorded answers by prompt, occurrence and policy version, and a 404 for anything else."""

import asyncio

import numpy as np
import pytest

from rldbg.core import IncompleteDataError, Run, SampleId
from rldbg.inference import sample_key
from rldbg.inference.application import Service, build_application
from rldbg.inference.backend import ModelCard
from rldbg.inference.embedded.text import NoText
from rldbg.inference.generation import GenerationJob, SamplingSettings
from rldbg.inference.recorded.backend import RecordedBackend
from rldbg.inference.recorded.generations import RecordedGenerations
from rldbg.inference.request_error import RequestError
from rldbg.recording import Recorder
from served_application import client_of

CARD = ModelCard("m", "", 1 << 20, 1 << 20, frozenset({1}), "float32", NoText(), scores_prompts=False)


def record(folder, steps):
    """Each step is a list of (sample, tokens, loss mask, log probs, version)."""
    with Recorder(folder) as recorder:
        for step, rows in enumerate(steps):
            recorder.record(
                "trajectory",
                step=step,
                samples=[row[0] for row in rows],
                tokens=[np.array(row[1]) for row in rows],
                loss_mask=[np.array(row[2]) for row in rows],
                logprobs=[np.array(row[3], np.float32) for row in rows],
                policy_versions=[np.where(np.array(row[2]) == 1, row[4], -1) for row in rows],
                reward=[0.0] * len(rows),
            )
    return folder


def row(name, run, prompt, answer, version, lp=-0.5):
    tokens = [*prompt, *answer]
    mask = [0] * len(prompt) + [1] * len(answer)
    return (name, run), tokens, mask, [lp if trained else 0.0 for trained in mask], version


@pytest.fixture
def recording(tmp_path):
    two_turns = (("c", 0), [5, 9, 1, 7, 7, 8, 1], [0, 1, 1, 0, 0, 1, 1], [0, -1, -2, 0, 0, -3, -4], 0)
    steps = [
        [row("a", 0, [5, 6], [7, 1], 0, -0.1), row("a", 1, [5, 6], [8, 8, 8], 0, -0.2), two_turns],
        [row("a", 0, [5, 6], [9, 1], 1, -0.3), row("b", 0, [5, 6, 6], [4, 1], 1, -0.4)],
    ]
    return record(tmp_path / "recording", steps)


def play(path, scene, **settings):
    async def run():
        backend = RecordedBackend(RecordedGenerations.read(path), CARD, **settings)
        return await asyncio.wait_for(scene(backend), 30)

    return asyncio.run(run())


async def ask(backend, prompt, limit=3, seed=123, **more):
    return await backend.submit(GenerationJob("x", tuple(prompt), SamplingSettings(limit, **more), seed=seed)).outcome()


def test_samples_of_a_prompt_come_in_recorded_order_with_their_logprobs(recording):
    async def scene(backend):
        return (
            [await ask(backend, [5, 6]) for _ in range(3)],
            await ask(backend, [5]),
            await ask(backend, [5, 9, 1, 7, 7]),
        )

    answers, turn_1, turn_2 = play(recording, scene)
    assert [item.tokens for item in answers] == [[7, 1], [8, 8, 8], [9, 1]]
    assert [item.finish.kind for item in answers] == ["stop", "length", "stop"]
    assert answers[1].logprobs == [float(np.float32(-0.2))] * 3, "the bits of the recorded number"
    assert [item.weight_version for item in answers] == ["0", "0", "1"]
    assert (turn_1.tokens, turn_2.tokens, turn_2.logprobs) == ([9, 1], [8, 1], [-3, -4])


def test_after_a_weight_update_only_that_versions_generations_are_given(recording, tmp_path):
    async def scene(backend):
        await backend.load_folder(tmp_path, "1")
        first = await ask(backend, [5, 6])
        with pytest.raises(RequestError, match="recorded once with policy version 1, and all of these were served"):
            await ask(backend, [5, 6])
        await backend.load_folder(tmp_path, None)
        with pytest.raises(RequestError, match=r"recorded with policy versions \[0, 1\], not with 2"):
            await ask(backend, [5, 6])
        return first

    assert play(recording, scene).tokens == [9, 1]


def test_an_unknown_prompt_is_a_404_with_the_nearest_and_a_finding_at_the_end(recording):
    async def scene(backend):
        with pytest.raises(
            RequestError, match=r"differs from token 3 on \(step 1, sample b/0\): \[5, 6, 6\]"
        ) as caught:
            await ask(backend, [5, 6, 6, 3])
        with pytest.raises(RequestError, match=r"no generation for the text 'what' .*\(serve with --model"):
            backend.submit(GenerationJob("x", (), SamplingSettings(3), seed=0, prompt_text="what"))
        with pytest.raises(RequestError, match="the prompt is empty"):
            await ask(backend, [])
        await ask(backend, [5, 6])
        return caught.value.status, backend.report()

    status, report = play(recording, scene)
    assert status == 404
    assert report["facts"]["consumed"] == 1 and report["facts"]["not_consumed"] == 5
    assert [item["id"] for item in report["findings"]] == ["serve.unknown_prompt", "serve.not_consumed"]
    assert "[5, 6, 6]" in report["findings"][0]["evidence"][0]


def test_nearest_answers_and_says_how_often_it_had_to(recording):
    async def scene(backend):
        answer = await ask(backend, [5, 6, 6, 3])
        cut = await ask(backend, [5, 6], limit=1)
        return answer, cut, backend.report()

    answer, cut, report = play(recording, scene, nearest=True)
    assert answer.tokens == [4, 1] and cut.tokens == [7] and cut.finish.kind == "length"
    assert report["findings"][0]["id"] == "serve.not_exact"
    assert "1 answers are of another prompt or were given twice, 1 were cut short" in report["findings"][0]["cause"]


def test_prompts_are_named_but_not_scored(recording):
    async def scene(backend):
        application = build_application(backend, Service(replicas=list))
        async with client_of(application) as client:
            asked = {"input_ids": [5, 6], "return_logprob": True, "logprob_start_len": 0}
            named = await client.post("/generate", json=asked)
            scored = await client.post("/v1/completions", json={"prompt": [5, 6], "prompt_logprobs": 1})
        return named.json()["meta_info"]["input_token_logprobs"], scored

    named, scored = play(recording, scene)
    assert named == [[None, 5, None], [None, 6, None]]
    assert scored.status_code == 400 and "no log probs of prompts" in scored.text


def test_a_trainers_own_seed_finds_its_own_sample(tmp_path):
    rows = [row("a", run, [5, 6], [20 + run, 1], 0) for run in range(4)]
    run = Run(tmp_path / "run")
    run.path.mkdir()
    run.update(seed=3)
    record(tmp_path / "run" / "recording", [rows])

    async def scene(backend):
        order = [2, 0, 3, 1]
        return [await ask(backend, [5, 6], seed=sample_key(3, 0, SampleId("a", run))) for run in order]

    assert [item.tokens[0] for item in play(run.path, scene)] == [22, 20, 23, 21]


def test_what_waits_while_paused_is_answered_afterwards_or_aborted(recording):
    async def scene(backend):
        await backend.pause("in_place")
        kept, dropped = (
            backend.submit(GenerationJob(name, (5, 6), SamplingSettings(3), seed=0)) for name in ("a", "b")
        )
        backend.abort("b")
        await backend.resume()
        return await kept.outcome(), await dropped.outcome()

    kept, dropped = play(recording, scene)
    assert kept.tokens == [7, 1] and dropped.finish.kind == "abort"


def test_a_recording_without_trajectories_says_so(tmp_path):
    with Recorder(tmp_path / "r") as recorder:
        recorder.record("loss", step=0, micro=0, loss=1.0)
    with pytest.raises(IncompleteDataError, match="no trajectories to answer from, only loss"):
        RecordedGenerations.read(tmp_path / "r")
