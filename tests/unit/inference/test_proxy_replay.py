"""What passes a proxy comes back from its recording as it was, without the model: calls, reasoning, streams, order."""

import asyncio
import json
from dataclasses import replace

import httpx
import pytest
import torch
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from byte_model import byte_model, byte_tokenizer
from rldbg.inference.application import build_application
from rldbg.inference.backend import ModelCard
from rldbg.inference.conversation.answer import Answer, ToolCall
from rldbg.inference.embedded.loading import embed
from rldbg.inference.embedded.text import NoText, PretrainedText, UnreadText
from rldbg.inference.proxy.application import Proxy
from rldbg.inference.proxy.captured import Captured
from rldbg.inference.proxy.generation_recorder import GenerationRecorder
from rldbg.inference.proxy.protocol_readers import readers
from rldbg.inference.recorded.backend import RecordedBackend
from rldbg.inference.recorded.generations import RecordedGenerations
from served_application import client_of

CARD = ModelCard("m", "", 1 << 30, 1 << 30, frozenset({1}), "float32", UnreadText(), scores_prompts=False)
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"],
          "additionalProperties": False}  # fmt: skip
ASK = [{"role": "user", "content": "Weather?"}]
CHAT = {"messages": ASK, "tools": [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]}
FORCED = {
    "/v1/chat/completions": CHAT | {"tool_choice": "required"},
    "/v1/responses": {"input": "Weather?", "tools": [{"type": "function", "name": "weather", "parameters": SCHEMA}],
                      "tool_choice": "required"},
    "/v1/messages": {"messages": ASK, "max_tokens": 90, "tools": [{"name": "weather", "input_schema": SCHEMA}],
                     "tool_choice": {"type": "any"}},
}  # fmt: skip


def proxy_of(client, recorder):
    proxy = Proxy(client, "http://server", recorder)
    return Starlette(routes=[Route("/{path:path}", proxy.pass_on, methods=["GET", "POST"])])


def told(body):
    """What a client sees of an answer, without what is new each time."""
    volatile = ("id", "item_id", "created", "created_at", "e2e_latency", "request_id")
    if isinstance(body, dict):
        call = body.get("type") in ("function", "tool_use")
        return {name: told(value) for name, value in body.items() if name not in volatile or (name == "id" and call)}
    return [told(item) for item in body] if isinstance(body, list) else body


async def converse(client):
    """Every protocol, whole and streamed; parts of streams are joined by the proxy's own readers."""
    seen = {}
    for path, body in FORCED.items():
        whole = await client.post(path, json=body | {"seed": 5})
        assert whole.status_code == 200, whole.text
        streamed = await client.post(path, json=body | {"seed": 6, "stream": True})
        events = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
        seen[path] = told(whole.json()), told(readers()[path].join(events))
    plain = await client.post(
        "/v1/chat/completions", json={"messages": ASK, "max_tokens": 9, "stream": True, "seed": 1}
    )
    events = [json.loads(line[6:]) for line in plain.text.splitlines() if line.startswith("data: {")]
    seen["text"] = "".join(event["choices"][0]["delta"].get("content", "") for event in events if event["choices"])
    tokens = {"token_ids": [5, 6], "sampling_params": {"max_tokens": 4, "n": 2, "ignore_eos": True}}
    seen["tokens"] = [choice["token_ids"] for choice in
                      (await client.post("/inference/v1/generate", json=tokens)).json()["choices"]]  # fmt: skip
    return seen


def comparable(seen):
    """Log probs come back from float32, and a recording tells them whether they were asked for or not."""
    return json.loads(json.dumps(seen), parse_float=lambda text: round(float(text), 4))


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_calls_and_streams_of_three_protocols_come_back_without_a_model(tmp_path):
    pytest.importorskip("llguidance", reason="the extra rldbg[constraints] is not installed")
    torch.set_num_threads(1)
    recorder = GenerationRecorder(tmp_path / "recording")

    async def through_the_proxy():
        tokenizer = byte_tokenizer()
        backend = embed(byte_model(tokenizer), text=PretrainedText(tokenizer), tokenizer=tokenizer, device="cpu")
        engine = build_application(backend)
        engine.router.routes.append(Route("/v1/embeddings", lambda _: JSONResponse({}), methods=["POST"]))
        try:
            async with client_of(engine) as upstream, client_of(proxy_of(upstream, recorder)) as client:
                assert (await client.post("/v1/embeddings", json={})).status_code == 200
                return await converse(client)
        finally:
            await backend.close()
            recorder.close()

    first = asyncio.run(through_the_proxy())
    again, report = asyncio.run(replayed(tmp_path / "recording", converse))
    for path in FORCED:
        for one, other in zip(first[path], again[path], strict=True):
            said = {name: value for name, value in one.items() if name in ("choices", "output", "content")}
            assert comparable({name: parts_of(other[name]) for name in said}) == comparable(
                {name: parts_of(value) for name, value in said.items()}
            ), path
    assert again["text"] == first["text"] != "" and again["tokens"] == first["tokens"]
    assert report["facts"]["consumed"] == report["facts"]["generations"] == 9 and not report["findings"]
    (passed,) = recorder.report()["findings"]
    assert passed["id"] == "serve.passed_by" and passed["evidence"] == ["1 of /v1/embeddings"]


