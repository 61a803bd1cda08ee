"""What tensor a GPU had no memory for, as the source lines of the traceback show, and whether it is fragmentation."""

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

from rldbg.doctor.clues.allocations import vocabularies
from rldbg.doctor.clues.cause_words import CauseWords
from rldbg.doctor.clues.logged_settings import LoggedSettings
from rldbg.doctor.clues.mentions import rows_of
from rldbg.doctor.logs.cleaning import clean
from rldbg.doctor.logs.evidence import Hit
from rldbg.doctor.logs.exception_lines import TRACEBACK
from rldbg.doctor.logs.sources import LogSource
from rldbg.doctor.logs.tracebacks import frame_in

ENTRY = "torch-cuda-oom"
_SIZE = re.compile(r"Tried to allocate (?P<number>\d+(?:\.\d+)?) ?(?P<unit>[KMGT])i?B")
_UNUSED = re.compile(r"(?P<number>[\d.]+) ?(?P<unit>[KMGT])i?B is reserved by PyTorch but unallocated")
_FREE = re.compile(r"of which (?P<number>[\d.]+) ?(?P<unit>[KMGT])i?B is free")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SMALL_VOCABULARY, _LARGE_VOCABULARY = 32_000, 262_144
_FLOAT32 = 4
_ABOVE, _BELOW = 60, 10
_CODE_ROWS = 6
_CARETS = re.compile(r"[\s^~]*$")
_PARTS = 4
"""Up to this part of what was asked for, unused memory would not help."""


class _Use(NamedTuple):
    shape: re.Pattern[str]
    what: str
    steps: tuple[str, ...]


_USES = (
    _Use(
        re.compile(
            r"(?i)\blogits\w{0,10}(?:\.|\[|,|\)| /| -)|log_?softmax|logsumexp|cross_entropy|log_?probs?_from_logits"
            r"|entropy_from_logits|lm_head\(|calculate_log_prob|compute_log_?probs?\(|gather_log_?prob|vocab_parallel_\w+\("
        ),
        "the logits: one number for each token and each word of the vocabulary",
        (
            "Compute log-probs and entropy in chunks, or with a fused kernel, so that the logits of all tokens never "
            "exist at once (options such as --log-probs-chunk-size, use_fused_kernels, "
            "entropy_from_logits_with_chunking, use_liger_kernel)",
            "Fewer tokens per micro batch (max tokens per GPU, micro batch size). One sample is never split by that: "
            "if a single long one is the batch, limit its length, or raise context, sequence or tensor parallelism",
        ),
    ),
    _Use(
        re.compile(r"(?i)optimizer\.step\(|exp_avg|_init_group\(|_multi_tensor|init_state|\bmain_params?\b|fp32_from"),
        "the state of the optimizer, which exists from the first step on",
        ("Shard the optimizer over more ranks, offload it, or take one with less state (8 bit, Muon for some layers)",),
    ),
    _Use(
        re.compile(r"(?i)load_weights?\(|create_weights\(|from_pretrained\(|load_model\(|\.to\(device|model\.cuda\("),
        "the weights of the model",
        ("Load on fewer ranks at a time, or straight into shards (meta device, low_cpu_mem_usage)",),
    ),
    _Use(
        re.compile(r"(?i)kv_?caches?\b|allocate_kv|init_kv|num_gpu_blocks|num_blocks|token_to_kv_pool"),
        "the cache of keys and values of the engine",
        (
            "Lower gpu_memory_utilization or mem_fraction_static, so that the cache leaves room for others on the card",
            "See that the trainer's weights are off the card before the engine takes its memory back: nvidia-smi",
        ),
    ),
    _Use(
        re.compile(r"(?i)all_gather|_unshard|unflatten|full_tensor\(|full_state_dict|gather_params|gathered"),
        "parameters that are put together from all ranks",
        ("Gather less at a time: one layer or one bucket (a smaller bucket size, reshard after forward)",),
    ),
    _Use(
        re.compile(
            r"(?i)attn_weights|attention_scores|torch\.matmul\(q|query.{0,20}key.{0,20}transpose|eager_attention"
        ),
        "the scores of attention: tokens x tokens for each head",
        ("Use an attention that does not write them out (attn_implementation=flash_attention_2 or sdpa)",),
    ),
    _Use(
        re.compile(r"(?i)grad_?buffer|grad_data|main_grad|\.grad = |zeros_like\(p"),
        "the gradients",
        ("Shard the gradients (ZeRO 2 or 3, FSDP), or accumulate them in 16 bit",),
    ),
    _Use(
        re.compile(r"(?i)act_fn\(|gate_proj|up_proj|down_proj|silu|swiglu|gelu\(|fused_moe\(|experts?\("),
        "activations of a layer, which grow with the tokens of a micro batch",
        ("Gradient checkpointing (recomputation), fewer tokens per micro batch, sequence or context parallelism",),
    ),
)


