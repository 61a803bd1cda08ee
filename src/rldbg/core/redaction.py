"""Secrets are removed here, and only here, before anything is written to disk or sent anywhere.

A value is a secret if its name says so (token, key, password ...) or its form does (hf_..., sk-...).
"""

import re
from collections.abc import Mapping
from typing import Any

REDACTED = "***redacted***"

# Names are judged by whole words, so that `max_tokens` and `num_key_value_heads` stay readable.
_SECRET_WORD = re.compile(
    r"(?:^|_)(?:token|password|passwd|passphrase|pwd|secret|secrets|credential|credentials|cookie|"
    r"api_?key|apikey|access_?key|secret_?key|private_?key|auth_?key|ssh_?key|authorization|bearer|auth|"
    r"(?:wandb|hf|openai|anthropic|aws|azure|github|gitlab|swanlab|mlflow|comet|neptune)\w*_key)(?:$|_(?:id|value|b64|base64))"
)
_NOT_SECRET = re.compile(
    r"(?:pad|eos|bos|unk|mask|sep|cls|stop|start|end|think|special|image|video|num|max|min|per|n)_token(?:_id|_ids)?$"
    r"|token_(?:mean|sum|level|ids?|count|type)\w*$"
    r"|^auth_mode$|^ray_auth_mode$"
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")

_SECRET_SHAPES = re.compile(
    r"hf_[A-Za-z0-9]{16,}"
    r"|sk-[A-Za-z0-9_\-]{16,}"
    r"|tml-[A-Za-z0-9_\-]{16,}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|github_pat_[A-Za-z0-9_]{20,}"
    r"|glpat-[A-Za-z0-9_\-]{16,}"
    r"|xox[abprs]-[A-Za-z0-9\-]{10,}"
    r"|AKIA[0-9A-Z]{16}"
    r"|AIza[0-9A-Za-z_\-]{30,}"
    r"|eyJ[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]{5,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
)
_URL_PASSWORD = re.compile(r"(?<=://)([^/\s:@]*):([^/\s@]+)(?=@)")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=\-]{8,}")
# Names start where a word starts, which also keeps the search linear on endless words.
# `name=value`, `name: value` and `--name value`; in prose, "the token x" is not an assignment.
_ASSIGNMENT = re.compile(
    r"(?:(?<![A-Za-z0-9_.\-])|(?<=--))(?P<name>[A-Za-z][A-Za-z0-9_\-.]*)"
    r"(?P<separator>[\"']?\s*[=:]\s*[\"']?)(?P<value>[^\s\"',;]+)"
    r"|--(?P<option>[A-Za-z][A-Za-z0-9_\-]*)(?P<gap>\s+)(?P<argument>[^\s-]\S*)"
)


def is_secret_name(name: str) -> bool:
    """Whether a value of this name is a secret."""
    words = _CAMEL.sub("_", name).replace("-", "_").replace(".", "_").lower().strip("_")
    if _NOT_SECRET.search(words):
        return False
    return bool(_SECRET_WORD.search(words))


def redact_text(text: str) -> str:
    """Free text with secrets of known shape, `name=secret` pairs and passwords in URLs replaced."""
    text = _SECRET_SHAPES.sub(REDACTED, text)
    text = _URL_PASSWORD.sub(rf"\1:{REDACTED}", text)
    text = _BEARER.sub(rf"\1 {REDACTED}", text)
    return _ASSIGNMENT.sub(_redact_assignment, text)


def _redact_assignment(match: re.Match[str]) -> str:
    name = match["name"] or match["option"]
    if not is_secret_name(name):
        return match[0]
    if match["option"]:
        return f"--{name}{match['gap']}{REDACTED}"
    return f"{name}{match['separator']}{REDACTED}"


def redact(value: Any, name: str = "") -> Any:
    """A copy of JSON-like data with every secret replaced; the shape of the data stays."""
    if name and is_secret_name(name) and value not in (None, "", False, True):
        return REDACTED
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, Mapping):
        return {key: redact(item, str(key)) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return _redact_sequence(value)
    return value


def _redact_sequence(items: tuple[Any, ...] | list[Any]) -> list[Any]:
    """Also hides the word after a secret option in an argument list: ["--token", "x"]."""
    clean: list[Any] = []
    previous = ""
    for item in items:
        secret = previous.startswith("--") and "=" not in previous and is_secret_name(previous[2:])
        clean.append(REDACTED if secret else redact(item))
        previous = item if isinstance(item, str) else ""
    return clean
