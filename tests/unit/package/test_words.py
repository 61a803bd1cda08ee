"""`make words` misses no text, however it reaches the user."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "docs"))

import words  # noqa: E402


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ('def f(n):\n    return f"rank {n} never entered it"', ["rank {} never entered it"]),
        ('KINDS = {"lock": "holds the lock"}', ["holds the lock"]),
        ('yield Finding("id", "the loss is NaN")', ["the loss is NaN"]),
        ('"""What this module is for."""\ndef f():\n    "How it works."', []),
        ('X = re.compile(r"exit code (?P<n>\\\\d+) of it")\ndef f(a: "Run | None") -> "Path of it": ...', []),
        ('page = "<h2>Where the time goes</h2>"', ["Where the time goes"]),
    ],
)
def test_a_text_is_listed_wherever_it_stands(tmp_path, monkeypatch, source, shown):
    monkeypatch.setattr(words, "SOURCE", tmp_path)
    (tmp_path / "ui" / "static").mkdir(parents=True)
    (tmp_path / "module.py").write_text(source)
    assert [text for _, _, text in words.words()] == shown


def test_help_tools_bugs_pages_and_knowledge_are_listed(tmp_path, monkeypatch):
    monkeypatch.setattr(words, "SOURCE", tmp_path)
    files = {
        "cli/ps.py": '@verb("ps")\ndef command():\n    """List processes and their state."""',
        "mcp/live_tools.py": 'def stacks(who: Annotated[str, Field("Only these ranks.")]):\n    """Show all stacks."""',
        "trainer/zoo/reward_bugs.py": '@bug("a.b")\ndef scaled():\n    """Rewards are scaled."""',
        "ui/static/app.js": '// a comment of ours\nh("p", "No runs are here yet");',
        "doctor/knowledge/ray.yaml": "- title: The Ray head is gone\n  match: some text of a log\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert [text for _, _, text in words.words()] == [
        "List processes and their state.",
        "Only these ranks.",
        "Show all stacks.",
        "Rewards are scaled.",
        "No runs are here yet",
        "The Ray head is gone",
    ]
