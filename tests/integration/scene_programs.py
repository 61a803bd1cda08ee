"""Programs that wait, one per scene; each writes a file of its name once it is ready."""

import os
import subprocess
import sys

from live_job import close_pipes, until


class ScenePrograms:
    """The scenes of one file at once, each in a process of its own."""

    def __init__(self, file, folder, environment, scenes, python=sys.executable):
        self.folder = folder
        self.processes = {
            scene: subprocess.Popen(
                [python, str(file), scene, str(folder)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            for scene in scenes
        }

    def pid(self, scene):
        until(lambda: (self.folder / scene).exists() and (self.folder / scene).read_text(), f"scene {scene}")
        return self.processes[scene].pid

    def end(self):
        for process in self.processes.values():
            # With the children that some of them wait for.
            os.killpg(process.pid, 9)
            process.wait()
            close_pipes(process)
