"""Recipes as users write them, in the dialects of the frameworks."""

import pytest

from rldbg.core import UsageError, load_recipe


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "base.yaml").write_text("a: 1\nnested: {x: 1, y: 2}\n")
    return tmp_path


def write(folder, name, text):
    (folder / name).write_text(text)
    return folder / name


def test_sibling_names_with_self_last(folder):
    child = write(folder, "child.yaml", "defaults:\n  - base\n  - _self_\nnested: {y: 3}\n")
    assert load_recipe(child) == {"a": 1, "nested": {"x": 1, "y": 3}}


def test_self_first_lets_the_base_win(folder):
    child = write(folder, "child.yaml", "defaults:\n  - _self_\n  - base\na: 9\n")
    assert load_recipe(child)["a"] == 1


def test_a_relative_path_string(folder):
    (folder / "sub").mkdir()
    child = write(folder / "sub", "child.yaml", "defaults: ../base.yaml\na: 2\n")
    assert load_recipe(child) == {"a": 2, "nested": {"x": 1, "y": 2}}


def test_three_levels_and_a_cycle(folder):
    write(folder, "mid.yaml", "defaults: [base]\nb: 1\n")
    assert load_recipe(write(folder, "top.yaml", "defaults: [mid]\nc: 1\n")) == {
        "a": 1,
        "nested": {"x": 1, "y": 2},
        "b": 1,
        "c": 1,
    }
    write(folder, "one.yaml", "defaults: [two]\n")
    with pytest.raises(UsageError, match=r"cycle.*one.yaml -> two.yaml -> one.yaml"):
        load_recipe(write(folder, "two.yaml", "defaults: [one]\n").with_name("one.yaml"))


def test_hydra_searchpath(folder, monkeypatch):
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "far.yaml").write_text("far: true\n")
    child = write(
        folder, "child.yaml", "hydra:\n  searchpath:\n    - file://elsewhere\ndefaults: [far, _self_]\nb: 2\n"
    )
    assert load_recipe(child)["far"] is True
    monkeypatch.chdir(folder)
    assert load_recipe("child.yaml")["far"] is True


def test_hydra_groups(folder):
    pytest.importorskip("hydra")
    (folder / "model").mkdir()
    (folder / "model" / "tiny.yaml").write_text("layers: 2\n")
    child = write(folder, "child.yaml", "defaults:\n  - base\n  - model: tiny\n  - _self_\nb: 2\n")
    recipe = load_recipe(child, ["model.layers=3", "+new=1"])
    assert recipe == {"a": 1, "nested": {"x": 1, "y": 2}, "model": {"layers": 3}, "b": 2, "new": 1}


def test_hydra_packages(folder):
    pytest.importorskip("hydra")
    (folder / "block.yaml").write_text("enable_data_dump: true\n")
    (folder / "child.yaml").write_text("defaults:\n  - block@debug\n  - _self_\nsteps: 3\n")
    assert load_recipe(folder / "child.yaml") == {"debug": {"enable_data_dump": True}, "steps": 3}


def test_ellipsis_of_the_document_is_skipped(folder):
    assert load_recipe(write(folder, "doc.yaml", "defaults:\n  - base\n  - _self_\n\n...\n\nb: 1\n"))["b"] == 1


def test_environment_interpolation(folder, monkeypatch):
    recipe = write(folder, "env.yaml", 'debug: {dump_dir: "${oc.env:EXPERIMENT_PATH}/d"}\n')
    monkeypatch.setenv("EXPERIMENT_PATH", "/exp")
    assert load_recipe(recipe)["debug"]["dump_dir"] == "/exp/d"
    monkeypatch.delenv("EXPERIMENT_PATH")
    with pytest.raises(UsageError, match=r"debug.dump_dir needs the environment variable EXPERIMENT_PATH"):
        load_recipe(recipe)


def test_overrides(folder):
    base = folder / "base.yaml"
    assert load_recipe(base, ["a=5", "nested.x=[1,2]", "+b.c=hello", "++d=null", "~nested.y"]) == {
        "a": 5,
        "nested": {"x": [1, 2]},
        "b": {"c": "hello"},
        "d": None,
    }


@pytest.mark.parametrize(
    "override, hint",
    [
        ("nested.xx=1", r"did you mean 'nested.x'\?"),
        ("zebra=1", r"\+zebra"),
        ("+a=1", r"\+\+a"),
        ("~gone", r"\+gone"),
        ("novalue", "key=value"),
    ],
)
def test_bad_overrides_say_what_to_write(folder, override, hint):
    with pytest.raises(UsageError) as caught:
        load_recipe(folder / "base.yaml", [override])
    import re

    assert re.search(hint, caught.value.hint)


@pytest.mark.parametrize("text", ["a: [", "- 1\n", "a: 1\na: 2\n", "\x00"])
def test_bad_files_are_usage_errors(folder, text):
    with pytest.raises(UsageError):
        load_recipe(write(folder, "bad.yaml", text))


def test_a_missing_base_names_the_nearest(folder):
    with pytest.raises(UsageError) as caught:
        load_recipe(write(folder, "child.yaml", "defaults: [bsae]\n"))
    assert "'base'" in caught.value.hint
