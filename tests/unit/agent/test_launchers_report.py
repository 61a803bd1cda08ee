"""What a launcher reports about its ranks is no crash of its own where a rank has told its own."""

import json
import os
from types import SimpleNamespace

import pytest

from rldbg.agent.post_mortem import PostMortem
from rldbg.agent.settings import Settings


class ChildFailedError(Exception):
    """As torch.distributed.elastic calls its report."""


def _told(folder, error):
    """What the broker is told of it."""
    told = []
    link = SimpleNamespace(wait_connected=lambda: True, request=lambda op, body, _s: told.append(body["message"]) or {})
    made = PostMortem(
        Settings(run=folder),
        link=lambda: link,
        identity=lambda: {"role": "torchrun", "rank": None, "host": "h", "pid": os.getpid(), "ancestors": [1]},
        new_stop=lambda: 1,
        new_session=lambda: 1,
    )
    made.report(error, "process")
    return told


@pytest.mark.parametrize("ancestor", [os.getpid(), 1], ids=["launcher", "another"])
def test_it_is_told_where_no_rank_has_told_why_it_ended(tmp_path, ancestor, capsys):
    (tmp_path / "crashes").mkdir()
    rank = {"host": "h", "pid": 2, "ancestors": [ancestor]}
    (tmp_path / "crashes" / "rank.json").write_text(json.dumps({"who": rank}))
    told = _told(tmp_path, ChildFailedError("train.py FAILED"))
    is_repeated = ancestor == os.getpid()
    assert told == ([] if is_repeated else ["ChildFailedError: train.py FAILED"])
    assert ("crash file" in capsys.readouterr().err) is not is_repeated
