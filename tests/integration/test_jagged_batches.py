"""Batches of torch's jagged tensors, whose machinery alone takes seconds to load."""

import torch

from rldbg.core import SampleId
from rldbg.recording import RecordKey
from rldbg.recording import open as open_recording


def test_verl_transfer_queue_batch_is_jagged(tmp_path):
    def jagged(*rows):
        return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)

    tensors = {"input_ids": jagged([5, 6, 7], [3, 4, 5, 9, 9]), "response_mask": jagged([1], [1, 0, 1])}
    tensors |= {"rollout_log_probs": jagged([-0.5], [-0.1, -0.2, -0.3]), "rm_scores": jagged([1.0], [0.0, 0.0, 0.5])}
    folder = tmp_path / "exp" / "7" / "1"
    folder.mkdir(parents=True)
    payload = {"tensordict": tensors, "tags": [{}, {}], "keys": ["u_0_s_0", "u_0_s_1"], "global_steps": 7}
    torch.save(payload, folder / "tq_batch.pt")
    (folder / "meta.json").write_text('{"global_steps": 7, "num_trajectories": 2}')
    record = open_recording(tmp_path / "exp").read(RecordKey("trajectory", 7, 0, 1))
    assert [row.tolist() for row in record.rows("tokens")] == [[5, 6, 7], [3, 4, 5, 9, 9]]
    assert [row.tolist() for row in record.rows("loss_mask")] == [[0, 0, 1], [0, 0, 1, 0, 1]]
    assert record.array("reward").tolist() == [1.0, 0.5]
    assert record.samples == (SampleId("u_0", 0), SampleId("u_0", 1))
    assert record.extra["meta_info"]["tags"] == [{}, {}]
