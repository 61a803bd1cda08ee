"""The texts of launch findings: each is used, each that is used exists, and what is in braces is filled in."""

import ast
from pathlib import Path
from string import Formatter

import yaml

import rldbg.launch
from rldbg.launch.findings import finding

FOLDER = Path(rldbg.launch.__file__).parent
TEXTS = yaml.safe_load((FOLDER / "findings.yaml").read_text())


def named_in(text):
    return {name for _, name, _, _ in Formatter().parse(text) if name}


def test_every_text_is_used_and_every_finding_has_a_text():
    words = {
        node.value
        for file in FOLDER.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert set(TEXTS) <= words
    calls = [
        node
        for file in FOLDER.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "finding"
    ]
    assert len(calls) > 20
    for call in calls:
        if isinstance(call.args[0], ast.Constant):
            text = TEXTS[call.args[0].value]
            wanted = {name for part in (text["cause"], *text.get("fix", ())) for name in named_in(part)}
            assert wanted == {keyword.arg for keyword in call.keywords}, call.args[0].value


def test_a_finding_is_filled_in():
    found = finding("launch.kills-python", "run.sh:3", "pkill python", victim="python")
    assert (found.severity, found.where, found.evidence) == ("warning", "run.sh:3", ("pkill python",))
    assert found.cause.startswith("it kills every python process of this user")
    assert finding("launch.stray-options", "run.sh:3").severity == "error"
