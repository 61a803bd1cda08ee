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


def qwen2(folder, hidden_size=32):
    """Random weights of another architecture, with the same tokenizer."""
    import torch
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    tiny_folder(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": hidden_size, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = Qwen2Config(vocab_size=len(tokenizer), num_key_value_heads=2, **sizes, **ends)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder
