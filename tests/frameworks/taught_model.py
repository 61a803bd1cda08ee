"""A tiny model that answers one-digit sums right about half of the time: groups with different rewards, from step 0."""

import random

from rldbg.trainer import tiny_folder


def teach(folder, steps=150):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tiny_folder(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    draw = random.Random(0)
    for _ in range(steps):
        rows = []
        for _ in range(64):
            a, b = draw.randrange(4), draw.randrange(4)
            answer = a + b if draw.random() < 0.5 else draw.randrange(7)
            rows.append([*tokenizer(f"{a}+{b}={answer}")["input_ids"], tokenizer.eos_token_id])
        batch = torch.tensor(rows)
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    return folder
