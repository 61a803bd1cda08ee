"""Drives an inference server with the published `openai` and `litellm` clients; prints what they saw as JSON."""

import json
import sys

import litellm
import openai

base = f"{sys.argv[1]}/v1"
client = openai.OpenAI(base_url=base, api_key="none", max_retries=0, timeout=60)
report = {"models": [model.id for model in client.models.list()]}

greedy = {"model": "tiny", "max_tokens": 6, "temperature": 0}
extra = {"ignore_eos": True, "return_token_ids": True}
whole = client.completions.create(prompt=[5, 12, 6, 16], logprobs=2, n=2, extra_body=extra, **greedy)
report["completion_ids"] = [choice.token_ids for choice in whole.choices]
report["completion_logprobs"] = whole.choices[0].logprobs.token_logprobs
report["top_logprobs"] = [len(place) for place in whole.choices[0].logprobs.top_logprobs]
report["usage"] = whole.usage.model_dump(include={"prompt_tokens", "completion_tokens", "total_tokens"})

parts = list(client.completions.create(prompt=[5, 12, 6, 16], stream=True, logprobs=0, extra_body=extra, **greedy))
report["streamed_ids"] = [token for part in parts for choice in part.choices for token in choice.token_ids]
report["streamed_text"] = "".join(choice.text for part in parts for choice in part.choices)
report["whole_text"] = whole.choices[0].text

messages = [{"role": "user", "content": "What is 3+4?"}]
chat = client.chat.completions.create(
    messages=messages, logprobs=True, top_logprobs=3, seed=7, model="tiny", max_completion_tokens=5, extra_body=extra
)
report["chat"] = chat.choices[0].message.content
report["chat_logprobs"] = [entry.logprob for entry in chat.choices[0].logprobs.content]
report["chat_top"] = [len(entry.top_logprobs) for entry in chat.choices[0].logprobs.content]
stream = client.chat.completions.create(
    messages=messages, seed=7, model="tiny", max_completion_tokens=5, extra_body=extra, stream=True,
    stream_options={"include_usage": True},
)  # fmt: skip
chunks = list(stream)
report["chat_streamed"] = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
report["chat_usage"] = chunks[-1].usage.completion_tokens
report["finish"] = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1]
try:
    client.completions.create(model="tiny", prompt=[5, 6], temperature=-1)
except openai.BadRequestError as error:
    report["refused"] = str(error)

answer = litellm.completion(
    model="hosted_vllm/tiny", api_base=base, api_key="none", messages=messages, seed=7, max_tokens=5, ignore_eos=True
)
report["litellm"] = answer.choices[0].message.content
pieces = litellm.completion(
    model="openai/tiny", api_base=base, api_key="none", messages=messages, seed=7, max_tokens=5, stream=True,
    extra_body={"ignore_eos": True},
)  # fmt: skip
report["litellm_streamed"] = "".join(piece.choices[0].delta.content or "" for piece in pieces)
print(json.dumps(report))
