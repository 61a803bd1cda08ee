"""Chat templates of the usual families, made here, and what is said of each."""

import json

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from chat_tokenizer import CHATML, chat_tokenizer
from rldbg.cli.application import run
from rldbg.templates import (
    Conversation,
    conversation_of_roles,
    examine_template,
    load_template,
    standard_conversations,
)

DROPS_THINKING = CHATML.replace(
    "{{ m.content }}",
    "{% if not loop.last and '</think>' in m.content %}{{ m.content.split('</think>')[-1].lstrip() }}"
    "{% else %}{{ m.content }}{% endif %}",
)
OPENS_THINKING = CHATML.replace("<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n<think>\n{% endif %}")
NO_END = CHATML.replace("<|im_end|>\n{% endfor %}{% if add", "\n{% endfor %}{% if add")
IGNORES_TOOLS = CHATML[CHATML.index("{% for m") :]
WITH_BOS = "{{ bos_token }}" + CHATML
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}\n"
    "{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
JSON_TEXT = CHATML.replace(
    "{{ c.function | tojson }}", '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
)


@pytest.fixture(scope="module")
def tokenizer():
    """The template is set by each test."""
    return chat_tokenizer()


@pytest.fixture
def examined(tokenizer, tmp_path):
    def examine(template, conversations=None, tokenizer=tokenizer):
        tokenizer.chat_template = template
        tokenizer.save_pretrained(str(tmp_path))
        loaded = load_template(str(tmp_path))
        report = examine_template(loaded, conversations or standard_conversations(), model="made here")
        return {item.name: item for item in report.properties}, report

    return examine


def broken(properties):
    return {name for name, item in properties.items() if item.verdict == "broken"}


def test_a_template_that_only_appends_is_fit_but_for_arguments_as_text(examined):
    properties, report = examined(CHATML)
    assert broken(properties) == {"tool-calls-survive"}
    assert "escaped twice" in properties["tool-calls-survive"].why
    plain = report.conversations[0]
    trained = "".join(text for text, mark in zip(plain.texts, plain.trained, strict=True) if mark)
    assert trained == "It is 4.<|im_end|>It is 8.<|im_end|>"


def test_the_texts_of_tokens_are_the_conversation(examined):
    for rendered in examined(CHATML)[1].conversations:
        assert "".join(rendered.texts) == rendered.whole.text


def test_reasoning_that_is_dropped_rewrites_the_history(examined):
    properties, _ = examined(DROPS_THINKING)
    assert {"thinking-is-kept", "history-is-append-only"} <= broken(properties)
    assert "Two and three make five." in properties["thinking-is-kept"].why
    why = properties["history-is-append-only"].why
    assert "message 1" in why and "writes the earlier turn differently" in why
    assert properties["history-is-append-only"].conversation == "thinking"


def test_a_generation_prompt_that_the_complete_turn_lacks(examined):
    properties, _ = examined(OPENS_THINKING)
    assert "generation-prompt-is-constant" in broken(properties)
    assert "<think" in properties["generation-prompt-is-constant"].why


def test_a_turn_without_an_end_teaches_nobody_to_stop(examined):
    properties, _ = examined(NO_END)
    assert "turn-end-is-trained" in broken(properties)


def test_tools_that_the_template_leaves_out(examined):
    properties, _ = examined(IGNORES_TOOLS)
    assert "does not show the tools" in properties["tool-calls-survive"].why


def test_a_call_whose_arguments_are_lost(examined):
    properties, _ = examined(CHATML.replace("{{ c.function | tojson }}", "{{ c.function.name }}"))
    assert "'place' of 'get_weather' in message 1" in properties["tool-calls-survive"].why


def test_arguments_that_are_not_json_are_no_error_of_ours(examined):
    call = {"type": "function", "function": {"name": "get_weather", "arguments": "place: Rome"}}
    asked, called = {"role": "user", "content": "Rain?"}, {"role": "assistant", "content": "", "tool_calls": [call]}
    properties, _ = examined(CHATML, [Conversation("own", (asked, called))])
    assert properties["tool-calls-survive"].verdict == "holds"


def test_arguments_spelt_out_can_be_read_back(examined):
    spelt = "{{ c.function.name }}{% for k, v in c.function.arguments.items() %}<{{ k }}>{{ v }}{% endfor %}"
    properties, _ = examined(CHATML.replace("{{ c.function | tojson }}", spelt))
    assert "refused by the template" in properties["tool-calls-survive"].why


def test_arguments_as_text_are_escaped_twice(examined):
    properties, _ = examined(JSON_TEXT)
    assert "escaped twice" in properties["tool-calls-survive"].why


def test_a_beginning_token_is_doubled_if_encoding_adds_one(examined, tokenizer):
    from tokenizers.processors import TemplateProcessing

    adding = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(tokenizer.backend_tokenizer.to_str()),
        bos_token="<bos>",
        eos_token="<|im_end|>",
    )
    adding.backend_tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", adding.bos_token_id)]
    )
    plain = [conversation_of_roles(["user", "assistant"])]
    assert broken(examined(CHATML, plain, adding)[0]) == set()
    properties, _ = examined(WITH_BOS, plain, adding)
    assert broken(properties) == {"special-tokens-once"}
    assert "beginning token '<bos>' occurs twice" in properties["special-tokens-once"].why


