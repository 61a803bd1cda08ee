"""Chat completions, Responses and Messages over one model: tools, reasoning, constraints, penalties, prefill."""

import asyncio
import gc
import json

import pytest
import torch

from byte_model import byte_model, byte_tokenizer
from rldbg.inference.application import build_application
from rldbg.inference.conversation.families import FAMILIES
from rldbg.inference.conversation.parsing import Reading
from rldbg.inference.conversation.tools import forced_calls
from rldbg.inference.embedded.loading import embed, load_backend
from rldbg.inference.embedded.text import PretrainedText
from rldbg.inference.generation import GenerationJob, Outcome, PendingGeneration
from rldbg.trainer import tiny_folder
from served_application import client_of

pytest.importorskip("llguidance", reason="the extra rldbg[constraints] is not installed")

ASK = [{"role": "user", "content": "Weather?"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "description": "", "parameters": PARAMETERS}}
RESPONSES_TOOL = {"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": True}
MESSAGES_TOOL = {"name": "weather", "input_schema": PARAMETERS}


@pytest.fixture(scope="module")
def parts():
    torch.set_num_threads(1)
    tokenizer = byte_tokenizer()
    return byte_model(tokenizer), tokenizer


@pytest.fixture
def talk(parts):
    def run(scene):
        async def play():
            backend = embed(parts[0], text=PretrainedText(parts[1]), tokenizer=parts[1], name="bytes", device="cpu")
            async with client_of(build_application(backend)) as client:
                return await scene(client)

        return asyncio.run(play())

    return run


async def post(client, path, status=200, **body):
    answer = await client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def stream(client, path, **body):
    answer = await client.post(path, json=body | {"stream": True})
    assert answer.status_code == 200, answer.text
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


