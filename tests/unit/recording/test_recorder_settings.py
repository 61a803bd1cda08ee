"""Settings say what is wrong with them when they are made, and travel to workers."""

import pickle
from pathlib import Path

import pytest

from rldbg.core import Identity, SampleId, UsageError
from rldbg.recording.recorder import RecorderSettings


def test_plain_values_become_the_right_types() -> None:
    settings = RecorderSettings.make(
        "dump", kinds=["loss"], ranks=0, samples=["g0/1", ("g1", 2)], parameter_patterns="q_proj", pinned_steps=[3]
    )
    assert settings.directory == Path("dump")
    assert settings.kinds == {"loss"}
    assert settings.ranks == {0}
    assert settings.samples == {SampleId("g0", 1), SampleId("g1", 2)}
    assert settings.parameter_patterns == ("q_proj",)


def test_settings_pickle() -> None:
    settings = RecorderSettings.make("dump", samples=["g0/1"], keep_last=3)
    assert pickle.loads(pickle.dumps(settings)) == settings


@pytest.mark.parametrize(
    ("knobs", "word"),
    [
        ({"format": "parquet"}, "safetensors"),
        ({"when_full": "wait"}, "block"),
        ({"every_n_steps": 0}, "every_n_steps"),
        ({"keep_last": 0}, "keep_last"),
        ({"buffer_bytes": 10}, "buffer_bytes"),
        ({"parameter_patterns": ["("]}, "escape"),
        ({"bufer_bytes": 1}, "buffer_bytes"),
    ],
)
def test_a_wrong_setting_says_what_would_be_right(knobs: dict, word: str) -> None:
    with pytest.raises(UsageError) as caught:
        RecorderSettings.make("dump", **knobs)
    assert word in caught.value.hint


def test_a_url_is_refused_with_a_way_out() -> None:
    with pytest.raises(UsageError, match="mounted"):
        RecorderSettings.make("s3://bucket/dump")


@pytest.mark.parametrize(
    ("knobs", "identity", "admitted"),
    [
        ({}, Identity(), True),
        ({"enabled": False}, Identity(), False),
        ({"ranks": [0, 2]}, Identity(rank=1), False),
        ({"ranks": [0, 2]}, Identity(rank=2), True),
        ({"roles": ["*policy*"]}, Identity(role="actor_policy_worker"), True),
        ({"roles": ["critic"]}, Identity(role="policy"), False),
    ],
)
def test_who_records(knobs: dict, identity: Identity, admitted: bool) -> None:
    assert RecorderSettings.make("dump", **knobs).admits(identity) is admitted
