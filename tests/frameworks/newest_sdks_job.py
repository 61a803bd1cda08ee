"""Drives a server with SDKs whose newest versions do not fit beside the others: litellm, or verifiers 0.4.

Arguments: which, the server's address, the folder of its model. Prints what was seen as JSON.
"""

import asyncio
import json
import os
import sys

os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1", "KEY": "none"}
MODEL = "bytes"
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"],
          "additionalProperties": False}  # fmt: skip
FUNCTION = {"name": "weather", "description": "The weather of a city.", "parameters": SCHEMA}
ASK = [{"role": "user", "content": "Weather?"}]
CHAT = {"messages": ASK, "tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required",
        "max_tokens": 90}  # fmt: skip


def with_litellm(base, _folder):
    import litellm

    seen = {}
    for name, url in (("hosted_vllm", f"{base}/v1"), ("openai", f"{base}/v1"), ("anthropic", base)):
        common = {"model": f"{name}/{MODEL}", "api_base": url, "api_key": "none"}
        call = litellm.completion(**CHAT, **common).choices[0].message.tool_calls[0].function
        text = litellm.completion(messages=ASK, max_tokens=5, stream=True, **common)
        seen[name] = [call.name, json.loads(call.arguments)["city"] in ("Rome", "Oslo"), len(list(text)) > 1]
    answer = litellm.responses(model=f"openai/{MODEL}", input="x", max_output_tokens=5, api_base=f"{base}/v1",
                               api_key="none")  # fmt: skip
    return seen | {"responses": answer.status}


def with_verifiers(base, folder):
    import verifiers.v1 as vf
    from verifiers.v1.dialects import AnthropicDialect, ChatDialect, ResponsesDialect
    from verifiers.v1.types import SamplingConfig

    bodies = (
        (ChatDialect(), CHAT),
        (ResponsesDialect(), {"input": "Weather?", "tools": [{"type": "function"} | FUNCTION],
                              "tool_choice": "required", "max_output_tokens": 90}),
        (AnthropicDialect(), {"messages": ASK, "max_tokens": 90, "tool_choice": {"type": "any"},
                              "tools": [{"name": "weather", "input_schema": SCHEMA}]}),
    )  # fmt: skip

    async def ask():
        seen = {}
        client = vf.resolve_client(vf.EvalClientConfig(base_url=f"{base}/v1", api_key_var="KEY"))
        sampling = SamplingConfig(max_tokens=8, temperature=1.0)
        for dialect, body in bodies:
            answer = await client.get_response(dialect, {"model": MODEL} | body, sampling, session_id="s")
            relayed = await client.relay(dialect, {"model": MODEL, "stream": True} | body, session_id="s")
            events = [event async for event in relayed.chunks]
            await relayed.close()
            seen[type(dialect).__name__] = [answer.message.tool_calls[0].name, len(events) > 1]
        config = vf.TrainClientConfig(base_url=f"{base}/v1", api_key_var="KEY", renderer_model_name=folder)
        trained = await vf.resolve_client(config).get_response(
            ChatDialect(), {"model": MODEL, "messages": ASK}, sampling
        )
        tokens = trained.tokens
        return seen | {"train": [len(tokens.completion_ids), len(tokens.completion_logprobs)]}

    return asyncio.run(ask())


if __name__ == "__main__":
    which, base, folder = sys.argv[1:]
    print(json.dumps({"litellm": with_litellm, "verifiers": with_verifiers}[which](base, folder)), flush=True)
    os._exit(0)  # threads of the SDKs need not be waited for
