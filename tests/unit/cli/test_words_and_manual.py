"""`make words` has every text that a user sees; the manual page has every verb and option."""

import importlib.util
import re
import shutil
import subprocess

import pytest

from documented_commands import ROOT
from rldbg.cli.verbs import VERBS


def _script(name):
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_help_errors_hints_findings_and_knowledge_are_among_the_words():
    found = list(_script("words").words())
    texts = {" ".join(text.split()) for _, _, text in found}
    assert len(found) > 2000
    for text in (
        "Number of processes. [default: chosen by recording size]",  # the help of an option
        "check needs a recording",  # an error
        "rldbg check RUN, or rldbg check --list",  # its hint
        "List processes and their state.",  # a verb's summary
        "no processes found",  # a line of a report
        "An actor's process ended (SYSTEM_ERROR)",  # knowledge
    ):
        assert text in texts, text
    places = [(file, line) for file, line, text in found if text == "check needs a recording"]
    ((file, line),) = places
    assert "check needs a recording" in (ROOT / "src/rldbg" / file).read_text().splitlines()[line - 1]


def test_the_manual_has_every_verb_and_option():
    overview = (ROOT / "man/rldbg.1").read_text(encoding="utf-8").replace("\\-", "-")
    pages = {f"rldbg-{verb.name}": verb for verb in VERBS if not verb.hidden}
    assert {file.stem for file in (ROOT / "man").iterdir()} == {"rldbg", *pages}
    for name, verb in pages.items():
        assert f".BR {name} (1)" in overview
        text = (ROOT / f"man/{name}.1").read_text(encoding="utf-8").replace("\\-", "-")
        assert verb.summary in text and f'"rldbg {verb.name}' in text
        assert "\b" not in text and "\n    " not in text, "a docstring's indentation is not part of its text"
        options = importlib.import_module(verb.module).command.params
        assert all(
            word in text
            for option in options
            if not getattr(option, "hidden", False)
            for word in option.opts
            if word[:2] == "--"
        )


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_the_manual_has_no_error_of_its_language():
    pages = [str(page) for page in sorted((ROOT / "man").iterdir())]
    done = subprocess.run(["groff", "-man", "-Tutf8", *pages], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "error" not in done.stderr, done.stderr
    assert "rldbg compare" in re.sub(".\x08", "", done.stdout)  # bold is typed twice
