"""Drives a server with the published SDKs of agents, all in one process: openai, anthropic, openai-agents, litellm,
inspect_ai, verifiers, langchain. Reads addresses from standard input and prints, for each, what the SDKs saw as JSON.

The server's model has random weights: tools are called because `tool_choice` forces it, everything else is any text.
One call each: the model would go on calling until it is cut.
"""

import asyncio
import copy
import inspect
import json
import os
import sys
from typing import Literal

os.environ |= {"OPENAI_API_KEY": "none", "ANTHROPIC_API_KEY": "none", "OPENAI_AGENTS_DISABLE_TRACING": "1"}
os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1", "LANGSMITH_TRACING": "false"}

import agents
import anthropic
import inspect_ai.model
import inspect_ai.tool
import litellm
import openai
import verifiers
from datasets import Dataset
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool as langchain_tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from verifiers.types import ClientConfig

MODEL = "bytes"
# Texts end soon: the token that ends them is made likely.
ENDS = {"logit_bias": {"258": 6}}
ONE_CALL = {"parallel_tool_calls": False}
City = Literal["Rome", "Oslo"]
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"],
          "additionalProperties": False}  # fmt: skip
FUNCTION = {"name": "weather", "description": "The weather of a city.", "parameters": {}}
ASK = [{"role": "user", "content": "Weather?"}]
called = []


def weather(city: City) -> str:
    """The weather of a city."""
    called.append(city)
    return "sun"


class Place(BaseModel):
    city: City


def openai_chat(base):
    client = openai.OpenAI(base_url=f"{base}/v1", max_retries=0, timeout=60)
    common = {"model": MODEL, "tools": [{"type": "function", "function": FUNCTION}], "max_tokens": 90} | ONE_CALL
    first = client.chat.completions.create(messages=ASK, tool_choice="required", **common).choices[0]
    message = first.message.model_dump(exclude_none=True)
    result = {"role": "tool", "tool_call_id": first.message.tool_calls[0].id, "content": "sun"}
    then = client.chat.completions.create(messages=[*ASK, message, result], **(common | {"max_tokens": 9})).choices[0]
    with client.chat.completions.stream(messages=ASK, tool_choice="required", **common) as stream:
        streamed = stream.get_final_completion().choices[0].message.tool_calls[0].function
    parsed = client.chat.completions.parse(model=MODEL, messages=ASK, response_format=Place, max_tokens=40)
    return [first.finish_reason, first.message.tool_calls[0].function.name, json.loads(streamed.arguments),
            parsed.choices[0].message.parsed.city, len(then.message.content),
            client.models.retrieve(MODEL).id]  # fmt: skip


def openai_responses(base):
    client = openai.OpenAI(base_url=f"{base}/v1", max_retries=0, timeout=60)
    common = {"model": MODEL, "tools": [{"type": "function", "strict": True} | FUNCTION], "max_output_tokens": 90}
    common |= ONE_CALL
    first = client.responses.create(input="Weather?", tool_choice="required", **common)
    call = first.output[0]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
    then = client.responses.create(input=[result], previous_response_id=first.id, **(common | {"max_output_tokens": 9}))
    with client.responses.stream(input="Weather?", tool_choice="required", **common) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_response().output[0]
    parsed = client.responses.parse(model=MODEL, input="Weather?", text_format=Place, max_output_tokens=40)
    return [call.name, json.loads(call.arguments), then.status, kinds[0], kinds[-1], json.loads(streamed.arguments),
            parsed.output_parsed.city]  # fmt: skip


