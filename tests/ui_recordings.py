"""Recordings for the tests of the web application, and a browser that can reach nothing but this machine."""

import json
import re
import shutil
from pathlib import Path

import numpy as np

import rldbg

HOSTILE_GROUP = "g<img src=x onerror=document.title='pwned'>"
HOSTILE_TEXT = "<script>document.title='pwned'</script>\x1b[31mred\x1b[0m \u202eevil\u202c \ud800 \u200bzero \0 end"


def two_turns(folder: Path, steps: int = 3, groups: int = 4, *, shift: float = 0.0) -> Path:
    """A small run: two turns of the model with the environment between them, and the trainer's log probs."""
    draw = np.random.default_rng(0)
    recorder = rldbg.Recorder(folder)
    for step in range(steps):
        samples, tokens, masks, log_probs, rewards, fields = [], [], [], [], [], []
        for number in range(groups * 4):
            length = 20 + int(draw.integers(0, 6))
            mask = [0] * 6 + [1] * 5 + [0] * 4 + [1] * (length - 15)
            samples.append((f"g{number // 4}", number % 4))
            tokens.append([*draw.integers(3, 90, length).tolist()[:-1], 2])
            masks.append(mask)
            log_probs.append((np.where(mask, -draw.random(length), 0.0)).tolist())
            rewards.append(float(number % 2))
            fields.append({"task_id": f"task {number // 4}", "score": number / 2, "prompt": "x" * 300})
        recorder.record(
            "trajectory", step=step, samples=samples, tokens=tokens, loss_mask=masks, logprobs=log_probs,
            reward=rewards, extra_fields=fields,
        )  # fmt: skip
        width = max(map(len, tokens)) - 6
        old = np.zeros((len(samples), width), np.float32)
        for row, values in enumerate(log_probs):
            old[row, : len(values) - 6] = np.asarray(values[6:], np.float32) + (shift if step == 1 and row == 2 else 0)
        old[1, 0] = old[1, 0] - 5.0  # one odd token
        recorder.record("old_log_probs", step=step, samples=samples, old_log_probs=old)
    recorder.close()
    return folder


def weights_of_two_replicas(folder: Path) -> Path:
    """Two versions sent; replica 1 still holds one tensor of the first. The tokenizer has a chat template."""
    import torch

    from chat_tokenizer import CHATML, chat_tokenizer
    from rldbg.weights import fingerprints, snapshot_fields

    draw = np.random.default_rng(0)
    names = [f"model.layers.{layer}.mlp.{part}.weight" for layer in range(3) for part in ("up_proj", "down_proj")]
    old, new = ({name: torch.from_numpy(draw.normal(size=(8, 8))) for name in names} for _ in range(2))
    with rldbg.Recorder(folder) as recorder:
        for version, sent in enumerate((old, new)):
            recorder.record("weights", step=version, micro=0, **snapshot_fields("sent", fingerprints(sent)))
        for replica in range(2):
            held = new | ({names[3]: old[names[3]]} if replica else {})
            fields = snapshot_fields("held", fingerprints(held), replica=replica)
            recorder.record("weights", step=1, micro=replica + 1, **fields)
        recorder.record("loss", step=1, loss=0.5)
    tokenizer = chat_tokenizer()
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder / "tokenizer")
    return folder


def hostile(folder: Path) -> Path:
    """Text that would run, hide, reorder or fill the page, in every place that holds text."""
    recorder = rldbg.Recorder(folder)
    recorder.record(
        "trajectory",
        step=0,
        samples=[(HOSTILE_GROUP, 0), ("g1", 0)],
        tokens=[[1, 2, 3], [1, 2, 4]],
        loss_mask=[[0, 1, 1], [0, 1, 1]],
        logprobs=[[0.0, -1.0, float("-inf")], [0.0, float("nan"), -0.25]],
        reward=[1.0, 0.0],
        extra_fields=[{"note": HOSTILE_TEXT, "long": "A" * 1_000_000, "=cmd": "x", "answer": "=1+1"}, {}],
    )
    recorder.close()
    return folder


def long_sample(folder: Path, count: int = 32_768) -> Path:
    """One sample of many tokens."""
    draw = np.random.default_rng(0)
    recorder = rldbg.Recorder(folder)
    mask = np.ones(count, np.int64)
    mask[:100] = 0
    values = -draw.random(count)
    values[20_000 % count] = -40.0
    recorder.record(
        "trajectory", step=0, samples=[("long", 0)], tokens=[draw.integers(0, 50_000, count).tolist()],
        loss_mask=[mask.tolist()], logprobs=[values.tolist()], reward=[1.0],
    )  # fmt: skip
    recorder.close()
    return folder