CHUNK = {
    "choices": [{"index": 0, "delta": {"content": "a"}, "token_ids": [7], "logprobs": {"content": [{"logprob": -1}]}}]
}


@pytest.mark.parametrize("dies", [False, True])
def test_of_a_stream_that_ends_early_what_had_come_is_recorded(tmp_path, dies):
    recorder = GenerationRecorder(tmp_path / "recording")

    async def engine():
        for _ in range(2):
            yield b"data: " + json.dumps(CHUNK).encode() + b"\n\n"
        if dies:
            raise httpx.ReadError("gone")
        await asyncio.Event().wait()

    async def scene():
        answer = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=engine())
        transport = httpx.MockTransport(lambda _: answer)
        body = json.dumps({"messages": ASK, "stream": True}).encode()

        async def receive():
            return {"type": "http.request", "body": body}

        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "query_string": b"", "headers": []}
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            stream = (await Proxy(client, "http://server", recorder).pass_on(Request(scope, receive))).body_iterator
            assert [await anext(stream), await anext(stream)]
            if dies:
                with pytest.raises(httpx.ReadError):
                    await anext(stream)
            else:
                await stream.aclose()

    asyncio.run(scene())
    recorder.close()
    (kept,) = RecordedGenerations.read(tmp_path / "recording").all
    assert kept.tokens.tolist() == [7, 7] and recorder.unreadable == 0


async def replayed(recording, talk):
    """The same conversation with a server that answers from the recording, and what that reports."""
    backend = RecordedBackend(RecordedGenerations.read(recording), CARD)
    async with client_of(build_application(backend)) as client:
        return await talk(client), backend.report()


def test_an_echoed_prompt_is_not_part_of_the_answer():
    choice = {"index": 0, "text": "abc", "token_ids": [9], "prompt_token_ids": [5, 6],
              "logprobs": {"token_logprobs": [None, -2.0, -1.0]}}  # fmt: skip
    (kept,) = readers()["/v1/completions"].read({"prompt": "ab", "echo": True}, {"choices": [choice]})
    assert (kept.text, kept.logprobs, kept.tokens) == ("c", [-1.0], [9])


def parts_of(items):
    """Choices without their token ids and log probs; items of an output and blocks of a message as they are."""
    kept = ("message", "finish_reason", "type", "name", "input", "arguments", "call_id", "content")
    return [{name: value for name, value in item.items() if name in kept} for item in items]


def test_requests_for_one_prompt_are_answered_in_the_order_they_came(tmp_path):
    recorder = GenerationRecorder(tmp_path / "recording")
    first, second = recorder.arrived(), recorder.arrived()
    recorder.add([Captured([5], [8], [-0.5], seed=3)], "/generate", second)
    recorder.add([Captured([5], [7], [-0.5], seed=4), Captured([5], [9], [-0.5])], "/generate", first)
    recorder.close()
    found = RecordedGenerations.read(tmp_path / "recording")
    assert [item.tokens.tolist() for item in found.all] == [[7], [9], [8]]

    async def scene():
        backend = RecordedBackend(found, CARD)
        async with client_of(build_application(backend)) as client:
            return [
                (await client.post("/generate", json={"input_ids": [5], "sampling_params": sampling})).json()[
                    "output_ids"
                ]
                for sampling in ({"sampling_seed": 3}, {}, {})
            ]

    assert asyncio.run(scene()) == [[8], [7], [9]], "a seed finds its own answer, whatever the order"


