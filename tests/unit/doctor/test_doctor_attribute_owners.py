"""Nobody is said to call another release where only waiting frames are shown, or where a class asks for its own."""

import pytest

HEAD = "Traceback (most recent call last):\n"
SAID = "AttributeError: 'QuiltLogger' object has no attribute 'seam_gauge'\n"
V = "/v/lib/python3.12/site-packages"


@pytest.mark.parametrize(
    "waits",
    [
        f'  File "{V}/ray/_private/worker.py", line 2858, in get\n    values = worker.get_objects(refs)\n',
        '  File "/l/lib/python3.12/concurrent/futures/_base.py", line 401, in __get_result\n    raise self._e\n',
        '  File "/usr/lib/python3.12/asyncio/tasks.py", line 520, in wait_for\n    return await fut\n',
    ],
)
def test_what_waits_for_another_process_is_no_caller(verdict, waits):
    log = f'{HEAD}  File "{V}/verl/trainer/vllm/main.py", line 30, in main\n    ray.get(run.remote())\n{waits}{SAID}'
    cause = verdict(log).root_causes[0]
    assert cause.id == "interface-mismatch"
    assert "only waited" in cause.detail
    assert "pip show" not in f"{cause.detail} {' '.join(cause.fix)}"
    assert "pins" not in " ".join(cause.fix)
    assert "main.py" not in cause.detail


def test_a_class_without_its_own_attribute_is_a_fault_of_its_release(verdict):
    frames = f'  File "{V}/vllm/seams/loggers.py", line 30, in record\n    self.seam_gauge.set(1)\n'
    cause = verdict(f"{HEAD}{frames}{SAID}").root_causes[0]
    assert cause.id == "interface-mismatch"
    assert "its own attribute" in cause.title
    assert "release of vllm" in cause.cause
    assert "caller was written for" not in " ".join(cause.fix)


def test_an_attribute_of_another_object_is_asked_by_its_caller(verdict):
    frames = f'  File "{V}/verl/seams/loggers.py", line 30, in record\n    logger.seam_gauge.set(1)\n'
    assert "its own attribute" not in verdict(f"{HEAD}{frames}{SAID}").root_causes[0].title
