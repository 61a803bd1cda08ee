"""Files that loops look for, and that functions will write, by their paths."""

import os
import sys
from pathlib import Path

from rldbg.agent.waits.code.source import Sources
from rldbg.agent.waits.others.looked_for import awaited_files, files_ahead
from rldbg.agent.waits.reading.objects import OwnFrame

PID, SOURCES = os.getpid(), Sources(os.getpid())


class Loader:
    def __init__(self, folder, rank):
        self.folder, self.rank = folder, rank

    def batches_of(self, step):
        return sorted(self.folder.glob(f"run_*/step_{step}/rank_{self.rank}.pt"))

    def looks(self, step):
        while not self.batches_of(step):
            return OwnFrame(sys._getframe())
        return None


def plain(stable):
    while not stable.exists():
        return OwnFrame(sys._getframe())
    return None


def absence(lock):
    while lock.exists():
        return OwnFrame(sys._getframe())
    return None


def test_what_a_loop_looks_for_is_told_also_through_functions():
    assert awaited_files(Loader(Path("/out"), 1).looks(3), PID, SOURCES) == ["/out/run_*/step_3/rank_1.pt"]
    assert awaited_files(plain(Path("there")), PID, SOURCES) == [f"{Path.cwd()}/there"]
    # A loop that waits for a file to be removed does not wait for one to be written.
    assert awaited_files(absence(Path("/")), PID, SOURCES) == []


def publish(folder, steps):
    with open(folder / "weights.pt", "w"):
        pass


def train(out, rank, save):
    for step in range(3):
        frame = OwnFrame(sys._getframe())
        folder = out / "broadcasts" / f"step_{step + 1}"
        if rank == 0:
            (folder / "STABLE").touch()
        else:
            (folder / "OTHER").touch()
        save(step, folder / f"rank_{rank}.pt")
        publish(folder, step)
        yield frame


def test_what_a_function_will_write_is_put_together_of_what_is_known(tmp_path):
    (tmp_path / "broadcasts" / "step_1").mkdir(parents=True)
    frame = next(train(tmp_path, 0, lambda *_: None))
    found = {each["path"]: each["function"] for each in files_ahead([frame], PID, SOURCES)}
    step = tmp_path / "broadcasts" / "step_1"
    assert found == {f"{step}/STABLE": "train", f"{step}/rank_0.pt": "train", f"{step}/weights.pt": "publish"}
