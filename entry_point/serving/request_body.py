"""Reads request bodies with limits on size, time and the memory of all bodies together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from starlette.requests import ClientDisconnect, Request

from entry_point.inference import RequestError

MB = 2**20
# A body whose sender has paused this long may lose its memory to one that arrives.
_STALLED_S = 1.0
# How long a chunk waits for memory.
_PATIENCE_S = 5.0
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
        """When its last chunk arrived."""
        self.deadline: asyncio.Timeout | None = None
        """Set while the body arrives."""
        self.is_waiting = self.is_evicted = False


class BodyMemory:
    """The memory that the bodies of all requests share, in bytes."""

    def __init__(self, limit: int, patience_s: float = _PATIENCE_S) -> None:
        self._limit, self._patience_s, self._used = limit, patience_s, 0
        # In the order of their last chunks.
        self._bodies: dict[Body, None] = {}
        self._freed = asyncio.Event()

    @contextmanager
    def body(self) -> Iterator[Body]:
        """A new body; its memory is free again at the end."""
        body = Body()
        self._bodies[body] = None
        try:
            yield body
        finally:
            del self._bodies[body]
            self._used -= body.size
            self._freed.set()

    async def grow(self, body: Body, chunk: bytes) -> None:
        """Append to a body that arrives. When memory is full, wait until some is free.

        The body whose sender has paused longest loses its memory after `_STALLED_S`. Raises
        TimeoutError if that is not enough: then this body has lost its own.
        """
        body.touched = time.monotonic()
        del self._bodies[body]
        self._bodies[body] = None
        body.is_waiting = True
        while self._used + len(chunk) > self._limit:
            await self._wait_or_evict(body)
            if body.is_evicted:
                raise TimeoutError
        body.is_waiting = False
        self._used += len(chunk)
        body.size += len(chunk)
        body.content += chunk

    async def _wait_or_evict(self, body: Body) -> None:
        now = time.monotonic()
        paused = (other for other in self._bodies if other.deadline and not other.is_waiting)
        oldest = next(paused, None)
        end = body.touched + self._patience_s
        if oldest is not None and oldest.touched + _STALLED_S < end:
            end, victim = oldest.touched + _STALLED_S, oldest
        else:
            victim = body
        if end <= now:
            self._evict(victim)
            return
        self._freed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(end - now):
                await self._freed.wait()

    def _evict(self, body: Body) -> None:
        assert body.deadline is not None
        if not body.deadline.expired():
            body.deadline.reschedule(0)
        body.deadline, body.is_evicted = None, True
        self._used -= body.size
        body.content, body.size = bytearray(), 0


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
                await memory.grow(body, chunk)
    except TimeoutError as error:
        if body.is_evicted:
            raise RequestError(503, "too many large requests at once; try again later") from error
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
