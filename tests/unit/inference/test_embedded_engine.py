"""The embedded engine against transformers itself: what a sequence gets does not depend on who else is there."""

import asyncio
import gc
import random
import time
from collections import Counter
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from rldbg.inference import uniform
from rldbg.inference.embedded.loading import embed
from rldbg.inference.embedded.scheduler import Limits
from rldbg.inference.embedded.text import GrowingText, NoText
from rldbg.inference.generation import GenerationJob, SamplingSettings
from rldbg.inference.request_error import RequestError
from rldbg.trainer import CharacterTokenizer, ModelSettings, build_model
from rounding import decided, near

GREEDY = SamplingSettings(max_new_tokens=24, temperature=0, ignore_eos=True)


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tiny(seed=0):
    return build_model(ModelSettings(), vocabulary_size=CharacterTokenizer.vocabulary_size, seed=seed).to_transformers()


def prompts(count, seed=0):
    numbers = random.Random(seed)
    return [tuple(numbers.randrange(2, 49) for _ in range(numbers.randrange(1, 40))) for _ in range(count)]


def engine(scene, *, model=None, limits=None, text=None):
    """Runs a scene with an engine, in an event loop of its own."""

    async def play():
        backend = embed(model or tiny(), text=text or NoText(), device="cpu", limits=limits)
        try:
            return await asyncio.wait_for(scene(backend), 60)
        finally:
            await backend.close()

    return asyncio.run(play())


async def ask(backend, prompt, settings=GREEDY, seed=0, **more):
    return await backend.submit(GenerationJob(more.pop("id", str(seed)), prompt, settings, seed=seed, **more)).outcome()


def teacher_forced(model, prompt, tokens, temperature=1.0):
    """Log probs of the tokens as transformers computes them in one pass, without any cache."""
    ids = torch.tensor([[*prompt, *tokens]])
    with torch.no_grad():
        log_probs = torch.log_softmax(model(ids).logits[0].float() / temperature, -1)
    return log_probs[len(prompt) - 1 : -1].gather(-1, ids[0, len(prompt) :, None])[:, 0].numpy()


def test_tokens_are_the_same_alone_and_in_any_batch_and_logprobs_are_those_of_transformers():
    model, questions = tiny(), prompts(12)
    # Lengths differ, so that sequences join and leave at different times.
    settings = [replace(GREEDY, max_new_tokens=5 + 3 * (number % 9)) for number in range(12)]

    async def scene(backend):
        alone = [await ask(backend, *pair) for pair in zip(questions, settings, strict=True)]
        calls = backend.status().forward_calls
        together = await asyncio.gather(*(ask(backend, *pair) for pair in zip(questions, settings, strict=True)))
        return alone, together, calls, backend.status().forward_calls - calls

    alone, together, calls_alone, calls_together = engine(scene, model=model, limits=Limits(running=8))
    compared = [number for number, one in enumerate(alone) if decided(model, questions[number], one.tokens)]
    assert len(compared) > 6
    assert [alone[number].tokens for number in compared] == [together[number].tokens for number in compared]
    for question, *both in zip(questions, alone, together, strict=True):
        for item in both:
            assert item.logprobs == near(teacher_forced(model, question, item.tokens).tolist())
    assert calls_together < calls_alone / 3