def test_a_forced_call_is_the_same_in_three_protocols_whole_and_streamed(talk):
    async def scene(client):
        chat = {"messages": ASK, "tools": [TOOL], "tool_choice": "required", "seed": 3}
        whole = await post(client, "/v1/chat/completions", **chat)
        chunks = await stream(client, "/v1/chat/completions", **chat)
        asked = {"input": "Weather?", "tools": [RESPONSES_TOOL], "tool_choice": "required", "seed": 3}
        response = await post(client, "/v1/responses", **asked)
        events = await stream(client, "/v1/responses", **asked)
        said = {"messages": ASK, "max_tokens": 200, "tools": [MESSAGES_TOOL], "tool_choice": {"type": "any"}, "seed": 3}
        message = await post(client, "/v1/messages", **said)
        blocks = await stream(client, "/v1/messages", **said)
        return whole, chunks, response, events, message, blocks

    whole, chunks, response, events, message, blocks = talk(scene)
    choice = whole["choices"][0]
    [call] = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"])["city"] in ("Rome", "Oslo")
    [sent] = [item for chunk in chunks for item in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert sent == {"index": 0} | call and chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"

    [item] = response["output"]
    known = {"type": "function_call", "call_id": call["id"], "name": "weather", "status": "completed"}
    assert item.items() >= (known | {"arguments": call["function"]["arguments"]}).items()
    assert events[-1]["type"] == "response.completed" and [event["sequence_number"] for event in events] == list(
        range(len(events))
    )
    assert events[-1]["response"]["output"][0] | {"id": item["id"]} == item

    assert message["stop_reason"] == "tool_use" and message["content"][0]["input"] == json.loads(item["arguments"])
    assert message["content"][0]["id"] == call["id"]
    pieces = [event["delta"]["partial_json"] for event in blocks if event["type"] == "content_block_delta"]
    assert json.loads("".join(pieces)) == message["content"][0]["input"]
    assert next(event for event in blocks if event["type"] == "message_delta")["delta"]["stop_reason"] == "tool_use"


def test_results_of_tools_come_into_the_same_prompt_from_three_protocols(talk, parts):
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    chat = [*ASK, {"role": "assistant", "content": "", "tool_calls": [call]}]
    chat.append({"role": "tool", "tool_call_id": "a", "content": "sun"})
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "function_call", "call_id": "a", "name": "weather", "arguments": '{"city": "Rome"}'},
        {"type": "function_call_output", "call_id": "a", "output": "sun"},
    ]
    use = {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Rome"}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "sun"}]}
    blocks = [*ASK, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]

    async def scene(client):
        one = {"return_token_ids": True, "temperature": 0}
        first = await post(client, "/v1/chat/completions", messages=chat, tools=[TOOL], max_tokens=1, **one)
        second = await post(client, "/v1/responses", input=items, tools=[RESPONSES_TOOL], max_output_tokens=1, **one)
        third = await post(client, "/v1/messages", messages=blocks, tools=[MESSAGES_TOOL], max_tokens=1, **one)
        counted = await post(client, "/v1/messages/count_tokens", messages=blocks, tools=[MESSAGES_TOOL])
        also = await post(client, "/v1/responses/input_tokens", input=items, tools=[RESPONSES_TOOL])
        counts = {counted["input_tokens"], also["input_tokens"]}
        return [answer["prompt_token_ids"] for answer in (first, second, third)], counts, third

    prompts, counts, third = talk(scene)
    assert prompts[0] == prompts[1] == prompts[2] and counts == {len(prompts[0])}
    text = parts[1].decode(prompts[0])
    assert '{"name": "weather", "arguments": {"city": "Rome"}}' in text and "\nsun<" in text
    assert (third["stop_reason"], len(third["token_ids"]), third["token_versions"]) == ("max_tokens", 1, [0])


@pytest.mark.parametrize(
    ("fields", "fits"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": PARAMETERS}}}, "json"),
        ({"guided_json": json.dumps(PARAMETERS)}, "json"),
        ({"structured_outputs": {"json": PARAMETERS}}, "json"),
        ({"guided_regex": "[ab]{5}"}, "regex"),
        ({"regex": "[ab]{5}"}, "regex"),
        ({"guided_choice": ["aaaaa", "bbbbb"]}, "regex"),
        ({"guided_grammar": 'start: "a" "bbbb" | "bbbbb"'}, "regex"),
        ({"ebnf": 'root ::= "a" "bbbb" | "bbbbb"'}, "regex"),
    ],
)
def test_answers_keep_to_their_constraint(talk, fields, fits):
    async def scene(client):
        return await post(client, "/v1/chat/completions", messages=ASK, max_tokens=60, **fields)

    choice = talk(scene)["choices"][0]
    content = choice["message"]["content"]
    assert choice["finish_reason"] == "stop"
    if fits == "json":
        assert json.loads(content)["city"] in ("Rome", "Oslo")
    else:
        assert len(content) == 5 and set(content) <= {"a", "b"}


def test_constraints_of_the_other_protocols(talk):
    schema = {"type": "json_schema", "name": "x", "schema": PARAMETERS}

    async def scene(client):
        response = await post(client, "/v1/responses", input="Weather?", text={"format": schema})
        config = {"output_config": {"format": schema}}
        message = await post(client, "/v1/messages", messages=ASK, max_tokens=60, **config)
        sglang = await post(client, "/generate", text="x", sampling_params={"regex": "[ab]{5}"}, return_logprob=True)
        wrong = await post(client, "/v1/completions", 400, prompt="x", guided_regex="(")
        both = await post(client, "/v1/completions", 400, prompt="x", guided_regex="a", guided_choice=["a"])
        return response["output"][0]["content"][0]["text"], message["content"][0]["text"], sglang, wrong, both

    response, message, sglang, wrong, both = talk(scene)
    assert {json.loads(text)["city"] for text in (response, message)} <= {"Rome", "Oslo"}
    assert len(sglang["text"]) == 5 and sglang["meta_info"]["output_token_logprobs"][0][0] < -1
    assert "regex cannot be used" in wrong["message"] and "mutually exclusive" in both["message"]


def test_log_probs_of_a_constrained_answer_by_their_mode(talk):
    async def scene(client):
        common = {"prompt": "x", "guided_choice": ["a"], "logprobs": 0, "temperature": 1}
        return [
            (await post(client, "/v1/completions", logprobs_mode=mode, **common))["choices"][0]["logprobs"]
            for mode in ("temperature", "raw", "sampled")
        ]

    scored, raw, sampled = talk(scene)
    assert scored["token_logprobs"] == raw["token_logprobs"] and raw["token_logprobs"][0] < -1
    assert sampled["token_logprobs"] == [0.0]


def test_penalties_biases_and_allowed_tokens_change_what_is_sampled(talk):
    async def scene(client):
        async def ids(**fields):
            common = {"prompt": "abc", "max_tokens": 8, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
            return (await post(client, "/v1/completions", **common, **fields))["choices"][0]["token_ids"]

        two = {"allowed_token_ids": [5, 6]}
        plain = await ids(**two)
        return plain, [
            await ids(frequency_penalty=2, **two), await ids(presence_penalty=2, **two),
            await ids(repetition_penalty=50), await ids(logit_bias={"7": 100}),
        ]  # fmt: skip

    plain, (frequency, presence, repetition, biased) = talk(scene)
    assert set(plain) <= {5, 6} and len(set(repetition)) == 8 and biased == [7] * 8
    assert sorted(frequency) == [5] * 4 + [6] * 4 and set(presence[:2]) == {5, 6}


def test_a_prefilled_answer_is_continued(talk, parts):
    begun = [*ASK, {"role": "assistant", "content": "It is"}]

    async def scene(client):
        ids = {"return_token_ids": True, "max_tokens": 1}
        vllm = {"continue_final_message": True, "add_generation_prompt": False}
        chat = await post(client, "/v1/chat/completions", messages=begun, **vllm, **ids)
        message = await post(client, "/v1/messages", messages=begun, **ids)
        tokens = await post(client, "/tokenize", messages=begun, **vllm)
        return chat["prompt_token_ids"], message["prompt_token_ids"], tokens["tokens"]

    chat, message, tokens = talk(scene)
    assert chat == message == tokens and parts[1].decode(chat).endswith("assistant\nIt is")


def test_reasoning_that_the_prompt_has_opened_is_told_apart(talk):
    async def scene(client):
        thinks = {"chat_template_kwargs": {"enable_thinking": True}, "guided_regex": None, "max_tokens": 3}
        chat = await post(client, "/v1/chat/completions", messages=ASK, seed=1, **thinks)
        enabled = {"thinking": {"type": "enabled", "budget_tokens": 9}, "max_tokens": 6, "temperature": 0}
        return chat, await stream(client, "/v1/messages", messages=ASK, **enabled)

    chat, events = talk(scene)
    message = chat["choices"][0]["message"]
    assert message["reasoning"] == message["reasoning_content"] and message["content"] == ""
    assert events[1]["content_block"]["type"] == "thinking"


def test_responses_continue_stored_ones_and_models_are_found_by_name(talk):
    async def scene(client):
        first = await post(
            client, "/v1/responses", input="One", instructions="Be brief", max_output_tokens=4, temperature=0
        )
        then = {"previous_response_id": first["id"], "max_output_tokens": 4, "temperature": 0, "return_token_ids": True}
        second = await post(client, "/v1/responses", input="Two", **then)
        found = (await client.get(f"/v1/responses/{first['id']}")).json()
        gone = await client.delete(f"/v1/responses/{first['id']}")
        missing = await post(client, "/v1/responses", 404, input="Three", previous_response_id=first["id"])
        model, nobody = await client.get("/v1/models/bytes"), await client.get("/v1/models/nobody")
        return first, second, found, gone.status_code, missing, model.json()["id"], nobody.status_code

    first, second, found, gone, missing, model, nobody = talk(scene)
    assert found == first and gone == 200 and "no response" in missing["message"]
    assert (first["status"], first["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    prompt = byte_tokenizer().decode(second["prompt_token_ids"])
    assert "Be brief" not in prompt and prompt.index("One") < prompt.index("Two")
    assert (model, nobody) == ("bytes", 404)


def test_the_wish_for_one_call_reaches_the_reader_from_three_protocols(talk, monkeypatch):
    from rldbg.inference.protocols import chat_jobs

    seen = []
    monkeypatch.setattr(chat_jobs, "Reading", lambda *given: seen.append(given[4]) or Reading(*given))

    async def scene(client):
        common = {"max_tokens": 2, "messages": ASK}
        for wanted in (False, True):
            choice = {"type": "auto", "disable_parallel_tool_use": not wanted}
            await post(client, "/v1/chat/completions", tools=[TOOL], parallel_tool_calls=wanted, **common)
            await post(client, "/v1/messages", tools=[MESSAGES_TOOL], tool_choice=choice, **common)
            fields = {"input": "x", "max_output_tokens": 2, "parallel_tool_calls": wanted}
            response = await post(client, "/v1/responses", tools=[RESPONSES_TOOL], **fields)
            assert response["parallel_tool_calls"] is wanted

    talk(scene)
    assert seen == [False] * 3 + [True] * 3


def test_a_prompt_is_echoed_in_a_stream_and_where_it_cannot_be_that_is_said(talk):
    async def scene(client):
        asked = {"prompt": "Weather?", "max_tokens": 3, "seed": 1, "echo": True}
        whole = (await post(client, "/v1/completions", **asked))["choices"][0]["text"]
        chunks = await stream(client, "/v1/completions", **asked)
        assert whole.startswith("Weather?") and "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole
        refused = await post(client, "/v1/completions", 400, stream=True, logprobs=1, **asked)
        assert "echo" in refused["error"]["message"]

    talk(scene)


def test_the_tool_runner_of_anthropic_is_told_that_there_are_no_threads(talk):
    async def scene(client):
        asked = {"messages": ASK, "max_tokens": 1, "thread": {"type": "create"}}
        return (await post(client, "/v1/messages", 400, **asked))["error"]

    refused = talk(scene)
    assert refused["details"]["error_code"] == "thread_unsupported_request" and "thread" in refused["message"]


def test_nothing_of_answered_and_refused_requests_is_kept(talk):
    async def scene(client):
        counts = []
        for number in range(12):
            words = [{"role": "user", "content": f"Question {number}"}]
            for path, body in {
                "/generate": {"input_ids": [5, number], "sampling_params": {"max_new_tokens": 2}},
                "/v1/chat/completions": {"messages": words, "max_tokens": 2, "stream": True},
                "/v1/responses": {"input": f"Question {number}", "max_output_tokens": 2},
                "/v1/messages": {"messages": words, "max_tokens": 2},
            }.items():
                assert (await client.post(path, json=body)).status_code == 200
                assert (await client.post(path, json=body | {"surprise": 1})).status_code == 400
            if number in (0, 11):
                gc.collect()
                kinds = (GenerationJob, PendingGeneration, Outcome)
                counts.append(sum(type(item) in kinds for item in gc.get_objects()))
        return counts

    counts = talk(scene)
    assert counts[-1] <= counts[0] + 5, counts  # the engine may hold its last batch; a leak adds one per round at least


def test_what_the_new_protocols_do_not_do_is_refused_by_name(talk):
    wrong = [
        ("/v1/responses", {"input": "x", "tools": [{"type": "web_search"}]}, "web_search"),
        ("/v1/responses", {"input": [{"type": "item_reference", "id": "x"}]}, "item_reference"),
        ("/v1/responses", {"input": "x", "include": ["file_search_call.results"]}, "file_search_call.results"),
        ("/v1/responses", {"input": "x", "background": True}, "background"),
        ("/v1/responses", {"input": "x", "tool_choice": "required"}, "no tools"),
        ("/v1/messages", {"messages": ASK}, "max_tokens"),
        ("/v1/messages", {"messages": [{"role": "user", "content": 5}], "max_tokens": 1}, "content"),
        ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "image"}]}], "max_tokens": 1}, "image"),
        ("/v1/messages", {"messages": ASK, "max_tokens": 1, "tools": [{"type": "bash", "name": "b"}]}, "bash"),
        ("/v1/chat/completions", {"messages": ASK, "reasoning_effort": "low"}, "reasoning_effort"),
        ("/v1/chat/completions", {"messages": ASK, "web_search_options": {}}, "web_search_options"),
    ]

    async def scene(client):
        for path, body, named in wrong:
            answer = await post(client, path, 400, **body)
            assert named in answer["error"]["message"], answer

    talk(scene)