def anthropic_messages(base):
    client = anthropic.Anthropic(base_url=base, max_retries=0, timeout=60)
    tools = [{"name": "weather", "description": "", "input_schema": copy.deepcopy(SCHEMA)}]
    common = {"model": MODEL, "tools": tools, "max_tokens": 90}
    first = client.messages.create(
        messages=ASK, tool_choice={"type": "any", "disable_parallel_tool_use": True}, **common
    )
    result = {"type": "tool_result", "tool_use_id": first.content[0].id, "content": "sun"}
    turns = [*ASK, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    then = client.messages.create(messages=turns, **(common | {"max_tokens": 9}))
    text = client.messages.create(messages=ASK, tool_choice={"type": "none"}, **(common | {"max_tokens": 9}))
    with client.messages.stream(messages=ASK, tool_choice={"type": "tool", "name": "weather"}, **common) as stream:
        streamed = stream.get_final_message()
    counted = client.messages.count_tokens(model=MODEL, messages=turns, tools=tools).input_tokens
    return [first.stop_reason, first.content[0].input, then.stop_reason, streamed.content[0].input,
            counted == then.usage.input_tokens, [block.type for block in text.content]]  # fmt: skip


def openai_agents(base):
    client = openai.AsyncOpenAI(base_url=f"{base}/v1", max_retries=0, timeout=60)
    seen = []
    for kind in (agents.OpenAIResponsesModel, agents.OpenAIChatCompletionsModel):
        settings = agents.ModelSettings(tool_choice="required", max_tokens=90, extra_body=ENDS, **ONE_CALL)
        agent = agents.Agent(
            "a", model=kind(model=MODEL, openai_client=client), tools=[agents.function_tool(weather)],
            model_settings=settings,
        )  # fmt: skip
        called.clear()
        run = agents.Runner.run_sync(agent, "Weather?", max_turns=4)
        seen += [len(called), called[0], type(run.final_output).__name__]
    return seen


def with_litellm(base):
    tools = [{"type": "function", "function": FUNCTION}]
    common = {"messages": ASK, "tools": tools, "tool_choice": "required", "max_tokens": 90, "api_key": "none"}
    common |= ONE_CALL
    chat = litellm.completion(model=f"hosted_vllm/{MODEL}", api_base=f"{base}/v1", **common)
    claude = litellm.completion(model=f"anthropic/{MODEL}", api_base=base, **common)
    chunks = litellm.completion(model=f"hosted_vllm/{MODEL}", api_base=f"{base}/v1", stream=True, **common)
    streamed = litellm.stream_chunk_builder(list(chunks), messages=ASK)
    calls = [answer.choices[0].message.tool_calls[0].function for answer in (chat, claude, streamed)]
    return [(call.name, json.loads(call.arguments)) for call in calls]


def with_inspect(base):
    city = inspect_ai.tool.ToolParam(type="string", enum=["Rome", "Oslo"])
    parameters = inspect_ai.tool.ToolParams(properties={"city": city}, required=["city"])
    info = inspect_ai.tool.ToolInfo(name="weather", description="", parameters=parameters)
    seen = []
    for name, url in (("openai-api/rldbg", f"{base}/v1"), ("openai", f"{base}/v1"), ("anthropic", base)):
        options = {"responses_api": True} if name == "openai" else {}
        model = inspect_ai.model.get_model(
            f"{name}/{MODEL}", base_url=url, api_key="none", memoize=False,
            config=inspect_ai.model.GenerateConfig(max_tokens=90, max_retries=0, **ONE_CALL), **options,
        )  # fmt: skip
        output = asyncio.run(model.generate("Weather?", tools=[info], tool_choice="any"))
        seen.append([call.function for call in output.message.tool_calls] + [output.stop_reason])
    return seen


def with_verifiers(base):
    rows = Dataset.from_list([{"prompt": ASK, "answer": "sun"}])
    rubric = verifiers.Rubric(funcs=[lambda completion, **_: float(len(completion) > 1)])
    environment = verifiers.ToolEnv(dataset=rows, eval_dataset=rows, tools=[weather], rubric=rubric, max_turns=2)
    client = ClientConfig(api_base_url=f"{base}/v1", api_key_var="OPENAI_API_KEY", max_retries=0)
    called.clear()
    sampling = {"max_tokens": 90, "tool_choice": "required"} | ONE_CALL
    outputs = environment.evaluate_sync(client, model=MODEL, sampling_args=sampling, num_examples=1)
    return [len(called), outputs["outputs"][0]["reward"]]


def with_langchain(base):
    @langchain_tool
    def look(city: City) -> str:
        """The weather of a city."""
        return "sun"

    chat = ChatOpenAI(model=MODEL, base_url=f"{base}/v1", max_tokens=90, max_retries=0)
    responses = ChatOpenAI(model=MODEL, base_url=f"{base}/v1", max_tokens=90, max_retries=0, use_responses_api=True)
    claude = ChatAnthropic(model=MODEL, base_url=base, max_tokens=90, max_retries=0)
    models = [model.bind_tools([look], tool_choice="any", **ONE_CALL) for model in (chat, responses, claude)]
    calls = [model.invoke("Weather?").tool_calls[0] for model in models]
    chunks = list(models[0].stream("Weather?"))
    calls.append(sum(chunks[1:], chunks[0]).tool_calls[0])
    place = chat.with_structured_output(Place, method="json_schema").invoke("Weather?")
    return [(call["name"], call["args"]["city"] in ("Rome", "Oslo")) for call in calls] + [place.city]


def fields(_base):
    """By route, every field that the SDKs can send."""
    client, claude = openai.OpenAI(), anthropic.Anthropic()
    senders = {
        "/v1/completions": [client.completions.create],
        "/v1/chat/completions": [client.chat.completions.create],
        "/v1/responses": [client.responses.create],
        "/v1/responses/input_tokens": [client.responses.input_tokens.count],
        "/v1/messages": [claude.messages.create, claude.beta.messages.create],
        "/v1/messages/count_tokens": [claude.messages.count_tokens, claude.beta.messages.count_tokens],
    }
    of_http = {"extra_headers", "extra_query", "extra_body", "timeout"}
    return {
        path: sorted({name for send in sends for name in inspect.signature(send).parameters} - of_http)
        for path, sends in senders.items()
    }


SCENES = (openai_chat, openai_responses, anthropic_messages, openai_agents, with_litellm, with_inspect, with_langchain,
          with_verifiers, fields)  # fmt: skip
for line in sys.stdin:
    report = {}
    for scene in SCENES:
        # Some SDKs change what they are given.
        FUNCTION["parameters"] = copy.deepcopy(SCHEMA)
        try:
            report[scene.__name__] = scene(line.strip())
        except Exception as error:  # noqa: BLE001 - one SDK must not hide what the others saw
            report[scene.__name__] = f"{type(error).__name__}: {error}"[:2000]
    print(json.dumps(report), flush=True)
