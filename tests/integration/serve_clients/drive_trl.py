"""Drives an inference server with TRL's own client; prints what it saw as JSON.

The client insists on an installed vLLM, which it needs only to send weights through NCCL: that question alone is
answered for it.
"""

import json
import sys

from trl.generation import vllm_client

vllm_client.is_vllm_available = lambda *_: True
client = vllm_client.VLLMClient(base_url=sys.argv[1], connection_timeout=30)
report = {"model": client.model, "world_size": client.get_world_size()}

greedy = {"temperature": 0, "max_tokens": 6, "generation_kwargs": {"ignore_eos": True}}
prompts = [[5, 12, 6, 16], [7, 8]]
one = client.generate(prompts, n=2, logprobs=0, **greedy)
report["generated"] = one
report["likeliest"] = client.generate(prompts, logprobs=3, **greedy)
report["texts"] = client.generate(["1+2="], **greedy)
chat = [[{"role": "user", "content": "3+4="}], [{"role": "user", "content": "1+1="}]]
report["chat"] = client.chat(chat, n=2, chat_template_kwargs={"enable_thinking": False}, **greedy)

sequences = [prompt + ids for prompt, ids in zip(prompts, one["completion_ids"][::2], strict=True)]
report["scored"] = client.get_sequence_logprobs(sequences, [len(prompt) for prompt in prompts], top_logprobs=2)
client.reset_prefix_cache()
try:
    client.init_communicator("cpu")
except RuntimeError as error:
    report["no weights"] = str(error)
print(json.dumps(report))
