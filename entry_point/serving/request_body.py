"""Reads request bodies with limits on size, time and the memory of all bodies together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import ClientDisconnect, Request

from entry_point.inference import RequestError

MB = 2**20
# A body whose sender has paused this long may lose its memory to one that is still sent.
_STALLED_S = 1.0
# How much of a body that is too large is read before the answer: a client that is still sending
# when the connection closes never sees the answer.
_COURTESY_BYTES, _COURTESY_S = 64 * MB, 2.0


class Body:
    """The bytes of one request that have arrived so far."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.size = 0
        """Bytes that count, which outlive `content`: its images may still be in use."""
        self.touched = time.monotonic()
        self.deadline: asyncio.Timeout | None = None
        """Set while the body arrives."""
        self.is_evicted = False


class BodyMemory:
    """The memory that the bodies of all requests share, in bytes."""

    def __init__(self, limit: int) -> None:
        self._limit, self._used = limit, 0
        self._bodies: set[Body] = set()

    @contextmanager
    def body(self) -> Iterator[Body]:
        """A new body; its memory is free again at the end."""
        body = Body()
        self._bodies.add(body)
        try:
            yield body
        finally:
            self._bodies.discard(body)
            self._used -= body.size

    def grow(self, body: Body, chunk: bytes) -> None:
        """Append to a body. When memory is short, refuse the body that has stalled longest.

        Raises RequestError (503) if that is not enough.
        """
        while self._used + len(chunk) > self._limit:
            self._evict_stalled()
        self._used += len(chunk)
        body.size += len(chunk)
        body.content += chunk
        body.touched = time.monotonic()

    def _evict_stalled(self) -> None:
        oldest = min((b for b in self._bodies if b.deadline), key=lambda b: b.touched, default=None)
        if oldest is None or time.monotonic() - oldest.touched < _STALLED_S:
            raise RequestError(503, "too many large requests at once; try again later")
        assert oldest.deadline is not None
        oldest.deadline.reschedule(0)
        oldest.deadline, oldest.is_evicted = None, True
        self._used -= oldest.size
        oldest.content, oldest.size = bytearray(), 0


async def read_body(
    request: Request, body: Body, memory: BodyMemory, most: int, timeout_s: float
) -> None:
    """Read the request into `body`, at most `most` bytes within `timeout_s`.

    Raises:
        RequestError: 408, 413 or 503.
        ClientDisconnect: the client has gone.
    """
    declared = request.headers.get("content-length", "0")
    too_large = RequestError(413, f"the body: must have at most {most / MB:g} MB")
    if int(declared) > most:
        await _discard(request, int(declared))
        raise too_large
    try:
        async with asyncio.timeout(timeout_s) as body.deadline:
            async for chunk in request.stream():
                if body.is_evicted:
                    raise TimeoutError
                if body.size + len(chunk) > most:
                    raise too_large
                memory.grow(body, chunk)
    except TimeoutError as error:
        if body.is_evicted:
            raise RequestError(503, "the body: too slow while memory is short") from error
        late = f"the body: must arrive within {timeout_s:g} s"
        raise RequestError(408, late) from error
    finally:
        body.deadline = None


async def _discard(request: Request, declared: int) -> None:
    """Read away a body that is a little too large, so that its sender sees the answer."""
    if declared > _COURTESY_BYTES or "expect" in request.headers:
        return
    try:
        async with asyncio.timeout(_COURTESY_S):
            async for _ in request.stream():
                pass
    except (TimeoutError, ClientDisconnect):
        pass
