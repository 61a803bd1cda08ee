"""The built-in policy: a small Llama in plain PyTorch, with the parameter names of transformers.

transformers takes seconds of every process's start and most of a small model's forward pass, so it is loaded only for
models from a folder. `to_transformers` gives the same model as a Hugging Face one.
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rldbg.core import UsageError
from rldbg.trainer.settings import TinyModel

_ROTARY_BASE = 10000.0

Cache = list[tuple[Tensor, Tensor]]  # keys and values [b, heads, t, head size] of each layer


@dataclass(slots=True)
class Configuration:
    """The model's shape, in the words of transformers."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    max_position_embeddings: int = 128
    tie_word_embeddings: bool = False
    pad_token_id: int = 0
    eos_token_id: int = 1
    bos_token_id: int | None = None
    initializer_range: float = 0.1
    rms_norm_eps: float = 1e-6
    num_experts: int = 0
    num_experts_per_tok: int = 2

    def to_dict(self) -> dict[str, Any]:
        """Without experts, no key mentions them: programs take any model with such keys for a mixture."""
        words = {name: value for name, value in asdict(self).items() if self.num_experts or "experts" not in name}
        return words | {"model_type": "llama"}


@dataclass(slots=True)
class Output:
    logits: Tensor  # [b, t, v]
    past_key_values: Cache | None


class TinyLlama(nn.Module):
    """Takes what a causal model of transformers takes, as far as the trainer and the sampler use it."""

    def __init__(self, shape: TinyModel, vocabulary_size: int) -> None:
        super().__init__()
        self.config = Configuration(
            vocab_size=vocabulary_size,
            hidden_size=shape.hidden_size,
            intermediate_size=2 * shape.hidden_size,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.heads,
            num_experts=shape.experts,
        )
        self.model = _Decoder(self.config)
        self.lm_head = nn.Linear(shape.hidden_size, vocabulary_size, bias=False)
        nn.init.normal_(self.lm_head.weight, std=self.config.initializer_range)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool = False,
    ) -> Output:
        """The logits of every column. `attention_mask` covers the cached columns too; without it all are attended."""
        seen = past_key_values[0][0].shape[2] if past_key_values else 0
        columns = torch.arange(seen, seen + input_ids.shape[1], device=input_ids.device)
        positions = columns[None] if position_ids is None else position_ids
        attended = _attended(columns, attention_mask)
        hidden, cache = self.model(input_ids, positions, attended, past_key_values)
        return Output(self.lm_head(hidden), cache if use_cache else None)

    def to_transformers(self) -> Any:
        """The same model as a `LlamaForCausalLM`, with a copy of the weights. That has no experts."""
        if self.config.num_experts:
            raise UsageError("a tiny model with experts has no Hugging Face form", "use model.tiny.experts=0")
        from transformers import LlamaConfig, LlamaForCausalLM

        model = LlamaForCausalLM(LlamaConfig(**self.config.to_dict())).to(self.lm_head.weight.dtype)
        model.load_state_dict(self.state_dict())
        return model.eval()


class _Decoder(nn.Module):
    def __init__(self, config: Configuration) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self._head_size = config.hidden_size // config.num_attention_heads
        # In the order of transformers, so that a seed gives the same weights there.
        for module in self.modules():
            if isinstance(module, nn.Embedding | nn.Linear):
                nn.init.normal_(module.weight, std=config.initializer_range)
        nn.init.zeros_(self.embed_tokens.weight[config.pad_token_id])

    def forward(
        self, input_ids: Tensor, positions: Tensor, attended: Tensor, cache: Cache | None
    ) -> tuple[Tensor, Cache]:
        hidden = self.embed_tokens(input_ids)
        rotation = _rotation(positions, self._head_size, hidden.dtype)
        caches: Cache = []
        for number, layer in enumerate(self.layers):
            hidden, pair = layer(hidden, rotation, attended, cache[number] if cache else None)
            caches.append(pair)
        return self.norm(hidden), caches


