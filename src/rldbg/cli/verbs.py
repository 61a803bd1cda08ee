"""The verbs by plane. A verb's module is imported only when the verb is used, so that help stays fast."""

from typing import NamedTuple


class Verb(NamedTuple):
    name: str
    plane: str
    summary: str
    hidden: bool = False

    @property
    def module(self) -> str:
        return "rldbg.cli." + {"continue": "continue_", "break": "break_"}.get(self.name, self.name)


VERBS: tuple[Verb, ...] = (
    Verb("run", "live", "Arm a training script or command for debugging and run it."),
    Verb("tunnel", "live", "Forward a cluster's dashboard and broker to this machine."),
    Verb("ps", "live", "Who is there, who is stopped, and where."),
    Verb("attach", "live", "A prompt at a stopped process, at several, or at a crash file."),
    Verb("cast", "live", "One command on many stopped ranks, the answers folded."),
    Verb("break", "live", "Set, list and clear breakpoints in running processes."),
    Verb("pause", "live", "Stop running processes where they are."),
    Verb("continue", "live", "Let stopped processes go on."),
    Verb("stacks", "live", "Where every rank is, equal stacks once; --diagnose says why nobody moves."),
    Verb("broker", "live", "Start and stop the broker of a run by hand.", hidden=True),
    Verb("show", "recordings", "What is in a recording, and is it healthy."),
    Verb("verify", "recordings", "Find what is missing, truncated, corrupt or was never written."),
    Verb("convert", "recordings", "Write a recording in another format."),
    Verb("check", "recordings", "Test what must hold in one recording."),
    Verb("compare", "recordings", "Find the first stage, step, rank, sample and token where two recordings differ."),
    Verb("rerun", "recordings", "Execute a recorded training step again, in one process, on CPU."),
    Verb("serve", "isolation", "Servers that outlive the shell: inference, recordings, proxies, training services."),
    Verb("rollout", "isolation", "Run a workflow in this process against inference servers; save the batch."),
    Verb("profile", "profile", "Profile the workers you name in the steps you name; one timeline, one report."),
    Verb("doctor", "doctor", "The root cause of a failure, with its fix; and is this machine fit."),
    Verb("train", "trainer", "Run the embedded GRPO trainer on a recipe; record, replay, resume."),
    Verb("demo", "trainer", "The tour: train, record, verify, check, replay, compare, rerun."),
    Verb("zoo", "trainer", "Bugs built into the trainer on purpose, and who names them.", hidden=True),
    Verb("config", "settings", "Show the resolved configuration and where each value comes from."),
)

PLANES: tuple[str, ...] = (
    "live",
    "recordings",
    "isolation",
    "profile",
    "doctor",
    "trainer",
    "ui",
    "settings",
)
