"""The one error of requests, which every protocol writes in its own form."""


class RequestError(Exception):
    """A request that cannot be answered, with its HTTP status; each protocol writes it in its own form."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
