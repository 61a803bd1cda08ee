"""The body of a request as a JSON object: one reader for the inference protocols and the training service."""

import json
from typing import Any


class BodyError(ValueError):
    """The body is not a JSON object; the message says why."""


def parse_object(content: bytes | bytearray) -> dict[str, Any]:
    """An empty body is an empty object. Every text in the result can be encoded again."""
    if not content.strip():
        return {}
    try:
        body = json.loads(content)
        if b"\\u" in content:
            # JSON may name half of a surrogate pair, which is not a character: tokenizers and file names refuse it.
            json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise BodyError("the body has half of a surrogate pair, which is not a character") from error
    except (ValueError, RecursionError) as error:
        raise BodyError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise BodyError("the body is not a JSON object")
    return body
