"""Whose code a frame is: of a framework, also in a checkout of it; and what a driver prints is of no worker."""

import pytest

from rldbg.doctor.logs.frames import package_of

SAID = "OverflowError: 7 wibbles in 3 seams"


@pytest.mark.parametrize(
    ("file", "package"),
    [
        ("/opt/verl/verl/trainer/seam.py", "verl"),
        ("/root/slime/train.py", "slime"),
        ("/root/slime/slime/ray/seam.py", "slime"),
        ("/workspace/AReaL/examples/seam.py", "areal"),
        ("/workspace/AReaL/areal/trainer/seam.py", "areal"),
        ("/opt/nemo-rl/examples/seam.py", "nemo_rl"),
        ("/home/u/OpenRLHF/openrlhf/cli/seam.py", "openrlhf"),
        ("/home/u/my_verl_recipes/seam.py", ""),
    ],
)
def test_a_checkout_of_a_framework_is_no_code_of_the_user(verdict, file, package):
    assert package_of(f"{file}:3 in seam") == package
    log = f'Traceback (most recent call last):\n  File "{file}", line 3, in seam\n    frob()\n{SAID}\n'
    steps = " ".join(verdict(log).next)
    assert (f"raised by {package} at" in steps) == bool(package)
    assert ("not installed as a package" in steps) == (not package)


def test_an_exception_of_the_driver_speaks_of_no_worker(verdict):
    log = (
        'Traceback (most recent call last):\n  File "/opt/verl/verl/trainer/seam.py", line 3, in <module>\n    frob()\n'
        "ImportError: cannot import name 'Wibble' from 'vllm.seam' (/v/lib/python3.11/site-packages/vllm/seam.py)\n"
    )
    cause = verdict(log).root_causes[0]
    assert "worker" not in f"{cause.title} {cause.cause} {' '.join(cause.fix)} {cause.detail}"


def test_code_of_a_reward_that_is_set_up_scores_nothing(verdict):
    frame = '  File "/opt/verl/verl/trainer/ppo/reward.py", line 9, in load_seam\n    table[name]\n'
    cause = verdict(f"Traceback (most recent call last):\n{frame}LookupError: no seam of this name\n").root_causes[0]
    assert (cause.id, "set up" in cause.title) == ("reward-function-failed", True)


def test_a_script_that_prepares_data_is_no_tool_of_an_agent(verdict):
    frame = '  File "/w/tools/seam.py", line 9, in tokenize_rows\n    table[name]\n'
    assert verdict(f"Traceback (most recent call last):\n{frame}LookupError: no seam of this name\n").root_causes == ()
