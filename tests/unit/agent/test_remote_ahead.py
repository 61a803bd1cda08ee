"""Methods of Ray actors that functions will call after the line where they wait."""

import os
import sys

from rldbg.agent.waits.code.called import remote_ahead
from rldbg.agent.waits.code.source import Sources
from rldbg.agent.waits.reading.objects import OwnFrame

SOURCES = Sources(os.getpid())


class Trainer:
    def __init__(self, server):
        self.server = server

    def resume_all(self):
        self.server.resume.remote()

    def sync(self):
        self.server.pause.remote()
        found = OwnFrame(sys._getframe())
        if found.file == "":
            self.server.options(name="x").update.remote()
            self.resume_all()
        return found


class Told:
    """Stands for a handle of an actor."""

    def __getattr__(self, name):
        return self

    def remote(self):
        return None


def test_what_is_called_after_the_line_is_told_also_through_functions():
    frame = Trainer(Told()).sync()
    found = remote_ahead([frame], SOURCES)
    assert set(found) == {"update", "resume"}
    assert found["resume"]["line"] == found["update"]["line"] + 1 == frame.line + 3
    assert found["resume"]["function"].endswith("sync")
