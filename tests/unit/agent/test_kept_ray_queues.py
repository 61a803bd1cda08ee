"""Who keeps a queue of Ray in an attribute may use it later only if its class does so."""

import os
import textwrap

import pytest

from rldbg.agent.waits.code.source import Sources
from rldbg.agent.waits.reading.objects import Frame

HEAD = """
class Trainer:
    def __init__(self):
        self.queue = Queue()
        {made}

    def fit(self):
        {fits}

    def step(self):
        pass


class Worker:
    def run(self):
        self.queue.put(1)
"""


@pytest.mark.parametrize(
    ("made", "fits", "may"),
    [
        ("self.worker = Worker.remote(0, self.queue)", "self.other.get()", False),
        ("self.worker = Worker.options(name='w').remote(queue=self.queue)", "self.other.get()", False),
        ("self.worker = Worker.remote(self.queue)", "self.queue.put(2)", True),
        ("self.worker = Local(self.queue)", "self.other.get()", True),
        ("self.worker = Worker.remote(self.queue)", "print(self.queue.size())", False),
        ("queues = [self.queue]", "self.other.get()", True),
    ],
)
def test_a_class_that_only_hands_it_to_actors_does_not(tmp_path, made, fits, may):
    file = tmp_path / "job.py"
    file.write_text(textwrap.dedent(HEAD.format(made=made, fits=fits)))
    place = _Place(str(file))
    assert Sources(os.getpid()).may_use(place, "self.queue", frozenset({"put"})) is may
    # Its base, in another file, may.
    assert Sources(os.getpid()).may_use(place, "self.inherited", frozenset({"put"}))


class _Place(Frame):
    def __init__(self, file: str) -> None:
        self.file, self.line, self.function = file, 8, "fit"
