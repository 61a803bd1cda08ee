"""Which results of Ray the calls of a function were given; the programs are stopped at `here()`."""

import sys
import textwrap

import pytest

from rldbg.agent.waits.calls.distributed_calls import given_results
from rldbg.agent.waits.code.source import Sources
from rldbg.agent.waits.reading.objects import OwnFrame

PROGRAMS = {
    "score.remote(first, 2)": [("score", ["1"], [])],
    "judge.score.options(num_cpus=1).remote(samples=first)": [("score", ["1"], [])],
    "score.remote(*both)": [("score", ["1", "2"], [])],
    "[score.remote(each) for each in both]": [("score", ["1", "2"], [])],
    "score.remote(judge.generate.remote(1))": [("score", [], ["generate"])],
    # Ray does not wait for what is in an argument.
    "score.remote(both)": [],
    "score.remote(3)": [],
}


class ObjectRef:
    def __init__(self, number):
        self.number = number

    def task_id(self):
        return self

    def hex(self):
        return self.number

    def remote(self, *_args, **_given):
        return None

    def options(self, **_given):
        return self

    score = generate = property(lambda self: self)


@pytest.mark.parametrize("call", PROGRAMS)
def test_results_that_a_call_was_given_are_known(tmp_path, call):
    body = f"first, second = ObjectRef('1'), ObjectRef('2')\nboth = [first, second]\n{call}\nhere()"
    file = tmp_path / "program.py"
    file.write_text(f"def main():\n{textwrap.indent(body, '    ')}\n")
    seen = []

    def here():
        seen.extend(given_results([OwnFrame(sys._getframe(1))], Sources(0)))

    scope = {"here": here, "ObjectRef": ObjectRef, "score": ObjectRef("0"), "judge": ObjectRef("0")}
    exec(compile(file.read_text(), str(file), "exec"), scope)
    scope["main"]()
    assert [(each["name"], each["tasks"], each["inline"]) for each in seen] == PROGRAMS[call]