def test_an_answer_that_is_cut_differently_by_itself(examined):
    """A tokenizer that puts a space before every text: what followed a line break has none in the conversation."""
    words = ["<unk>", "<eos>", "It", "▁It", "▁is", "is", ":", "▁:"]
    inner = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme="first"), pre_tokenizers.Split(":", "isolated")]
    )
    inner.decoder = decoders.Metaspace()
    spaced = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", eos_token="<eos>")
    said = [{"role": "user", "content": "is"}, {"role": "assistant", "content": "It is"}]
    template = "{% for m in messages %}{% if m.role == 'assistant' %}:{% endif %}{{ m.content }}{% endfor %}<eos>"
    template = template.replace("<eos>", "{% if add_generation_prompt %}:{% else %}<eos>{% endif %}")
    properties, _ = examined(template, [Conversation("spaced", tuple(said))], spaced)
    assert "the answer in message 1" in properties["reencoding-is-stable"].why


def test_pieces_that_join_over_the_border_of_two_turns(examined):
    """`ab` is a token of its own, so an answer `a` followed by a turn that begins with `b` is cut differently."""
    inner = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "ab": 2, "<eos>": 3}, merges=[("a", "b")]))
    inner.decoder = decoders.Fuse()
    joining = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>")
    said = [{"role": role, "content": text} for role, text in zip(("user", "assistant") * 2, "babb", strict=True)]
    properties, _ = examined(
        "{% for m in messages %}{{ m.content }}{% endfor %}", [Conversation("joined", tuple(said))], joining
    )
    assert "split into different tokens" in properties["history-is-append-only"].why


def test_marks_of_the_template_are_held_against_the_turns(examined):
    plain = [conversation_of_roles(["user", "assistant", "user", "assistant"])]
    assert broken(examined(MARKED, plain)[0]) == set()
    without_end = MARKED.replace("<|im_end|>{% endgeneration %}", "{% endgeneration %}<|im_end|>")
    properties, _ = examined(without_end, plain)
    assert broken(properties) == {"mask-agrees"}
    assert "<|im_end|>" in properties["mask-agrees"].why and "is not marked" in properties["mask-agrees"].why


def test_a_refused_conversation_is_said_and_the_others_are_tried(examined):
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system turn') }}{% endif %}" + CHATML
    properties, report = examined(refusing)
    assert "no system turn" in properties["conversation-is-taken"].why
    assert [item.conversation.name for item in report.conversations] == ["thinking", "tools"]


def test_what_cannot_be_tried_says_why(examined):
    properties, _ = examined(CHATML, [conversation_of_roles(["user", "assistant"])])
    assert properties["history-is-append-only"].verdict == "not tried"
    assert "two assistant turns" in properties["history-is-append-only"].why
    assert properties["mask-agrees"].verdict == "not tried"


def test_the_command(examined, tmp_path, capsys):
    examined(DROPS_THINKING)
    assert run(["check-template", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "broken" in printed and "thinking-is-kept" in printed and "tokens are trained on" in printed
    assert run(["check-template", str(tmp_path), "--turns", "user,assistant", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] and len(document["conversations"][0]["tokens"]) == len(
        document["conversations"][0]["trained"]
    )


def test_own_conversations_and_templates(examined, tmp_path, capsys):
    examined(CHATML)
    (tmp_path / "chat.json").write_text('[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]')
    (tmp_path / "other.jinja").write_text(NO_END)
    words = ["check-template", str(tmp_path), "--conversation", str(tmp_path / "chat.json")]
    assert run(words) == 0
    assert run([*words, "--template", str(tmp_path / "other.jinja")]) == 1
    assert "turn-end-is-trained" in capsys.readouterr().out


def test_own_tools_are_called_and_must_be_shown(examined, tmp_path, capsys):
    examined(CHATML)
    tool = {"name": "look_up", "parameters": {"properties": {"word": {"type": "string"}, "most": {"type": "integer"}}}}
    (tmp_path / "tools.json").write_text(json.dumps([{"type": "function", "function": tool}]))
    words = ["check-template", str(tmp_path), "--tools", str(tmp_path / "tools.json"), "--json"]
    run([*words, "--turns", "user,assistant"])
    turns, called = json.loads(capsys.readouterr().out)["conversations"]
    assert (turns["name"], called["name"]) == ("turns", "tools")
    texts = "".join(called["texts"])
    assert "look_up" in texts and '"most": 2' in texts and "get_weather" not in texts


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tools", "missing.json"], "cannot read the tools"),
        (["--turns", "user,asistant"], "'asistant' is not a role"),
        (["--turns", "user"], "nothing is trained on"),
        (["--conversation", "missing.json"], "cannot read the conversation"),
        (["--template", "missing.jinja"], "cannot read the template"),
    ],
)
def test_bad_input_is_told(examined, tmp_path, capsys, words, message):
    examined(CHATML)
    assert run(["check-template", str(tmp_path), *words]) == 2
    assert message in capsys.readouterr().err


def test_a_model_that_is_not_here_says_how_to_fetch_it(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert run(["check-template", "nobody/nothing"]) == 2
    assert "hf download nobody/nothing" in capsys.readouterr().err
