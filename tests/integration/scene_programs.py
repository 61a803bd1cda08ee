"""Programs that wait, one per scene; each writes a file of its name once it is ready."""

import os
import subprocess
import sys
from contextlib import contextmanager

from live_job import LiveJob, close_pipes, until


class ScenePrograms:
    """The scenes of one file at once, each in a process of its own; with `logged`, each prints into SCENE.log."""

    def __init__(self, file, folder, environment, scenes, python=sys.executable, *, logged=False):
        self.folder = folder
        self.processes = {}
        for scene in scenes:
            output = (folder / f"{scene}.log").open("w") if logged else None
            self.processes[scene] = subprocess.Popen(
                [python, str(file), scene, str(folder)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=output or subprocess.DEVNULL,
                stderr=output or subprocess.DEVNULL,
                start_new_session=True,
            )
            if output is not None:
                output.close()

    def pid(self, scene):
        until(lambda: (self.folder / scene).exists() and (self.folder / scene).read_text(), f"scene {scene}")
        return self.processes[scene].pid

    def end(self):
        for process in self.processes.values():
            # With the children that some of them wait for.
            os.killpg(process.pid, 9)
            process.wait()
            close_pipes(process)


@contextmanager
def armed_programs(scenes, folder, names):
    """Programs of scenes in a run of their own."""
    with LiveJob(folder) as job:
        ready = job.folder / "ready"
        ready.mkdir()
        programs = ScenePrograms(scenes, ready, job.environment, names)
        programs.job = job
        yield programs
        programs.end()
