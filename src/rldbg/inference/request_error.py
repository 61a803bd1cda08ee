"""The one error of requests, which every protocol writes in its own form."""

from collections.abc import Mapping
from typing import Any


class RequestError(Exception):
    """A request that cannot be answered, with its HTTP status; each protocol writes it in its own form."""

    def __init__(self, message: str, status: int = 400, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.details = dict(details or {})
