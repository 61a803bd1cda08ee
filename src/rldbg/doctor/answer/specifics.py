"""What an exception says about this run, put into a sentence: whose call does not fit whose code, who holds the GPU's
memory, which address was refused."""

import re
from collections.abc import Sequence

from rldbg.doctor.clues.addresses import told_refusal
from rldbg.doctor.clues.interfaces import given_function, interface
from rldbg.doctor.clues.none_values import none_in_line
from rldbg.doctor.clues.operations import library_asked_for, refused_at_import, unfit_call
from rldbg.doctor.clues.options import absent_option
from rldbg.doctor.clues.signals import sender_of
from rldbg.doctor.logs.cleaning import without_environment
from rldbg.doctor.logs.evidence import Failure
from rldbg.doctor.logs.exception_lines import last_error
from rldbg.doctor.logs.frames import CALLS_THROUGH, package_of, short
from rldbg.doctor.verdict.deaths import who_died

_PREFIX = re.compile(
    r"['\"\s.](?P<prefix>base_model(?:\.model)?|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)(?=[.'\"])"
    r"|(?P<lora>\.(?:lora_[AB]|base_layer)\b)"
)
_OF_PREFIX = {
    "base_model": "base_model. is the prefix of PEFT: the names are those of a model in its LoRA wrapper",
    "_orig_mod": "_orig_mod. is the prefix of torch.compile: the names are those of a compiled model",
    "_fsdp_wrapped_module": "_fsdp_wrapped_module. is the prefix of FSDP: the names are those of its wrapper",
    "_checkpoint_wrapped_module": "_checkpoint_wrapped_module. is the prefix of activation checkpointing's wrapper",
    "": "lora_A, lora_B and base_layer are names of PEFT: the model is still in its LoRA wrapper",
}
_OF_NAMES = re.compile(r"(?i)parameter|state_dict|weight|module|\bkeys?\b|KeyError")
_LISTS = re.compile(r"(?i)missing keys?\b(?P<missing>.{1,2000}?)unexpected keys?\b(?P<surplus>.{1,2000})")
_NAME = re.compile(r"['\"](?P<name>[A-Za-z_][\w.]{4,200})['\"]")
_LONGEST_PREFIX = 40
_LISTED = 40
_MEMORY = r"[\d.]+ ?[KMGT]i?B"
_OUT_OF_MEMORY = re.compile(rf"[Oo]ut of memory.{{0,40}}Tried to allocate (?P<tried>{_MEMORY})")
_GPU = re.compile(
    rf"GPU (?P<gpu>\d+)\D{{0,40}}?capaci?ty of (?P<total>{_MEMORY})(?: of which (?P<free>{_MEMORY}) is free)?"
)
_HOLDER = re.compile(rf"[Pp]rocess (?P<pid>\d+) has (?P<memory>{_MEMORY}) memory in use")
_THIS_PROCESS = re.compile(rf"this process has (?P<memory>{_MEMORY}) memory in use")
_OWN = re.compile(rf"(?P<memory>{_MEMORY}) is allocated by PyTorch")
_UNUSED = re.compile(rf"(?P<memory>{_MEMORY}) is reserved by PyTorch but unallocated")
_NAMES_NO_PLACE = re.compile(
    r"(?:KeyError|IndexError|ZeroDivisionError|UnboundLocalError|AssertionError$|TypeError|ValueError: not enough|"
    r"ValueError: too many|AttributeError: 'NoneType'|RuntimeError: (?:shape|The size of tensor|cannot reshape))"
)
"""Exceptions whose words do not say what they are about."""
_OF_KERNEL = re.compile(
    r"illegal memory access|misaligned address|unspecified launch failure|device-side assert|illegal instr"
)
_OF_LAYER = re.compile(r"/(?:models|layers|ops|kernels|attention|modules|fused_moe|quantization)/")
_LAYERS = 3
_EXIT_CODE = re.compile(r"\(exitcode: (?P<code>-\d{1,2})\)")
_MISMATCH = re.compile(
    r"(?P<one>[A-Za-z_]\w*) (?:shape|size) (?:torch\.Size\()?\[(?P<a>\d+)[^\]]*\]\)? (?:does not|doesn't|do not) match "
    r"(?:the )?(?P<other>[A-Za-z_]\w*) (?:shape|size) (?:torch\.Size\()?\[(?P<b>\d+)[^\]]*\]"
)
_PRODUCT = re.compile(r"mat1 and mat2 shapes cannot be multiplied \((?P<a>\d+)x(?P<b>\d+) and (?P<c>\d+)x(?P<d>\d+)\)")


def specifics(failure: Failure) -> str:
    """One sentence on what the exception itself says, or nothing where it says no more than its own words."""
    said = failure.headline
    if says := last_error(failure):
        return f"NCCL's last error is: {says}"
    if told := none_in_line(failure):
        return f"{failure.headline}: {told}; the failing line is: {failure.code}"
    if told := given_function(failure):
        return told
    sentences = (each(said, failure.frames) for each in _TELLERS)
    shown = (
        f"{failure.headline}; the failing line is: {failure.code}"
        if failure.code and _NAMES_NO_PLACE.match(said)
        else ""
    )
    return next((sentence for sentence in sentences if sentence), shown)


