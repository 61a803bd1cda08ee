"""The HTML report: one file, nothing from elsewhere, no text from a recording becomes markup."""

import copy
import json
import re

import numpy as np
import pytest

from layout_recordings import step_values, write
from rldbg.cli.application import run

VALUES = step_values()


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("html")
    changed = copy.deepcopy(VALUES)
    changed["log_probs"][9] = changed["log_probs"][9] - np.float32(0.25)
    other_tokens = copy.deepcopy(VALUES)
    other_tokens["tokens"][3][-1] += 1
    hostile = copy.deepcopy(VALUES)
    hostile["ids"] = [("<script>alert(1)</script>", number) for number in range(len(hostile["ids"]))]
    hostile["log_probs"][2] = hostile["log_probs"][2] - np.float32(1)
    plain = copy.deepcopy(hostile)
    plain["log_probs"][2] = VALUES["log_probs"][2]
    for name, values in (("a", VALUES), ("b", changed), ("c", other_tokens), ("d", plain), ("e", hostile)):
        write(folder / name, values, ranks=2, micro=3)
    return folder


def page(recordings, capsys, *names, options=()):
    file = recordings / "report.html"
    run(["compare", *(str(recordings / name) for name in names), "--html", str(file), *options])
    capsys.readouterr()
    return file.read_text(encoding="utf-8")


def answer(text):
    """What the page draws."""
    return json.loads(re.search(r'<script type="application/json" id="answer">(.*?)</script>', text, re.DOTALL)[1])


def test_it_is_one_file_that_asks_for_nothing(recordings, capsys):
    text = page(recordings, capsys, "a", "b", "c")
    assert not re.search(r"<[^>]*(src|href)\s*=\s*[\"']?(https?:|//|[a-z]+\.(js|css))", text)
    assert "@import" not in text and "url(" not in text and "default-src 'none'" in text
    assert len(answer(text)["pairs"]) == 2


def test_it_has_the_place_and_the_worst_sample(recordings, capsys):
    [pair] = answer(page(recordings, capsys, "a", "b"))["pairs"]
    assert pair["first_difference"]["stage"] == "forward" and pair["strips"]["samples"][0]["sample"] == "g2/1"
    fields = [field for stage in pair["stages"] for field in stage["fields"] if field["verdict"] == "different"]
    assert {cell["rank"] for cell in fields[0]["cells"]} == {0, 1}


def test_changed_tokens_have_their_text(recordings, capsys):
    [pair] = answer(page(recordings, capsys, "a", "c", options=("--tokenizer", "tiny")))["pairs"]
    changed = [token for token in pair["strips"]["samples"][0]["tokens"] if token["a"] != token["b"]]
    assert changed and not changed[0]["a"].isdigit()


def test_text_from_a_recording_cannot_become_markup(recordings, capsys):
    text = page(recordings, capsys, "d", "e")
    assert "<script>alert" not in text
    assert answer(text)["pairs"][0]["first_difference"]["sample"].startswith("<script>alert")


def test_equal_recordings_have_a_page_too(recordings, capsys):
    assert answer(page(recordings, capsys, "a", "a"))["pairs"][0]["verdict"] == "equal"