def told_of_line(
    hit: Hit, said: str, sources: Sequence[LogSource], settings: LoggedSettings, *, is_counted: bool
) -> CauseWords | None:
    """What the line that failed makes, how many tokens that would be unless it `is_counted` already, and whether it is
    fragmentation."""
    asked = _bytes(_SIZE, said)
    if not asked:
        return None
    line, use = next(
        ((line, use) for line in _lines(hit, sources) for use in _USES if use.shape.search(line)), ("", None)
    )
    whole = _not_fragmented(said, asked)
    if use is None:
        return CauseWords(whole) if whole else None
    parts = [f"the line that failed, `{line[:120]}`, makes {use.what}"]
    if use is _USES[0] and not is_counted:
        parts.append(_tokens(asked, settings))
    return CauseWords("; ".join(filter(None, (*parts, whole))), fix=use.steps)


def _tokens(asked: float, settings: LoggedSettings) -> str:
    """To how many tokens a size comes; a range where the log does not tell the vocabulary."""
    known = next(iter(vocabularies(settings)), None)
    if known is not None:
        size, whose = known
        return f"at {size} words of the vocabulary{whose} that is about {_rounded(asked, size)} tokens in float32"
    low, high = _rounded(asked, _LARGE_VOCABULARY), _rounded(asked, _SMALL_VOCABULARY)
    return (
        f"an estimate, for the log does not show the vocabulary: tokens = bytes / (words x {_FLOAT32}), between {low} "
        f"({_LARGE_VOCABULARY:,} words) and {high} ({_SMALL_VOCABULARY:,} words) in float32 on this rank"
    )


def _rounded(asked: float, size: int) -> str:
    return f"{round(asked / size / _FLOAT32, -3 if asked / size / _FLOAT32 > 10_000 else -1):,.0f}"


def _not_fragmented(said: str, asked: float) -> str:
    unused, free = _bytes(_UNUSED, said), _bytes(_FREE, said)
    if not _UNUSED.search(said) or not _FREE.search(said) or unused * _PARTS > asked or free + unused >= asked:
        return ""
    return f"it is not fragmentation: free and unused memory together are {(free + unused) / 2**30:.1f} GiB"


def _bytes(shape: re.Pattern[str], said: str) -> float:
    found = shape.search(said)
    return float(found["number"]) * _UNITS[found["unit"]] if found else 0.0


def _lines(hit: Hit, sources: Sequence[LogSource]) -> Iterator[str]:
    """The source lines of the traceback around a line, the innermost first; some print it below the exception."""
    source = next((each for each in sources if each.name == hit.place.file), None)
    rows = rows_of(source) if source is not None else []
    above = [clean(raw) for raw in reversed(rows[max(0, hit.place.line - 1 - _ABOVE) : hit.place.line - 1])]
    own = [line.text for line in above if hit.place.speaker.may_be(line.speaker)]
    code = [text.strip() for text in takewhile(lambda text: TRACEBACK not in text, own) if _is_code(text)]
    if not any(map(frame_in, own[:2])) and not code[:1]:
        below = (clean(raw).text for raw in rows[hit.place.line : hit.place.line + _BELOW])
        code = [text.strip() for text in below if _is_code(text)]
    yield from code[:_CODE_ROWS]


def _is_code(text: str) -> bool:
    return not _CARETS.match(text) and not frame_in(text) and bool(re.search(r"[(=\[]", text))
