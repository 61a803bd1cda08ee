"""What `--ray ADDRESS` says where a dashboard does not tell the cluster."""

import pytest

from rldbg.core import UnreachableError
from rldbg.live.external_ray.dashboard import Dashboard
from rldbg.live.unarmed.ray_cluster import _cluster_address


@pytest.mark.parametrize("address", ["http://127.0.0.1:8265", "127.0.0.1:8265"])
def test_a_dashboard_that_knows_no_node_yet_is_said_to_be_starting(monkeypatch, address):
    monkeypatch.setattr(Dashboard, "_get", lambda self, path: {"data": {"summary": []}})
    with pytest.raises(UnreachableError, match="does not list the nodes of its cluster yet") as caught:
        _cluster_address(address)
    assert "--ray auto" in caught.value.hint and "--ray HOST:PORT" in caught.value.hint


def test_a_dashboard_that_does_not_answer_is_said_to_be_missing():
    with pytest.raises(
        UnreachableError, match=r"no Ray dashboard at http://127.0.0.1:1: .*does not answer yet"
    ) as caught:
        _cluster_address("http://127.0.0.1:1")
    assert "try again in a few seconds" in caught.value.hint
    # AND without a scheme it may be the address of the cluster
    assert _cluster_address("127.0.0.1:1") == "127.0.0.1:1"
