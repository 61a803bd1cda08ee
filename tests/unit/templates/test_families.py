"""What known families' templates do, by templates made here that behave as theirs."""

# ruff: noqa: E501 - a line break in a template is text

import pytest
from tokenizers import processors

from chat_tokenizer import chat_tokenizer
from rldbg.templates import ChatTemplate, examine_template, standard_conversations

TOOL_CALLS = (
    "{%- for c in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}"
)
QWEN2 = (
    """{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}{% else %}You are a helpful assistant.{% endif %}
# Tools
{% for t in tools %}{{ t | tojson }}
{% endfor %}<|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% else %}<|im_start|>system
You are a helpful assistant.<|im_end|>
{% endif %}{%- for m in messages %}{% if m.role == 'system' %}{% elif m.role == 'tool' %}<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ m.role }}
{{ m.content }}"""
    + TOOL_CALLS
    + """<|im_end|>
{% endif %}{%- endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
)
QWEN3 = (
    """{%- set ns = namespace(last=0) %}{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{%- if tools %}<|im_start|>system
{% for t in tools %}{{ t | tojson }}
{% endfor %}<|im_end|>
{% endif %}{%- for m in messages %}{%- if m.role == 'assistant' %}{%- set said = m.content or '' %}{%- set thought = '' %}{%- if '</think>' in said %}{%- set thought = said.split('</think>')[0].split('<think>')[-1].strip('\\n') %}{%- set said = said.split('</think>')[-1].lstrip('\\n') %}{%- endif %}<|im_start|>assistant
{% if loop.index0 > ns.last and (loop.last or thought) %}<think>
{{ thought }}
</think>

{% endif %}{{ said }}"""
    + TOOL_CALLS
    + """<|im_end|>
{% elif m.role == 'tool' %}<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}{%- endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
)
LLAMA = """{{- bos_token }}{%- if messages[0].role == 'system' %}{% set sys = messages[0].content | trim %}{% set rest = messages[1:] %}{% else %}{% set sys = '' %}{% set rest = messages %}{% endif %}<|start|>system<|end|>

{{ sys }}{% if tools %}{{ tools | tojson }}{% endif %}<|eot|>{% for m in rest %}<|start|>{{ m.role }}<|end|>

{{ (m.content or '') | trim }}{% for c in m.tool_calls or [] %}{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}{% endfor %}<|eot|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant<|end|>

{% endif %}"""
MISTRAL = """{%- if messages[0].role == 'system' %}{% set sys = messages[0].content %}{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}{%- set users = rest | selectattr('role','equalto','user') | list %}{{ bos_token }}{%- for m in rest %}{%- if m.role == 'user' %}{% if m == users[-1] and tools %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}[INST]{% if m == users[-1] and sys is defined %}{{ sys }}

{% endif %}{{ m.content }}[/INST]{%- elif m.role == 'assistant' and m.tool_calls %}[CALLS]{{ m.tool_calls | map(attribute='function') | list | tojson }}{{ eos_token }}{%- elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}{%- elif m.role == 'tool' %}[RES]{{ m.content }}[/RES]{%- endif %}{%- endfor %}"""
GEMMA = """{{ bos_token }}{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{%- for m in messages %}{%- set role = 'model' if m.role == 'assistant' else m.role %}<start_of_turn>{{ role }}
{{ m.content | trim }}<end_of_turn>
{% endfor %}{%- if add_generation_prompt %}<start_of_turn>model
{% endif %}"""
R1 = """{{ bos_token }}{%- for m in messages %}{%- if m.role == 'system' %}{{ m.content }}{%- elif m.role == 'user' %}<|User|>{{ m.content }}{%- elif m.role == 'assistant' %}<|Assistant|>{{ (m.content or '').split('</think>')[-1] }}{{ eos_token }}{%- endif %}{%- endfor %}{%- if add_generation_prompt %}<|Assistant|><think>
{% endif %}"""
IM = ("<|im_start|>", "<|im_end|>")
THINK = ("<think>", "</think>")
INST = ("[INST]", "[/INST]", "[TOOLS]", "[/TOOLS]", "[CALLS]", "[RES]", "[/RES]")
HISTORY, PROMPT, THINKING = "history-is-append-only", "generation-prompt-is-constant", "thinking-is-kept"
TWICE, TOOLS, TAKEN = "special-tokens-once", "tool-calls-survive", "conversation-is-taken"
# Template, its special tokens, the end of a turn, whether encoding adds a beginning token, what is broken, and what is
# trained on of the plain conversation.
FAMILIES = {
    "Qwen2": (QWEN2, IM, IM[1], False, {TOOLS}, "It is 4.<|im_end|>It is 8.<|im_end|>"),
    "Qwen3": (QWEN3, (*IM, *THINK), IM[1], False, {HISTORY, THINKING, TOOLS}, "<think>\n\n</think>\n\nIt is 8.<|im_end|>"),
    "Llama 3": (LLAMA, ("<|start|>", "<|end|>", "<|eot|>"), "<|eot|>", True, {TWICE, TOOLS}, "It is 4.<|eot|>It is 8.<|eot|>"),
    "Mistral": (MISTRAL, INST, "<eos>", True, {HISTORY, TWICE, TOOLS}, " It is 8.<eos>"),
    "Gemma": (GEMMA, ("<start_of_turn>", "<end_of_turn>"), "<end_of_turn>", True, {TAKEN, TWICE, TOOLS}, None),
    "DeepSeek-R1": (
        R1, ("<|User|>", "<|Assistant|>", *THINK), "<eos>", True, {HISTORY, PROMPT, THINKING, TWICE, TOOLS}, "It is 4.<eos>It is 8.<eos>",
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_breaks_what_it_is_known_for_and_nothing_else(family):
    template, special, end, adds_beginning, broken, trained = FAMILIES[family]
    tokenizer = chat_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": list(special)})
    tokenizer.eos_token, tokenizer.chat_template = end, template
    if adds_beginning:
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", tokenizer.bos_token_id)]
        )
    report = examine_template(ChatTemplate(tokenizer), standard_conversations(), model=family)
    assert {item.name for item in report.broken} == broken
    plain = [item for item in report.conversations if item.conversation.name == "plain"]
    assert [item.conversation.name for item in report.conversations][-2:] == ["thinking", "tools"]
    for item in plain:
        pairs = zip(item.texts, item.trained, strict=True)
        assert "".join(text for text, is_trained in pairs if is_trained) == trained
    assert bool(plain) == (trained is not None)
