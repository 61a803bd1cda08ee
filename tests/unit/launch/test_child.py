"""How `rldbg run` follows its command: what ended it is known, whoever takes the signal first."""

import os
import signal

from rldbg.launch.child import run_child


def test_a_signal_to_the_whole_group_is_known_even_if_the_command_ends_first():
    # GIVEN a command that a signal to the whole group ends before we take ours
    started, asked = [], []

    def signal_the_group():
        os.kill(started[0], signal.SIGTERM)
        os.waitid(os.P_PID, started[0], os.WEXITED | os.WNOWAIT)
        signal.raise_signal(signal.SIGTERM)

    # WHEN it has ended
    code = run_child(
        ["sleep", "600"],
        environment=dict(os.environ),
        started=started.append,
        tick=signal_the_group,
        asked_to_end=asked.append,
        every_s=0.01,
    )

    # THEN its end is the signal's, and not a failure without a cause
    assert (code, asked) == (128 + signal.SIGTERM, ["SIGTERM"])
