"""The registry finds our folders and the frameworks of other distributions, and names what it cannot use."""

import subprocess
import sys
from pathlib import Path

import pytest

import rldbg.frameworks
from rldbg.core import UsageError
from rldbg.frameworks import Framework, find_framework, frameworks
from unit.frameworks.distributions import make_distribution

FOLDER = Path(rldbg.frameworks.__file__).parent
SUPPORT = """
from rldbg.frameworks import Framework

FRAMEWORK = Framework(name="my_rl", title="My RL", package=__name__, modules=("my_rl",))
"""
LAUNCH = """
dialect: flags
train: [my_rl.main]
steps: [--my-steps]
"""


def run_in(site: Path, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(site)!r})\n{code}"],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_every_folder_is_registered_under_its_own_name():
    folders = {file.parent.name for file in FOLDER.glob("*/__init__.py")}
    built_in = [framework for framework in frameworks() if framework.package.startswith("rldbg.")]

    assert {framework.name for framework in built_in} == folders
    assert all(framework.package == f"rldbg.frameworks.{framework.name}" for framework in built_in)


def test_a_fork_is_based_on_a_framework_that_exists():
    assert [find_framework(each.based_on).name for each in frameworks() if each.based_on] == ["slime", "verl"]


def test_parts_are_the_files_of_the_folder():
    verl = find_framework("verl")

    assert verl.file("launch.yaml") == FOLDER / "verl" / "launch.yaml"
    assert verl.file("nothing.yaml") is None
    assert find_framework("archer").part("layout") is None


def test_names_are_found_with_dashes_and_the_nearest_is_suggested():
    assert find_framework("NeMo-RL").title == "NeMo RL"
    with pytest.raises(UsageError, match="unknown framework: 'verrl'") as caught:
        find_framework("verrl")
    assert "did you mean 'verl'?" in caught.value.hint


def test_another_distribution_ships_a_framework(tmp_path):
    site = make_distribution(
        tmp_path,
        "my_rl",
        "1.0",
        {"my_rl/__init__.py": "", "my_rl/support/__init__.py": SUPPORT, "my_rl/support/launch.yaml": LAUNCH},
        "[rldbg.frameworks]\nmy_rl = my_rl.support:FRAMEWORK\n",
    )

    done = run_in(
        site,
        "from rldbg.launch.profile import profile_named; from rldbg.frameworks import find_framework\n"
        "print(find_framework('my-rl').title, profile_named('my_rl').steps[0].key)",
    )

    assert done.stdout.split("\n")[0] == "My RL --my-steps", done.stderr


@pytest.mark.parametrize(
    ("support", "said"),
    [
        ("import nowhere_at_all", "framework my_rl (my_rl:FRAMEWORK) does not load: ModuleNotFoundError"),
        ("FRAMEWORK = 1", "framework my_rl (my_rl:FRAMEWORK) is not an rldbg.frameworks.Framework"),
        (SUPPORT.replace('"my_rl"', '"verl"', 1), "framework verl (my_rl:FRAMEWORK) is ignored: the name is taken"),
    ],
)
def test_a_framework_that_cannot_be_used_is_named_and_the_others_remain(tmp_path, support, said):
    site = make_distribution(
        tmp_path, "my_rl", "1.0", {"my_rl.py": support}, "[rldbg.frameworks]\nmy_rl = my_rl:FRAMEWORK\n"
    )

    done = run_in(site, "from rldbg.frameworks import frameworks\nprint(sum(1 for _ in frameworks()))")

    assert int(done.stdout) == len(list(FOLDER.glob("*/__init__.py")))
    assert said in done.stderr


def test_the_registry_loads_no_plane():
    done = run_in(
        Path(),
        "from rldbg.frameworks import frameworks\nlist(frameworks())\n"
        "print([name for name in sys.modules if name.startswith(('rldbg.recording', 'rldbg.launch', 'rldbg.agent'))])",
    )

    assert done.stdout.strip() == "[]", done.stderr


def test_a_framework_has_no_part_it_does_not_bring(tmp_path, monkeypatch):
    make_distribution(tmp_path, "bare_rl", "1.0", {"bare_rl.py": ""})
    monkeypatch.syspath_prepend(tmp_path)
    bare = Framework(name="bare_rl", title="Bare", package="bare_rl")

    assert bare.part("hooks") is None and bare.file("launch.yaml") is None
