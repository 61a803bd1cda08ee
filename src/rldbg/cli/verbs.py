"""The verbs, by group of `rldbg --help`. A verb's module is imported only when the verb is used."""

from pathlib import Path
from typing import NamedTuple

# Pages that have another name than their verb.
_PAGES = {"pause": "ps", "continue": "ps", "broker": "ps", "track": "trackers", "demo": "index", "help": "index"}


def documentation() -> Path:
    """The folder of the pages: part of the package, or docs/ of a checkout."""
    package = Path(__file__).parents[1]
    shipped = package / "documentation"
    return shipped if shipped.is_dir() else package.parents[1] / "docs"


class Verb(NamedTuple):
    name: str
    group: str
    summary: str
    hidden: bool = False

    @property
    def module(self) -> str:
        return "rldbg.cli." + {"continue": "continue_", "break": "break_"}.get(self.name, self.name.replace("-", "_"))

    @property
    def topic(self) -> str:
        """What `rldbg help` calls the page of the verb."""
        return _PAGES.get(self.name, self.name)


VERBS: tuple[Verb, ...] = (
    Verb("run", "Live debugging", "Run a training script or command with debugging enabled."),
    Verb("ps", "Live debugging", "List processes and their state."),
    Verb("attach", "Live debugging", "Open a pdb prompt in a stopped process, several processes, or a crash file."),
    Verb("cast", "Live debugging", "Run one command on many stopped ranks and group identical answers."),
    Verb("break", "Live debugging", "Set, list and clear breakpoints in running processes."),
    Verb("pause", "Live debugging", "Pause running processes."),
    Verb("continue", "Live debugging", "Resume stopped processes."),
    Verb("watch", "Live debugging", "Watch a run while it is recorded; report unusual steps or stop at them."),
    Verb("stacks", "Live debugging", "Group identical stacks of all ranks; explain hangs (--diagnose)."),
    Verb("tunnel", "Live debugging", "Forward a cluster's dashboard and broker to this machine."),
    Verb("broker", "Live debugging", "Start and stop the broker of a run by hand.", hidden=True),
    Verb("show", "Recordings", "Show the contents and health of a recording."),
    Verb("verify", "Recordings", "Find missing, truncated, corrupt and never written files."),
    Verb("check", "Recordings", "Check invariants of one recording."),
    Verb("compare", "Recordings", "Find the first stage, step, rank, sample and token where two recordings differ."),
    Verb("mismatch", "Recordings", "Explain the gap between rollout and trainer log probs: shares per cause."),
    Verb("bisect", "Recordings", "Find the first module whose output differs between two sides."),
    Verb("weights", "Recordings", "Match the tensor names of a trainer and an engine."),
    Verb("rerun", "Recordings", "Run a recorded training step again, in one process, on CPU."),
    Verb("ui", "Recordings", "Open runs, samples, comparisons and stopped ranks in a browser."),
    Verb("track", "Recordings", "Log what is found in each step to TensorBoard, W&B, MLflow, trackio, Prometheus."),
    Verb("mcp", "Recordings", "Serve the verbs as tools for coding agents (Model Context Protocol)."),
    Verb("convert", "Recordings", "Write a recording in another format."),
    Verb("serve", "Serving and rollouts", "Start an inference server, a recording proxy or a training service."),
    Verb("rollout", "Serving and rollouts", "Run a workflow in this process; save its batch."),
    Verb("check-template", "Serving and rollouts", "Check a model's chat template for multi-turn training."),
    Verb("profile", "Profiling and diagnosis", "Profile selected workers and steps; report where the time goes."),
    Verb("doctor", "Profiling and diagnosis", "Find the root cause of a failure and its fix; check this machine."),
    Verb("train", "Embedded trainer", "Run a recipe with the embedded GRPO trainer; record, replay, resume."),
    Verb("demo", "Embedded trainer", "Take the tour: find a bug, rerun a step, stop ranks, explain a hang."),
    Verb("zoo", "Embedded trainer", "List, run and score the trainer's built-in bugs.", hidden=True),
    Verb("frameworks", "Configuration", "List frameworks, what is supported, and whether their hooks exist."),
    Verb("help", "Configuration", "Read a page of the documentation, offline."),
    Verb("config", "Configuration", "Show the resolved configuration and where each value comes from."),
)

GROUPS: tuple[str, ...] = tuple(dict.fromkeys(verb.group for verb in VERBS))
