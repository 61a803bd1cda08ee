"""A causal language model of a few thousand parameters, for loops that stand alone."""

import torch

VOCABULARY, WIDTH, PAD = 24, 32, 0


class TinyLM(torch.nn.Module):
    """Embeddings, one block of attention and an MLP. `attention_mask` marks real tokens, on either side of padding."""

    def __init__(self):
        super().__init__()
        self.token = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.position = torch.nn.Embedding(64, WIDTH)
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens, attention_mask):
        positions = (attention_mask.cumsum(-1) - 1).clamp(min=0)
        hidden = self.token(tokens) + self.position(positions)
        query, key, value = self.qkv(hidden).chunk(3, -1)
        scores = query @ key.transpose(-1, -2) / WIDTH**0.5
        length = tokens.shape[-1]
        seen = torch.ones(length, length, dtype=torch.bool).tril() & attention_mask[:, None, :].bool()
        seen = seen | torch.eye(length, dtype=torch.bool)  # a row of padding looks at itself
        hidden = hidden + scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value
        return self.head(hidden + self.down(self.up(hidden).relu()))


def new_model(seed):
    torch.manual_seed(seed)
    return TinyLM()


def prompts(seed, step):
    """Six prompts of different lengths, as lists of token ids."""
    generator = torch.Generator().manual_seed(1000 * seed + step)
    lengths = torch.randint(3, 8, (6,), generator=generator).tolist()
    return [torch.randint(2, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]


def reward(prompt, response):
    """The share of the response that repeats tokens of the prompt, and a little for being short."""
    return sum(token in prompt for token in response) / max(len(response), 1) - 0.01 * len(response)
