"""Request bodies: read within a limit, decompressed within the same limit, parsed off the event loop."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request

from rldbg.inference import BodyError
from rldbg.inference import parse_object as json_object
from rldbg.training_service.errors import ServiceRequestError, TooLargeError

LIMIT_BYTES = 256 << 20


class Bodies:
    """Reads bodies; nothing larger than the limit is ever held."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes

    async def content(self, request: Request) -> bytes:
        """The whole body, decompressed when it says `Content-Encoding: zstd`."""
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self.limit_bytes:
            raise self._too_large()
        content = bytearray()
        try:
            async for chunk in request.stream():
                content += chunk
                if len(content) > self.limit_bytes:
                    raise self._too_large()
        except ClientDisconnect:
            raise ServiceRequestError("the client left before its request was complete") from None
        encoding = request.headers.get("content-encoding", "identity").strip().lower()
        if encoding in ("identity", ""):
            return bytes(content)
        if encoding == "zstd":
            return await asyncio.to_thread(decompress, bytes(content), self.limit_bytes)
        raise ServiceRequestError(f"Content-Encoding {encoding!r} is neither zstd nor identity")

    async def json(self, request: Request) -> Mapping[str, Any]:
        """The body as a JSON object; an empty one is an empty object."""
        content = await self.content(request)
        return parse_object(content) if len(content) < 1 << 16 else await asyncio.to_thread(parse_object, content)

    def _too_large(self) -> TooLargeError:
        return TooLargeError(f"the request is larger than {self.limit_bytes >> 20} MiB; send fewer datums per request")


def parse_object(content: bytes) -> Mapping[str, Any]:
    try:
        return json_object(content)
    except BodyError as error:
        raise ServiceRequestError(str(error)) from error


def refuse(body: Mapping[str, Any], unsupported: Iterable[str]) -> None:
    """Fields that a client may only leave out, or set to nothing."""
    for name in unsupported:
        if body.get(name):
            raise ServiceRequestError(f"{name} is not supported here")


def decompress(content: bytes, limit_bytes: int) -> bytes:
    """One zstd stream, its size bounded whatever it claims."""
    import zstandard

    try:
        with zstandard.ZstdDecompressor().stream_reader(content, read_across_frames=True) as reader:
            plain = reader.read(limit_bytes + 1)
    except zstandard.ZstdError as error:
        raise ServiceRequestError(f"the body is not a zstd stream: {error}") from error
    if len(plain) > limit_bytes:
        raise TooLargeError(f"the request decompresses to more than {limit_bytes >> 20} MiB")
    return bytes(plain)