def test_what_cannot_be_replayed_is_counted_and_named(tmp_path):
    recorder = GenerationRecorder(tmp_path / "recording")
    recorder.add([Captured([], [], [])], "/v1/messages", recorder.arrived())
    recorder.cannot_record("/v1/responses")
    recorder.add([Captured([5], [8], [-0.5], "x", "y", answer=Answer("hm", "y", (ToolCall("i", "f", "{}"),)))], "/x", 3)
    recorder.close()
    (finding,) = recorder.report()["findings"]
    assert finding["evidence"] == ["1 of /v1/messages", "1 of /v1/responses"] and "2 answers" in finding["cause"]

    async def scene():
        backend = RecordedBackend(RecordedGenerations.read(tmp_path / "recording"), CARD)
        async with client_of(build_application(backend)) as client:
            answer = await client.post("/v1/completions", json={"prompt": [5], "logprobs": 3})
            return answer.json()["choices"][0], backend.report()

    choice, report = asyncio.run(scene())
    assert choice["text"] == "y" and report["findings"][0]["id"] == "serve.no_top_logprobs"


@pytest.mark.parametrize("knows_tokens", [True, False])
def test_likeliest_tokens_recorded_as_text_have_ids_where_the_tokenizer_has_them(tmp_path, knows_tokens):
    recorder = GenerationRecorder(tmp_path / "recording")
    recorder.add([Captured([5], [8], [-0.5], "x", "y", top=[[("y", -0.5), ("two", -2.0)]])], "/x", recorder.arrived())
    recorder.close()
    tokenizer = byte_tokenizer()
    text = PretrainedText(tokenizer) if knows_tokens else NoText()

    async def scene():
        backend = RecordedBackend(RecordedGenerations.read(tmp_path / "recording"), replace(CARD, text=text))
        async with client_of(build_application(backend)) as client:
            body = {"input_ids": [5], "return_logprob": True, "top_logprobs_num": 2}
            return (await client.post("/generate", json=body)).json()["meta_info"]["output_top_logprobs"]

    ids = [entry[1] for entry in asyncio.run(scene())[0]]
    assert ids == ([*tokenizer.encode("y"), None] if knows_tokens else [None, None])


SCORED = {
    "/v1/chat/completions": {"messages": ASK, "max_tokens": 3, "logprobs": True, "top_logprobs": 2},
    "/v1/completions": {"prompt": [5, 6], "max_tokens": 3, "logprobs": 2, "return_tokens_as_token_ids": True},
    "/v1/responses": {"input": "Weather?", "max_output_tokens": 3, "top_logprobs": 2,
                      "include": ["message.output_text.logprobs"]},
    "/generate": {"input_ids": [5, 7], "return_logprob": True, "top_logprobs_num": 2,
                  "sampling_params": {"max_new_tokens": 3}},
    "/inference/v1/generate": {"token_ids": [5, 8], "sampling_params": {"max_tokens": 3, "logprobs": 2}},
    "/chat/": {"messages": [ASK], "max_tokens": 3, "logprobs": 2},
}  # fmt: skip


def likeliest_of(body):
    """Every list of likeliest tokens in an answer, whatever the protocol calls it; log probs to four digits."""
    wanted = ("top_logprobs", "output_top_logprobs", "logprob_token_ids")
    if isinstance(body, dict):
        found = [value for name, value in body.items() if name in wanted and value]
        return found + [place for value in body.values() for place in likeliest_of(value)]
    return [place for item in body for place in likeliest_of(item)] if isinstance(body, list) else []


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_top_logprobs_come_back_where_they_were_asked_for_through_the_proxy(tmp_path):
    torch.set_num_threads(1)
    recorder = GenerationRecorder(tmp_path / "recording")

    async def ask(client):
        seen = {}
        for path, body in SCORED.items():
            streams = [False, True] if path in ("/v1/chat/completions", "/v1/completions", "/generate") else [False]
            for stream in streams:
                answer = await client.post(path, json=body | ({"stream": True} if stream else {}))
                assert answer.status_code == 200, answer.text
                events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
                seen[path, stream] = likeliest_of(readers()[path].join(events) if stream else answer.json())
        return seen

    async def through_the_proxy():
        tokenizer = byte_tokenizer()
        backend = embed(byte_model(tokenizer), text=PretrainedText(tokenizer), tokenizer=tokenizer, device="cpu")
        try:
            async with (
                client_of(build_application(backend)) as upstream,
                client_of(proxy_of(upstream, recorder)) as client,
            ):
                return await ask(client)
        finally:
            await backend.close()
            recorder.close()

    first = asyncio.run(through_the_proxy())
    again, report = asyncio.run(replayed(tmp_path / "recording", ask))
    assert all(first.values()) and not report["findings"], report
    for case, seen in first.items():
        if case[0] == "/generate":
            # Texts of tokens are a tokenizer's, which the recording does without.
            seen, again[case] = ([[[entry[:2] for entry in place] for place in row] for row in side]
                                 for side in (seen, again[case]))  # fmt: skip
        assert comparable(again[case]) == comparable(seen), case