@pytest.mark.parametrize(
    ("path", "field", "body"),
    [
        ("/v1/chat/completions", "reasoning_effort", {"messages": ASK, "reasoning_effort": "low"}),
        ("/v1/responses", "reasoning.effort", {"input": "a", "reasoning": {"effort": "low"}}),
        (
            "/v1/messages",
            "output_config.effort",
            {"messages": ASK, "max_tokens": 1, "output_config": {"effort": "low"}},
        ),
    ],
)
def test_an_effort_that_the_template_does_not_know_is_refused_by_the_field_it_came_in(talk, path, field, body):
    async def scene(client):
        return await client.post(path, json=body)

    answer = talk(scene)
    assert answer.status_code == 400 and f"{field}: the model's chat template" in answer.text


def test_a_forced_answer_has_several_calls_unless_the_client_wants_one(talk):
    chat = {"messages": ASK, "tools": [TOOL], "tool_choice": "required", "max_tokens": 300}
    named = {"type": "function", "function": {"name": "weather"}}

    async def scene(client):
        free = [await post(client, "/v1/chat/completions", **chat, seed=seed) for seed in range(12)]
        single = [chat | {"parallel_tool_calls": False}, chat | {"tool_choice": named}]
        return free, [
            await post(client, "/v1/chat/completions", **body, seed=seed) for body in single for seed in (1, 2)
        ]

    free, single = talk(scene)
    answers = [answer["choices"][0] for answer in free]
    counts = [len(choice["message"]["tool_calls"]) for choice in answers if choice["finish_reason"] == "tool_calls"]
    assert min(counts) == 1 and max(counts) > 1
    several = next(choice for choice in answers if len(choice["message"]["tool_calls"]) > 1)["message"]["tool_calls"]
    assert len({call["id"] for call in several}) == len(several)
    assert [len(answer["choices"][0]["message"]["tool_calls"]) for answer in single] == [1] * 4


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_grammar_of_several_calls_gives_what_the_family_reads(parts, family):
    from llguidance import LLMatcher

    form, tokenizer = family.form, parts[1]
    calls = [form.before.replace("NAME", "weather").replace("NUMBER", str(number)) for number in range(2)]
    written = [f'{call}{{"city": "{city}"}}{form.after}' for call, city in zip(calls, ("Rome", "Oslo"), strict=True)]
    one, two = written[:1], written if form.between is not None else written[:1]
    text = PretrainedText(tokenizer)
    for several, expected in ((True, two), (False, one)):
        grammar = forced_calls(family, {"weather": PARAMETERS}, text.added, several=several)
        matcher = LLMatcher(text.constrained(len(tokenizer), [tokenizer.eos_token_id]), "%llguidance {}\n" + grammar)
        region = form.first + (form.between or "").join(expected) + form.last
        tokens = tokenizer.encode(region, add_special_tokens=False)
        assert matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting(), matcher.get_error()
        assert [json.loads(arguments)["city"] for _, arguments in family.read(region, {})] == ["Rome", "Oslo"][
            : len(expected)
        ]


@pytest.mark.parametrize("pattern, place", [("<x", "cannot be used"), ("ab?<", "constraint failed")])
def test_a_constraint_that_no_token_can_meet_is_an_error_that_says_so(tmp_path, pattern, place):
    async def scene():
        backend = load_backend(tiny_folder(tmp_path / "tiny"), name="tiny", device="cpu")
        async with client_of(build_application(backend)) as client:
            return await client.post("/v1/chat/completions", json={"messages": ASK, "regex": pattern, "max_tokens": 9})

    answer = asyncio.run(scene())
    assert answer.status_code == 400 and place in answer.text and "no token of the model" in answer.text