def _memory(said: str, _frames: Sequence[str]) -> str:
    tried = _OUT_OF_MEMORY.search(said)
    if tried is None:
        return ""
    parts = [f"{tried['tried']} were asked for"]
    if gpu := _GPU.search(said):
        free = f", {gpu['free']} of its {gpu['total']} were free" if gpu["free"] else f", which has {gpu['total']}"
        parts[0] += f" on GPU {gpu['gpu']}{free}"
        if others := _of_others(said, gpu):
            parts.append(f"other processes, which the message does not name, hold about {others}")
    parts += [f"process {holder['pid']} holds {holder['memory']}" for holder in _HOLDER.finditer(said)]
    if own := _OWN.search(said):
        parts.append(f"this process has {own['memory']} in tensors")
    if unused := _UNUSED.search(said):
        parts.append(f"{unused['memory']} is reserved and unused")
    return "; ".join(parts) + "." if len(parts) > 1 else ""


def _of_others(said: str, gpu: re.Match[str]) -> str:
    """What is neither free nor held by a process that the message names, if it is more than a tenth of the GPU."""
    own = _THIS_PROCESS.search(said)
    if own is None or not gpu["free"]:
        return ""
    total = _bytes(gpu["total"])
    named = sum(_bytes(holder["memory"]) for holder in _HOLDER.finditer(said))
    rest = total - _bytes(gpu["free"]) - _bytes(own["memory"]) - named
    return f"{rest / 2**30:.1f} GiB" if rest > 0.1 * total else ""


def _bytes(text: str) -> float:
    unit = text.rstrip("iB")[-1]
    return float(text.rstrip("iBKMGT ")) * 1024.0 ** (1 + "KMGT".index(unit))


def _refused(said: str, _frames: Sequence[str]) -> str:
    return told_refusal(said)


def _mismatch(said: str, _frames: Sequence[str]) -> str:
    shapes = _MISMATCH.search(said)
    if shapes is None or shapes["a"] == shapes["b"]:
        return ""
    more = int(shapes["a"]) - int(shapes["b"])
    return (
        f"{shapes['one']} has {abs(more)} rows {'more' if more > 0 else 'fewer'} than {shapes['other']} "
        f"({shapes['a']} and {shapes['b']}): one of the two was padded, cut or split otherwise."
    )


def _product(said: str, _frames: Sequence[str]) -> str:
    shapes = _PRODUCT.search(said)
    if shapes is None:
        return ""
    return f"the first matrix has {shapes['b']} columns, the second {shapes['c']} rows; they must be equal."


def _kernel(said: str, frames: Sequence[str]) -> str:
    """The layers that a GPU was computing when it reported an error: the first suspects, if the report was in time."""
    inner = [frame for frame in reversed(frames) if _OF_LAYER.search(frame) and package_of(frame) not in CALLS_THROUGH]
    if not (_OF_KERNEL.search(said) and inner):
        return ""
    layers = list(dict.fromkeys(short(frame).rpartition(" in ")[2] for frame in inner[:_LAYERS]))
    file = short(without_environment(inner[0])).partition(":")[0]
    called = f", called by {', '.join(layers[1:])}" if layers[1:] else ""
    return f"it was reported in {layers[0]} ({file}){called}; if the report was in time, suspect its kernel first."


def _death(said: str, _frames: Sequence[str]) -> str:
    return f"{who} died." if (who := who_died(said)) else ""


def _signal(said: str, _frames: Sequence[str]) -> str:
    code = _EXIT_CODE.search(said)
    return sender_of(int(code["code"])) if code else ""


def _wrapper_of_names(said: str, _frames: Sequence[str] = ()) -> str:
    """Which wrapper gave a name its prefix."""
    found = _PREFIX.search(said) if _OF_NAMES.search(said) else None
    return f"{_OF_PREFIX[(found['prefix'] or '').partition('.')[0]]}." if found else ""


def _names_that_differ(said: str, _frames: Sequence[str] = ()) -> str:
    """In what the names that are missing differ from those that are there instead: one prefix, or one letter's worth
    of a part, as singular and plural do."""
    lists = _LISTS.search(said)
    if lists is None:
        return ""
    missing, surplus = (
        [found["name"] for found in _NAME.finditer(lists[side])][:_LISTED] for side in ("missing", "surplus")
    )
    for one in missing:
        for other in surplus:
            if how := _difference(one, other):
                return f"the names differ: {one} is missing and {other} is there, {how}."
    return ""


def _difference(one: str, other: str) -> str:
    long, short = sorted((one, other), key=len, reverse=True)
    if long.endswith(f".{short}") and len(long) - len(short) <= _LONGEST_PREFIX:
        return f"which {'has not' if long == one else 'has'} the prefix {long[: len(long) - len(short)]}"
    pairs = list(zip(one.split("."), other.split("."), strict=False))
    apart = [(a, b) for a, b in pairs if a != b]
    if one.count(".") != other.count(".") or len(apart) != 1:
        return ""
    a, b = apart[0]
    is_plural = a.rstrip("s") == b.rstrip("s")
    is_joined = a.replace("_", "") == b.replace("_", "")
    return f"with {b} for {a}" if is_plural or is_joined else ""


_TELLERS = (
    absent_option,
    unfit_call,
    library_asked_for,
    interface,
    refused_at_import,
    _memory,
    _refused,
    _product,
    _mismatch,
    _names_that_differ,
    _wrapper_of_names,
    _kernel,
    _signal,
    _death,
)
