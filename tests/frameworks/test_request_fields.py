"""Every field of the requests of the installed vLLM is declared on our routes: read, without effect, or refused.

Read from its sources, without importing it: a field that a newer version adds fails this test. The SDKs' own fields are
looked at where they are driven, in test_agent_sdks; other versions' are in tests/unit/inference/documented_fields.json.
"""

import ast
from pathlib import Path

from environments import vllm

from rldbg.inference.protocols.route_fields import ROUTE_FIELDS

REQUESTS = {
    "CompletionRequest": "/v1/completions",
    "ChatCompletionRequest": "/v1/chat/completions",
    "ResponsesRequest": "/v1/responses",
    "AnthropicMessagesRequest": "/v1/messages",
    "AnthropicCountTokensRequest": "/v1/messages/count_tokens",
    "TokenizeCompletionRequest": "/tokenize",
    "TokenizeChatRequest": "/tokenize",
    "DetokenizeRequest": "/detokenize",
    "GenerateRequest": "/inference/v1/generate",
}


def test_every_field_of_the_installed_vllm_is_declared():
    (package,) = Path(vllm()).parents[1].glob("lib/python*/site-packages/vllm")
    seen = {}
    for file in (package / "entrypoints").rglob("protocol.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name in REQUESTS:
                fields = (item.target.id for item in node.body if isinstance(item, ast.AnnAssign))
                seen[node.name] = {name for name in fields if name != "model_config" and not name.startswith("_")}
    assert seen.keys() == REQUESTS.keys() and all(seen.values()), "vLLM calls its requests differently now"
    unknown = {name: fields - ROUTE_FIELDS[REQUESTS[name]].keys() for name, fields in seen.items()}
    assert not any(unknown.values()), unknown
