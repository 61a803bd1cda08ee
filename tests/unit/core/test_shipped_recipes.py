"""Recipes of the package are found by name from any folder; a file of the user comes first."""

import pytest

from rldbg.core import UsageError, load_recipe
from rldbg.core.recipe import find_recipe


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["arithmetic", "zoo"])
def test_a_name_without_a_path_is_a_recipe_of_the_package(name):
    assert load_recipe(name, ["seed=7"])["name"] == name
    assert load_recipe(f"{name}.yaml")["name"] == name


def test_a_file_of_that_name_comes_first_and_a_folder_does_not(own_folder):
    (own_folder / "zoo").mkdir()
    assert load_recipe("zoo")["name"] == "zoo"
    (own_folder / "arithmetic").write_text("name: mine\n")
    assert load_recipe("arithmetic")["name"] == "mine"
    assert find_recipe(own_folder / "arithmetic") == own_folder / "arithmetic"


@pytest.mark.parametrize("missing", ["arithmetics", "./arithmetic.yaml", "elsewhere/arithmetic"])
def test_what_is_not_there_is_an_error_that_lists_the_names(missing):
    with pytest.raises(UsageError) as caught:
        load_recipe(missing)
    assert "No such file" in str(caught.value)
    assert "arithmetic, zoo" in caught.value.hint
