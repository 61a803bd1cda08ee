"""A command that comes while a killed broker is replaced connects to the next one, whatever it read first."""

import json
import os

import pytest

from rldbg.agent import BrokerAddress
from rldbg.core import UnreachableError
from rldbg.live.client import broker_client


def _announce(run, port):
    owner = {"node": os.uname().nodename, "owner_pid": os.getppid()}
    (run / "broker.json").write_text(json.dumps({"host": "127.0.0.1", "port": port, "token": "t"} | owner))


@pytest.mark.parametrize("owned", [True, False], ids=["a run", "a broker that was started by hand"])
@pytest.mark.parametrize("before", [None, 1], ids=["no file", "the file of the killed one"])
def test_the_next_broker_may_appear_right_after_the_look(tmp_path, monkeypatch, before, owned):
    # GIVEN a broker whose file comes after the first attempt has looked, and before it is judged
    if owned:
        (tmp_path / "run.json").write_text(json.dumps({"ended_at": None}))
    if before:
        _announce(tmp_path, before)
    attempts, address = [], broker_client._address

    def look(run):
        attempts.append(1)
        try:
            found = address(run)
            if found.port == before:
                raise UnreachableError("refused")
            return found
        finally:
            _announce(run, 2)
            monkeypatch.setattr(broker_client, "is_held", lambda _run: True)

    monkeypatch.setattr(broker_client, "_address", look)
    monkeypatch.setattr(broker_client, "dial", lambda where, **_about: where)
    # WHEN a client connects THEN it reaches the next broker
    assert broker_client.connect(tmp_path).port == 2 and len(attempts) == 2
    assert BrokerAddress.read(tmp_path).port == 2


def test_a_folder_without_a_broker_is_refused_at_once(tmp_path):
    with pytest.raises(UnreachableError, match="no live broker"):
        broker_client.connect(tmp_path)