def test_a_seed_gives_the_same_tokens_in_any_batch_and_sampling_logprobs_are_exact():
    model, questions = tiny(), prompts(8)
    settings = SamplingSettings(max_new_tokens=12, temperature=0.7, ignore_eos=True)

    async def scene(backend):
        alone = [await ask(backend, item, settings, seed=number) for number, item in enumerate(questions)]
        together = await asyncio.gather(*(ask(backend, item, settings, seed=n) for n, item in enumerate(questions)))
        # Samples cut in two: the second half goes on with the numbers it would have had.
        joined = [await in_two_halves(backend, number, item) for number, item in enumerate(questions)]
        return alone, together, joined

    async def in_two_halves(backend, seed, question):
        half = await ask(backend, question, replace(settings, max_new_tokens=5), seed=seed)
        continued = (*question, *half.tokens)
        rest = await ask(backend, continued, replace(settings, max_new_tokens=7), seed=seed, position=5)
        return half.tokens + rest.tokens

    alone, together, joined = engine(scene, model=model)
    compared = [
        number
        for number, (question, item) in enumerate(zip(questions, alone, strict=True))
        if decided(model, question, item.tokens, numbers=uniform([number] * 12, range(12)), temperature=0.7)
    ]
    assert len(compared) > 3
    assert [alone[number].tokens for number in compared] == [together[number].tokens for number in compared]
    assert [joined[number] for number in compared] == [alone[number].tokens for number in compared]
    for question, item in zip(questions, together, strict=True):
        assert item.logprobs == near(teacher_forced(model, question, item.tokens, 0.7).tolist())
        assert item.logprob_mode == "temperature"


def test_stop_conditions():
    class Letters(NoText):
        def decode(self, tokens, *, skip_special=True):
            return "".join(chr(97 + token % 26) for token in tokens)

    async def scene(backend):
        free = await ask(backend, (5, 6), GREEDY)
        text = backend.card.text.decode(free.tokens)
        # A text that begins where no other part of the answer has it.
        stop = next(text[n : n + 3] for n in range(3, 20) if text.index(text[n : n + 3]) == n)
        by_text = await ask(backend, (5, 6), replace(GREEDY, stop_texts=(stop,)))
        by_token = await ask(backend, (5, 6), replace(GREEDY, stop_token_ids=frozenset({free.tokens[4]})))
        at_least = await ask(backend, (5, 6), replace(GREEDY, stop_token_ids=frozenset(free.tokens), min_new_tokens=9))
        scored = await ask(backend, (5, 6), replace(GREEDY, max_new_tokens=0), prompt_from=0)
        return free, stop, text, by_text, by_token, at_least, scored, backend.card.end_ids

    free, stop, text, by_text, by_token, at_least, scored, ends = engine(scene, text=Letters())
    assert free.finish.kind == "length" and len(free.tokens) == 24
    assert by_text.finish.matched == stop and len(by_text.tokens) == text.index(stop) + 3
    assert by_token.finish.matched == free.tokens[4] and by_token.tokens == free.tokens[: len(by_token.tokens)]
    assert len(at_least.tokens) == 9
    assert scored.tokens == [] and scored.prompt_logprobs[0] is None and len(scored.prompt_logprobs) == 2
    assert ends == {0, 1}, "pad and end stop a text"


def test_pause_keeps_or_ends_what_is_under_way_and_new_weights_count_from_their_token_on(tmp_path):
    model, other = tiny(), tiny(seed=1)
    save_file({name: tensor.contiguous() for name, tensor in other.state_dict().items()}, tmp_path / "w.safetensors")
    long = replace(GREEDY, max_new_tokens=3000)

    async def scene(backend):
        ended = backend.submit(GenerationJob("a", (5, 6), long, seed=0), streams=True)
        await anext(ended.deltas())
        await backend.pause("abort")
        cut = await ended.outcome()
        waiting = backend.submit(GenerationJob("b", (5, 6), GREEDY, seed=0))
        await backend.resume()
        whole = await waiting.outcome()
        kept = backend.submit(GenerationJob("c", (5, 6), replace(GREEDY, max_new_tokens=60), seed=0), streams=True)
        await anext(kept.deltas())
        await backend.pause("retract")
        await backend.load_file(tmp_path / "w.safetensors", "7")
        await backend.resume()
        return cut, whole, await kept.outcome(), await ask(backend, (5, 6)), backend.status()

    cut, whole, mixed, after, status = engine(scene, model=model)
    assert cut.finish.kind == "abort" and 0 < len(cut.tokens) < 3000
    assert len(whole.tokens) == 24
    switch = mixed.versions.index(7)
    assert set(mixed.versions[:switch]) == {0} and set(mixed.versions[switch:]) == {7}
    expected = teacher_forced(other, (5, 6, *mixed.tokens[:switch]), mixed.tokens[switch:])
    assert mixed.logprobs[switch:] == near(expected.tolist())
    assert after.logprobs == near(teacher_forced(other, (5, 6), after.tokens).tolist())
    assert status.version.label == "7" and not status.paused


