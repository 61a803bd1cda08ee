"""What the cookbook's recipes read from the hub, made here: a Hugging Face cache with a tiny model under the recipes'
own default name and with their data sets, a few rows each. So the recipes run offline and unchanged.

`model` needs transformers and torch; run as a program in the cookbook's environment it writes the data sets.
"""

import json
import random
import shutil
import sys
from pathlib import Path

MODEL = "Qwen/Qwen3.5-9B-Base"
# How every prompt of the recipes for gsm8k ends.
PROMPT_END = " written inside \\boxed{}.\n\nAssistant:"
REVISION = "0" * 40


def question(a, b):
    return f"What is {a} + {b}?"


def model(home: Path) -> Path:
    """A model that has learned to answer `\\boxed{digit}` with any digit: of some it is right, so groups differ."""
    import torch

    from byte_model import byte_model, byte_tokenizer

    torch.set_num_threads(1)
    tokenizer = byte_tokenizer()
    network = byte_model(tokenizer)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    draw = random.Random(0)
    for _ in range(100):
        texts = [f"{PROMPT_END} \\boxed{{{draw.randrange(5)}}}\n\nUser:" for _ in range(32)]
        batch = torch.tensor([tokenizer(text)["input_ids"] for text in texts])
        labels = batch.clone()
        labels[:, : len(PROMPT_END)] = -100
        network(input_ids=batch, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    folder = home / "hub" / f"models--{MODEL.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(REVISION)
    snapshot = folder / "snapshots" / REVISION
    tokenizer.save_pretrained(snapshot)
    network.save_pretrained(snapshot)
    return snapshot


def gsm8k():
    draw = random.Random(1)
    sums = [(draw.randrange(3), draw.randrange(3)) for _ in range(32)]
    return {"question": [question(a, b) for a, b in sums], "answer": [f"It is {a + b}.\n#### {a + b}" for a, b in sums]}


def no_robots():
    pairs = [(f"Say {word}.", word) for word in ("one", "two", "three", "four")] * 8
    roles = ("user", "assistant")
    return {
        "messages": [
            [{"role": role, "content": text} for role, text in zip(roles, pair, strict=True)] for pair in pairs
        ]
    }


def data_sets(home: Path) -> None:
    """The library's own files of a data set that was loaded before, moved to where it looks for the hub's."""
    from datasets import Dataset, load_dataset

    for name, config, rows in (
        ("openai/gsm8k", "main", gsm8k()),
        ("HuggingFaceH4/no_robots", "default", no_robots()),
    ):
        files = {}
        for split in ("train", "test"):
            files[split] = str(home / f"{split}.parquet")
            Dataset.from_dict(rows).to_parquet(files[split])
        made = load_dataset("parquet", data_files=files, cache_dir=str(home / "made"))
        place = home / "datasets" / name.replace("/", "___") / config / "0.0.0" / REVISION
        place.mkdir(parents=True)
        stem = name.rpartition("/")[2]
        for split in made:
            arrow = Path(made[split].cache_files[0]["filename"])
            shutil.copy(arrow, place / f"{stem}-{split}.arrow")
        info = json.loads(arrow.with_name("dataset_info.json").read_text())
        (place / "dataset_info.json").write_text(json.dumps(info | {"config_name": config, "dataset_name": stem}))
        shutil.rmtree(home / "made")


if __name__ == "__main__":
    data_sets(Path(sys.argv[1]))
