"""The tools of `rldbg mcp` through the SDK's own client, in this process."""

import asyncio
from types import SimpleNamespace

import pytest

from rldbg.core import UsageError
from rldbg.mcp import Workspace, build_server
from rldbg.mcp.live_tools import refuse_effects
from rldbg.mcp.tool_results import ToolResult, cited
from ui_recordings import two_turns

LOOKING = {"list", "show", "check", "compare", "mismatch", "doctor", "zoo", "stacks", "hang", "evaluate"}


def ask(workspace, *calls):
    """The text, the facts and whether it failed, of each call."""
    from mcp import Client

    async def talk():
        async with Client(build_server(workspace)) as client:
            tools = (await client.list_tools()).tools
            answers = [await client.call_tool(name, arguments) for name, arguments in calls]
        return tools, [
            SimpleNamespace(text=a.content[0].text, facts=a.structured_content, failed=a.is_error) for a in answers
        ]

    return asyncio.run(talk())


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    two_turns(folder / "right")
    two_turns(folder / "wrong", shift=0.5)
    return Workspace((str(folder),))


def test_only_tools_that_look_are_offered_unless_control_is_allowed(workspace):
    tools, _ = ask(workspace)
    assert {tool.name for tool in tools} == LOOKING
    assert all(tool.annotations.read_only_hint and tool.description for tool in tools)
    tools, _ = ask(Workspace((), allow_control=True))
    assert {tool.name for tool in tools} == LOOKING | {"command", "break", "pause", "continue"}


def test_answers_are_those_of_the_verbs_and_cite_places(workspace):
    _, (listed, compared, checked, shown) = ask(
        workspace,
        ("list", {}),
        ("compare", {"run_a": "right", "run_b": "wrong"}),
        ("check", {"run": "wrong"}),
        ("show", {"run": "wrong", "step": 1, "sample": "g0/2"}),
    )
    assert "right: steps 0–2" in listed.text
    assert "different, first at stage old_log_probs" in compared.text
    assert compared.facts["citations"] == [
        {"run": "wrong", "step": 1, "rank": 0, "micro": 0, "sample": "g0/2", "token": 0}
    ]
    assert "- run wrong, step 1, rank 0, micro 0, sample g0/2, token 0" in compared.text
    assert "checks hold" in checked.text
    assert "g0/2" in shown.text and shown.facts["citations"] == [{"run": "wrong", "step": 1, "sample": "g0/2"}]


def test_a_long_answer_is_cut_says_so_and_can_be_continued(workspace):
    _, (whole,) = ask(workspace, ("zoo", {"limit": 40000}))
    _, (first,) = ask(workspace, ("zoo", {"limit": 1000}))
    assert len(first.text) < 1300 and f"of {first.facts['total_characters']}; call again with offset=" in first.text
    _, (second,) = ask(workspace, ("zoo", {"limit": 1000, "offset": first.facts["next_offset"]}))
    body = [page.text.partition("\n\n[truncated")[0] for page in (first, second)]
    assert whole.text.startswith("\n".join(body))


def test_errors_say_what_is_wrong_and_what_to_do(workspace, tmp_path):
    _, answers = ask(
        workspace,
        ("check", {"run": "absent"}),
        ("show", {"run": "right", "sample": "nonsense"}),
        ("show", {"run": "right", "step": 99}),
        ("hang", {"run": "right"}),
        ("doctor", {"path": "/etc/passwd"}),
        ("doctor", {}),
        ("zoo", {"words": "no such bug"}),
        ("check", {"run": "right", "limit": 1}),
    )
    assert all(answer.failed for answer in answers)
    expected = (
        "runs: right, wrong",
        "GROUP/RUN",
        "it has kinds",
        "not running",
        "outside the opened folders",
        "give one of",
        "fewer words",
        "200",
    )
    for answer, words in zip(answers, expected, strict=True):
        assert words in answer.text, answer.text


def test_doctor_reads_logs_below_what_was_opened(tmp_path):
    log = tmp_path / "train.log"
    log.write_text(
        'Traceback (most recent call last):\n  File "a.py", line 1, in f\nIndexError: tuple index out of range\n'
    )
    _, (answer,) = ask(Workspace((str(tmp_path),)), ("doctor", {"path": str(log)}))
    assert not answer.failed and "IndexError" in answer.text


@pytest.mark.parametrize(
    "expression", ["loss", "batch['mask'][0, :4]", "model.layers[0].weight.shape", "len(rows) > 3", "-a + b * 2"]
)
def test_looking_needs_no_leave(expression):
    refuse_effects(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('true')",
        "loss.backward()",
        "x := 3",
        "[f() for f in g]",
        "lambda: 0",
        "a = 1",
        "",
        "await x",
        "f'{x!r}'",
        "eval('1')",
    ],
)
def test_whatever_could_change_the_run_needs_leave(expression):
    with pytest.raises(UsageError):
        refuse_effects(expression)


def test_a_page_ends_at_a_line_and_past_the_end_is_said():
    answer = ToolResult("\n".join(f"line {number:04}" for number in range(100)), more="show")
    text, facts = answer.page(0, 205)
    assert facts["next_offset"] % 10 == 0 and "next:" not in text
    assert "nothing is left" in answer.page(5000, 200)[0]
    assert answer.page(900, 4000)[0].endswith("next: show")


def test_places_are_found_in_the_words_of_findings():
    found = cited(
        "r",
        "step 4 sample 2+9#1/2 token 7: rollout -0.1",
        "step 0, epoch 0, rank 1, micro 0",
        "no place",
        "step 0, epoch 0, rank 1, micro 0",
    )
    assert found == [
        {"run": "r", "step": 4, "sample": "2+9#1/2", "token": 7},
        {"run": "r", "step": 0, "rank": 1, "micro": 0},
    ]