def test_weights_that_do_not_fit_change_nothing(tmp_path):
    model = tiny()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fits = {name: tensor + 1 for name, tensor in before.items()}
    wrong = fits | {"lm_head.weight": torch.zeros(3, 3)}
    save_file(wrong, tmp_path / "wrong.safetensors")
    save_file({"no.such": torch.zeros(1)}, tmp_path / "unknown.safetensors")
    (tmp_path / "pickled.safetensors").write_bytes(b"\x80\x04not tensors")
    folder = tmp_path / "some"
    folder.mkdir()
    save_file({"lm_head.weight": before["lm_head.weight"]}, folder / "model.safetensors")

    async def scene(backend):
        for file in ("wrong", "unknown", "pickled"):
            with pytest.raises(RequestError):
                await backend.load_file(tmp_path / f"{file}.safetensors", None)
        for place in (folder, tmp_path / "nowhere"):
            with pytest.raises(RequestError):
                await backend.load_folder(place, None)
        return backend.status().version.number

    assert engine(scene, model=model) == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_prompt_that_cannot_be_answered_is_refused_and_others_go_on():
    async def scene(backend):
        for prompt in ((), (49,), (-1,), (5,) * 129):
            with pytest.raises(RequestError):
                backend.submit(GenerationJob("x", prompt, GREEDY, seed=0))
        return await ask(backend, (5, 6))

    assert len(engine(scene).tokens) == 24


def test_a_failing_forward_pass_fails_its_requests_and_no_later_ones():
    model = tiny()
    real = model.forward

    async def scene(backend):
        model.forward = lambda *_, **__: 1 / 0
        with pytest.raises(RequestError, match="ZeroDivisionError"):
            await ask(backend, (5, 6))
        model.forward = real
        return await ask(backend, (5, 6))

    assert len(engine(scene, model=model).tokens) == 24


def test_a_request_that_ends_in_the_pass_before_a_failing_one_is_answered():
    model = tiny()
    real = model.forward

    def only_prompts(*arguments, **more):
        return real(*arguments, **more) if more["input_ids"].shape[1] > 1 else 1 / 0

    async def scene(backend):
        await backend.pause("in_place")
        model.forward = only_prompts
        long = backend.submit(GenerationJob("long", (5, 6), GREEDY, seed=0))
        short = backend.submit(GenerationJob("short", (5, 6), replace(GREEDY, max_new_tokens=1), seed=0))
        await backend.resume()
        with pytest.raises(RequestError, match="ZeroDivisionError"):
            await long.outcome()
        return await short.outcome()

    assert len(engine(scene, model=model).tokens) == 1


def test_text_grows_by_whole_characters():
    class Bytes(NoText):
        def decode(self, tokens, *, skip_special=True):
            return bytes(tokens).decode(errors="replace")

    growing = GrowingText(Bytes())
    parts = [growing.add([byte]) for byte in "né€!".encode()]
    assert parts == ["n", "", "é", "", "", "€", "!"]
    assert growing.add([0xE2]) == "" and growing.rest() == "�"


def test_nothing_of_an_answered_request_is_kept():
    questions = prompts(8)

    def kept():
        gc.collect()
        ours = (type(item) for item in gc.get_objects() if str(type(item).__module__).startswith("rldbg.inference"))
        return Counter(item.__name__ for item in ours)

    async def scene(backend):
        counts = []
        for _ in range(3):
            await asyncio.gather(*(ask(backend, question, seed=n) for n, question in enumerate(questions)))
            answered = time.monotonic()
            # The engine's thread answers first and lets go afterwards.
            while kept()["GenerationJob"] and time.monotonic() < answered + 30:
                await asyncio.sleep(0.01)
            counts.append(kept())
        return counts

    first, second, third = engine(scene)
    assert first and first == second == third
