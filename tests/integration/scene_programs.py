"""Programs that wait, one per scene; each writes a file of its name once it is ready."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager

import psutil
from live_job import LiveJob, close_pipes, until

from rldbg.live import UnarmedJob, explain, look_at_job


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

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

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
        with ScenePrograms(scenes, ready, job.environment, names) as programs:
            programs.job = job
            yield programs


def explained_from_outside(programs, scene, apart_s=0.3):
    """What an unarmed look at a scene says, as one text."""
    causes = explain(look_at_job(UnarmedJob(pids=(programs.pid(scene),)), apart_s=apart_s).stacks)
    return _text_of(causes)


def explained_by_the_agent(programs, scene, apart_s=0.0):
    """What the agents of a scene and of its children say."""
    pid = programs.pid(scene)
    until(lambda: any(process["pid"] == pid for process in programs.job.ps()), f"the agent of {scene}")
    family = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    who = ",".join(f"@{each}" for each in family if any(process["pid"] == each for process in programs.job.ps()))
    before = programs.job.client.request("stacks", who=who, waits=True)["stacks"]
    time.sleep(apart_s)
    after = programs.job.client.request("stacks", who=who, waits=True)["stacks"]
    return _text_of(explain(after, before=before))


def _text_of(causes):
    return " | ".join(text for cause in causes for text in (cause.verdict, *cause.evidence))


def until_said(look, words, unsaid="nothing of that kind", within_s=20):
    """A scene is ready a moment before it waits."""
    seen = []

    def said():
        seen[:] = [look()]
        return all(word in seen[0] for word in words)

    try:
        until(said, words, within_s)
    except AssertionError:
        raise AssertionError(f"{words} not in {seen}") from None
    assert unsaid not in seen[0], seen
