"""What a client says that does not get through to its broker, and what to do then."""

import errno
import json
import os

import pytest

from rldbg.agent import Refused
from rldbg.core import RldbgError
from rldbg.live.client import broker_client


@pytest.mark.parametrize(
    ("error", "said", "hint"),
    [
        (OSError(errno.ENETUNREACH, "Network is unreachable"), "out of reach from here", "--listen ADDRESS"),
        (OSError(errno.EHOSTUNREACH, "No route to host"), "out of reach from here", "--listen ADDRESS"),
        (TimeoutError("timed out"), "is running and does not answer", "Ctrl-Z"),
        (Refused("protocol 2 is not this broker's protocol 1"), "refused", "the same rldbg version on both sides"),
        (Refused("cannot debug light/0: the connection ended"), "refused", "rldbg ps --run"),
    ],
)
def test_the_advice_fits_the_reason(tmp_path, monkeypatch, error, said, hint):
    address = {"host": "192.0.2.7", "port": 1, "token": "t", "node": os.uname().nodename, "owner_pid": os.getpid()}
    (tmp_path / "broker.json").write_text(json.dumps(address))

    def dial(*_where, **_about):
        raise error

    monkeypatch.setattr(broker_client, "dial", dial)
    monkeypatch.setattr(broker_client, "is_held", lambda _run: True)
    with pytest.raises(RldbgError) as raised:
        broker_client.connect(tmp_path)
    assert said in raised.value.message and hint in raised.value.hint
