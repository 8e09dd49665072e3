"""Reads request bodies with limits on size, time and the memory of all bodies together."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from heapq import heapify, heappop, heappush
from itertools import count

from starlette.requests import ClientDisconnect, Request

from entry_point.serving.formats import RequestError

MB = 2**20
# A body whose sender has paused this long, or is this far behind the slowest speed, may lose its
# memory to one that waits.
_STALLED_S = 1.0
_SLOWEST_BYTES_PER_S = 1 * MB
# How long a body waits for memory.
_PATIENCE_S = 5.0
# How much of a body that is too large is read before the answer: a client that is still sending
# when the connection closes never sees the answer.
_COURTESY_BYTES, _COURTESY_S = 64 * MB, 2.0


class Body:
    """The bytes of one request that have arrived so far."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.size = 0
        """Bytes that are reserved for it, which outlive `content`: its images may be in use."""
        self.is_admitted = asyncio.Event()
        """Set once memory is reserved."""
        self.admitted_at, self.touched_at = 0.0, 0.0
        """When memory was reserved, and when its last chunk arrived."""
        self.deadline: asyncio.Timeout | None = None
        """Set while it arrives."""
        self.is_evicted = False


class BodyMemory:
    """The memory that the bodies of all requests share, in bytes.

    A body is read once memory for all of it is reserved: of bodies that each had a part, none might
    ever be complete.
    """

    def __init__(
        self, limit: int, patience_s: float = _PATIENCE_S, slowest: float = _SLOWEST_BYTES_PER_S
    ) -> None:
        self._limit, self._patience_s, self._slowest = limit, patience_s, slowest
        self._used = 0
        self._waiting: list[tuple[int, int, Body]] = []
        """A heap: the size, a number that tells equal ones apart, and the body."""
        self._numbers = count()
        self._arriving: set[Body] = set()

    @contextmanager
    def body(self) -> Iterator[Body]:
        """A new body; its memory is free again at the end."""
        body = Body()
        try:
            yield body
        finally:
            self._release(body, body.size)

    async def reserve(self, body: Body, size: int) -> None:
        """Reserve memory for a body of at most `size` bytes.

        When it is full, the smallest body that waits comes next. A body whose sender has stalled
        loses its memory to it. Raises TimeoutError if that is not enough.
        """
        entry = (size, next(self._numbers), body)
        heappush(self._waiting, entry)
        end = time.monotonic() + self._patience_s
        try:
            self._admit()
            while not body.is_admitted.is_set():
                now = time.monotonic()
                if now >= end:
                    raise TimeoutError
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(end, self._stall_ends()) - now):
                        await body.is_admitted.wait()
                self._admit()
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)
                heapify(self._waiting)

    def append(self, body: Body, chunk: bytes) -> None:
        body.content += chunk
        body.touched_at = time.monotonic()

    def complete(self, body: Body) -> None:
        """Note that nothing more of the body arrives, and free what it did not need."""
        self._release(body, body.size - len(body.content))

    def _admit(self) -> None:
        """Give memory to the bodies that wait, as far as it lasts."""
        while self._waiting:
            size, _, body = self._waiting[0]
            if self._used + size <= self._limit:
                heappop(self._waiting)
                self._used, body.size = self._used + size, size
                body.admitted_at = body.touched_at = time.monotonic()
                self._arriving.add(body)
                body.is_admitted.set()
            elif self._stall_ends() <= time.monotonic():
                self._evict(min(self._arriving, key=self._stalled_at))
            else:
                return

    def _stalled_at(self, body: Body) -> float:
        """When the body counts as stalled, unless more of it arrives."""
        due = body.admitted_at + len(body.content) / self._slowest
        return min(body.touched_at, due) + _STALLED_S

    def _stall_ends(self) -> float:
        """When the first body of those that arrive counts as stalled."""
        return min(map(self._stalled_at, self._arriving), default=math.inf)

    def _evict(self, body: Body) -> None:
        if body.deadline is not None and not body.deadline.expired():
            body.deadline.reschedule(0)
        body.is_evicted, body.content = True, bytearray()
        self._arriving.remove(body)
        self._used, body.size = self._used - body.size, 0

    def _release(self, body: Body, size: int) -> None:
        self._arriving.discard(body)
        self._used, body.size = self._used - size, body.size - size
        self._admit()


async def read_body(
    request: Request, body: Body, memory: BodyMemory, most: int, timeout_s: float
) -> None:
    """Read the request into `body`, at most `most` bytes within `timeout_s`.

    Raises:
        RequestError: 408, 413 or 503.
        ClientDisconnect: the client has gone.
    """
    declared = request.headers.get("content-length")
    too_large = RequestError(413, f"the body: must have at most {most / MB:g} MB")
    if declared and int(declared) > most:
        await _discard(request, int(declared))
        raise too_large
    try:
        async with asyncio.timeout(timeout_s) as body.deadline:
            await memory.reserve(body, int(declared) if declared else most)
            async for chunk in request.stream():
                if body.is_evicted:
                    raise TimeoutError
                if len(body.content) + len(chunk) > most:
                    raise too_large
                memory.append(body, chunk)
    except TimeoutError as error:
        if body.is_evicted or not body.is_admitted.is_set():
            raise RequestError(503, "too many large requests at once; try again later") from error
        late = f"the body: must arrive within {timeout_s:g} s"
        raise RequestError(408, late) from error
    finally:
        body.deadline = None
        memory.complete(body)


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
