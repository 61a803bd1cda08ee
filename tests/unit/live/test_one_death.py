"""The death of one actor is one finding, whoever waits because of it."""

from rldbg.live.diagnosis.hang import HangDiagnosis
from rldbg.live.diagnosis.ray.deaths import deaths_once

WHY = "has died: its process has ended (exit code 1)"


def _found(verdict, *evidence, kind="never_set"):
    return HangDiagnosis(verdict, kind, (), evidence)


def test_who_waits_because_of_one_death_is_told_in_one_finding():
    causes = [
        _found(f"trainer waits for event `ready` to be set; actor generator {WHY}"),
        _found("logger waits for an item of queue `lines`"),
        _found(
            f"driver waits for run; actor generator should run run, but {WHY}",
            "because of that saver waits",
            kind="died",
        ),
        _found(f"monitor polls (a loop until `done`; actor generator {WHY})", kind="ended"),
    ]
    death, other = deaths_once(causes)
    assert (death.kind, death.verdict) == ("died", causes[2].verdict) and other == causes[1]
    assert death.evidence == (
        "because of that saver waits",
        "because of that trainer waits for event `ready` to be set",
        "because of that monitor polls (a loop until `done`)",
    )


def test_two_deaths_are_two_findings():
    causes = [_found(f"a waits; actor generator {WHY}"), _found(f"b waits; actor judge {WHY}")]
    assert deaths_once(causes) == causes
