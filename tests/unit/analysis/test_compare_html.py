"""The HTML report: one file, nothing from elsewhere, everything from recordings escaped."""

import copy
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


def test_it_is_one_file_that_asks_for_nothing(recordings, capsys):
    text = page(recordings, capsys, "a", "b", "c")
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:|//|[a-z]+\.(js|css))", text)
    assert "@import" not in text and "url(" not in text and "default-src 'none'" in text


def test_it_names_the_place_and_shows_the_worst_sample(recordings, capsys):
    text = page(recordings, capsys, "a", "b")
    assert "First difference: stage forward" in text and "g2/1" in text
    assert 'class="heat"' in text and "rank 1" in text and 'class="bar"' in text and "Worst samples" in text


def test_changed_tokens_are_shown_in_place_with_text(recordings, capsys):
    text = page(recordings, capsys, "a", "c", options=("--tokenizer", "tiny"))
    assert re.search(r"<del>[^<]*</del><ins>[^<]*</ins>", text)


def test_text_from_a_recording_cannot_become_markup(recordings, capsys):
    text = page(recordings, capsys, "d", "e")
    assert "<script>alert" not in text and "&lt;script&gt;alert" in text


def test_equal_recordings_have_a_page_too(recordings, capsys):
    assert 'verdict equal"' in page(recordings, capsys, "a", "a")
