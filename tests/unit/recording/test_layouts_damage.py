"""Damaged input of every layout: a clear error or a finding, never a crash, a hang or a wrong exception."""

import random
import signal

import peer_dumps
import pyarrow
import pyarrow.parquet
import pytest
from handmade import Writer, key

from rldbg.core import RldbgError
from rldbg.recording import open as open_recording

_QUICK_ROUNDS = 20
_SOAK_ROUNDS = 2500
_PATIENCE_S = 30


def _areal(root):
    import torch

    batch = {"input_ids": torch.ones(2, 3, dtype=torch.int32), "attention_mask": torch.ones(2, 3, dtype=torch.bool)}
    root.mkdir()
    torch.save(batch | {"loss_mask": torch.ones(2, 3), "rewards": torch.ones(2)}, root / "batch_data.pt")


def _slime(root):
    peer_dumps.slime_rollout(root, 0, [peer_dumps.slime_sample(index) for index in range(2)])
    peer_dumps.slime_train(root, 0, 2)


def _ours(root):
    writer = Writer(root)
    writer.file(key(0), key(0, 0, 1))
    writer.file(key(1))
    writer.close()


def _trl(root):
    root.mkdir()
    table = pyarrow.table({"step": [1], "prompt": ["a"], "reward": [1.0], "advantage": [0.5]})
    pyarrow.parquet.write_table(table, root / "completions_00001.parquet")


_MAKERS = {
    "rldbg": _ours,
    "nexrl-pt": lambda root: peer_dumps.nexrl(root, ranks=1, micros=1),
    "nexrl-jsonl": lambda root: peer_dumps.nexrl(root, ranks=1, micros=1, form="jsonl"),
    "slime": _slime,
    "sglang": lambda root: peer_dumps.sglang(root, ranks=1, layers=1),
    "msprobe": peer_dumps.msprobe,
    "debug_mode": peer_dumps.debug_mode,
    "verl": lambda root: peer_dumps.verl_batch(root, 1),
    "areal": _areal,
    "prime_rl": lambda root: peer_dumps.lines(root / "step_1" / "rank_0.jsonl", [peer_dumps.prime_row(1, 0, 0, 0)]),
    "nemo_rl": lambda root: peer_dumps.lines(root / "train_data_step1.jsonl", [peer_dumps.nemo_row(0)]),
    "trl": _trl,
}


def _damaged(raw: bytes, dice: random.Random) -> bytes:
    """Bits flipped, pieces cut out, repeated, or replaced: one to four times."""
    data = bytearray(raw)
    for _ in range(dice.randint(1, 4)):
        place = dice.randrange(max(len(data), 1))
        length = dice.choice([1, 1, 2, 8, 64, 1024])
        how = dice.randrange(6)
        if how == 0 and data:
            data[place % len(data)] ^= 1 << dice.randrange(8)
        elif how == 1:
            del data[place : place + length]
        elif how == 2:
            del data[place:]
        elif how == 3:
            data[place:place] = data[place : place + length]
        elif how == 4:
            data[place : place + length] = dice.randbytes(min(length, 64))
        else:
            data[place : place + 1] = dice.choice(
                [b"null", b"[[[", b"1e999", b"-1", b"\xff", b'"x"', b"}", b"99999999999"]
            )
    return bytes(data)


def _survives(root) -> None:
    """Everything a user can ask of a recording."""
    try:
        recording = open_recording(root)
        recording.summary().to_dict()
        recording.verify()
        for record in recording.records():
            for name in record.fields:
                record.dtype(name)
    except RldbgError as error:
        assert error.message


def _storm(tmp_path, name: str, rounds: int) -> None:
    root = tmp_path / "dump"
    _MAKERS[name](root)
    whole = {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
    dice = random.Random(f"{name} {rounds}")
    for round in range(rounds):
        path = dice.choice(list(whole))
        path.write_bytes(_damaged(whole[path], dice))
        signal.alarm(_PATIENCE_S)  # a hang must fail here, with the round that caused it, and not by a distant timeout
        try:
            _survives(root)
        except BaseException as error:
            error.add_note(f"round {round}, {path.relative_to(root)}")
            raise
        finally:
            signal.alarm(0)
        path.write_bytes(whole[path])


@pytest.mark.parametrize("name", _MAKERS)
def test_damaged_files_never_crash_a_reader(tmp_path, name):
    _storm(tmp_path, name, _QUICK_ROUNDS)


@pytest.mark.soak
@pytest.mark.parametrize("name", _MAKERS)
def test_soak_damaged_files_never_crash_a_reader(tmp_path, name):
    _storm(tmp_path, name, _SOAK_ROUNDS)
