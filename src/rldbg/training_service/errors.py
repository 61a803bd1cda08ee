"""What a request can be refused for: a closed set that each protocol writes in its own form."""

from collections.abc import Mapping
from typing import Any, TypeVar

from rldbg.core import UsageError, validated

T = TypeVar("T")


class ServiceRequestError(Exception):
    """A request that cannot be answered, with the status and the code its protocol gives for it."""

    status = 400
    code = "invalid_request"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class NotFoundError(ServiceRequestError):
    """A model, session, snapshot, operation or route that does not exist."""

    status = 404
    code = "not_found"


class ConflictError(ServiceRequestError):
    """The name or sequence number is already taken by something else."""

    status = 409
    code = "conflict"


class TooLargeError(ServiceRequestError):
    """The body is larger than the service takes."""

    status = 413
    code = "payload_too_large"


class SequenceGapError(ServiceRequestError):
    """A request waited for an earlier one that never came."""

    code = "sequence_gap"


class InternalError(ServiceRequestError):
    """A failure of the service itself; what failed is in its log."""

    status = 500
    code = "internal_error"


def read_settings(group: type[T], data: Any, name: str) -> T:
    """The settings in a part of a request; what is wrong with them is the client's to know."""
    if not isinstance(data, Mapping):
        raise ServiceRequestError(f"{name} is not a mapping")
    try:
        return validated(group, data, source="the request", page="training_service.md", name=name, strict=True)
    except UsageError as error:
        raise ServiceRequestError(f"{error.message}; {error.hint}") from error