class _Layer(nn.Module):
    def __init__(self, config: Configuration) -> None:
        super().__init__()
        self.self_attn = _Attention(config)
        self.mlp = _Mixture(config) if config.num_experts else _Gated(config.hidden_size, config.intermediate_size)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self, hidden: Tensor, rotation: tuple[Tensor, Tensor], attended: Tensor, cached: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        change, pair = self.self_attn(self.input_layernorm(hidden), rotation, attended, cached)
        hidden = hidden + change
        return hidden + self.mlp(self.post_attention_layernorm(hidden)), pair


class _Attention(nn.Module):
    def __init__(self, config: Configuration) -> None:
        super().__init__()
        self._heads = config.num_attention_heads
        size = config.hidden_size
        self.q_proj = nn.Linear(size, size, bias=False)
        self.k_proj = nn.Linear(size, size, bias=False)
        self.v_proj = nn.Linear(size, size, bias=False)
        self.o_proj = nn.Linear(size, size, bias=False)

    def forward(
        self, hidden: Tensor, rotation: tuple[Tensor, Tensor], attended: Tensor, cached: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        query, key, value = (
            projection(hidden).unflatten(-1, (self._heads, -1)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = _rotated(query, rotation), _rotated(key, rotation)
        if cached is not None:
            key, value = torch.cat([cached[0], key], dim=2), torch.cat([cached[1], value], dim=2)
        result = functional.scaled_dot_product_attention(query, key, value, attn_mask=attended)
        return self.o_proj(result.transpose(1, 2).flatten(2)), (key, value)


class _Gated(nn.Module):
    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size, inner, bias=False)
        self.up_proj = nn.Linear(size, inner, bias=False)
        self.down_proj = nn.Linear(inner, size, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        changed: Tensor = self.down_proj(functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden))
        return changed


class _Mixture(nn.Module):
    """Experts, of which each token uses the likeliest by the router; their weights add up to 1."""

    def __init__(self, config: Configuration) -> None:
        super().__init__()
        self.chosen = min(config.num_experts_per_tok, config.num_experts)
        self.normalised = True
        self.gate = nn.Linear(config.hidden_size, config.num_experts, bias=False)
        self.experts = nn.ModuleList(
            _Gated(config.hidden_size, config.intermediate_size) for _ in range(config.num_experts)
        )

    def route(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and numbers of the experts of each token, the likeliest first."""
        weights, experts = logits.float().softmax(-1).topk(self.chosen, dim=-1)
        if self.normalised:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights, experts

    def forward(self, hidden: Tensor) -> Tensor:
        weights, experts = self.route(self.gate(hidden))
        # All experts see all tokens: for models this small that is faster than sorting, and the same on every batch.
        made = torch.stack([expert(hidden) for expert in self.experts], dim=-2)
        picked = made.gather(-2, experts[..., None].expand(*experts.shape, hidden.shape[-1]))
        mixed: Tensor = (picked * weights[..., None].to(hidden.dtype)).sum(-2)
        return mixed


def _attended(columns: Tensor, attention_mask: Tensor | None) -> Tensor:
    """[b or 1, 1, t, all columns]: which columns each new one looks at. Padding looks at itself, so it stays finite."""
    before = torch.arange(int(columns[-1]) + 1, device=columns.device)
    causal = before[None, :] <= columns[:, None]
    if attention_mask is None:
        return causal[None, None]
    itself = before[None, :] == columns[:, None]
    return (causal & attention_mask.bool()[:, None] | itself)[:, None]


def _rotation(positions: Tensor, head_size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine [b, 1, t, head size] by which queries and keys are turned."""
    exponents = torch.arange(0, head_size, 2, device=positions.device).float() / head_size
    angles = positions[..., None].float() * (1.0 / _ROTARY_BASE**exponents)
    angles = torch.cat([angles, angles], dim=-1)[:, None]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _rotated(values: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    first, second = values.chunk(2, dim=-1)
    return values * rotation[0] + torch.cat([-second, first], dim=-1) * rotation[1]