def run_folder(folder: Path, recording: Path, **facts: object) -> Path:
    """A run folder around a recording."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(recording, folder / "recording")
    (folder / "run.json").write_text(json.dumps({"command": ["train.py"], **facts}))
    return folder


def crashed(folder: Path) -> Path:
    """A run that failed in the frame of a function, whose caller holds a hostile value."""
    source = {"first": 14, "lines": ["def reward_of(step):", "    return REWARDS[step]"]}
    caller = {"first": 29, "lines": ["    loss = reward_of(step)"]}
    frames = [
        {"file": "loop.py", "line": 15, "function": "reward_of", "source": source,
         "locals": {"step": {"type": "int", "text": "3"}}},
        {"file": "loop.py", "line": 29, "function": "train", "source": caller,
         "locals": {"fault": {"type": "str", "text": "<img src=x onerror=document.title=1>"}}},
    ]  # fmt: skip
    error = {"type": "IndexError", "module": "builtins", "message": "tuple index out of range", "notes": []}
    crash = {
        "schema_version": 1,
        "who": {"role": "loop", "rank": 1, "pid": 7, "host": "h"},
        "time": 1.0,
        "thread": "MainThread",
        "where": "process",
        "step": 3,
        "exceptions": [error | {"relation": "raised", "frames": frames}],
    }
    (folder / "crashes").mkdir(parents=True)
    (folder / "run.json").write_text(
        json.dumps({"command": ["loop.py"], "started_at": 1.0, "ended_at": 2.0, "exit_code": 1})
    )
    (folder / "crashes" / "1.json").write_text(json.dumps(crash))
    return folder


_QUESTION = (
    "<|im_start|>user\n Anna has three boxes with twelve pencils each . She gives away seven . How many are left ?"
)
_CONVERSATION = (
    (0, f"{_QUESTION} <|im_end|>\n <|im_start|>assistant\n"),
    (1, "<think> Three boxes of twelve pencils are thirty six . I check this with the tool . </think>"),
    (1, " <tool_call> calculator ( 3 * 12 - 7 ) </tool_call> <|im_end|>"),
    (0, "\n <|im_start|>tool\n 29 <|im_end|>\n <|im_start|>assistant\n"),
    (1, " The calculator says 29 , so Anna has twenty nine pencils left .\n Answer : 29 <|im_end|>"),
)


def agent(folder: Path, steps: int = 4, groups: int = 6) -> Path:
    """Conversations with thinking, a tool call and its answer, with a tokenizer that gives their text."""
    pieces = [(piece, mask) for mask, text in _CONVERSATION for piece in re.findall(r"\n| ?[^ \n]+", text)]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(piece for piece, _ in pieces))}
    tokens, mask = [vocabulary[piece] for piece, _ in pieces], np.array([mask for _, mask in pieces])
    draw = np.random.default_rng(1)
    with rldbg.Recorder(folder) as recorder:
        for step in range(steps):
            samples = [(f"task-{group:02}", member) for group in range(groups) for member in range(4)]
            rollout = np.where(mask, -(draw.random((len(samples), len(tokens))) ** 4), 0.0)
            old = rollout + np.where(mask, draw.normal(0, 0.02, rollout.shape), 0.0)
            old[5, pieces.index((" thirty", 1))] -= 2.4
            recorder.record(
                "trajectory", step=step, samples=samples, tokens=[tokens] * len(samples),
                loss_mask=[mask.tolist()] * len(samples), logprobs=rollout.tolist(),
                reward=(draw.random(len(samples)) < 0.3 + 0.1 * step).astype(float).tolist(),
            )  # fmt: skip
            recorder.record("old_log_probs", step=step, samples=samples, old_log_probs=old.astype(np.float32))
    from tokenizers import Tokenizer, decoders, models

    as_bytes = {piece.replace(" ", "Ġ").replace("\n", "Ċ"): number for piece, number in vocabulary.items()}
    tokenizer = Tokenizer(models.WordLevel(as_bytes, unk_token=next(iter(as_bytes))))
    tokenizer.decoder = decoders.ByteLevel()
    (folder / "tokenizer").mkdir()
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    return folder
