"""The memory that the bodies of all requests share."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from entry_point.serving import routes
from entry_point.serving.formats import RequestError
from entry_point.serving.routes import BodyMemory, Message, Receive

LIMIT = 100
MOST = 90


def request_of(*parts: bytes | asyncio.Event) -> Receive:
    """A request whose body arrives in these chunks; it pauses until an event is set."""

    async def messages() -> AsyncIterator[Message]:
        for part in parts:
            if isinstance(part, asyncio.Event):
                await part.wait()
            else:
                yield {"type": "http.request", "body": part, "more_body": True}
        yield {"type": "http.request", "body": b"", "more_body": False}

    return messages().__anext__


class Body:
    """The body of a request, whose memory is free at the end."""

    def __init__(self, memory: BodyMemory) -> None:
        self.memory, self.content = memory, bytearray()

    def __enter__(self) -> "Body":
        return self

    def __exit__(self, *_: object) -> None:
        self.memory.free(len(self.content))


async def read(request: Receive, body: Body, timeout_s: float = 60) -> bytes:
    await body.memory.read(request, {}, body.content, MOST, timeout_s)
    return bytes(body.content)


async def assert_all_is_free(memory: BodyMemory) -> None:
    with Body(memory) as first, Body(memory) as second:
        assert len(await read(request_of(bytes(MOST)), first)) == MOST
        assert len(await read(request_of(bytes(LIMIT - MOST)), second)) == LIMIT - MOST


def test_a_body_waits_for_the_memory_of_a_request_that_ends() -> None:
    async def bodies() -> None:
        memory = BodyMemory(LIMIT)
        with Body(memory) as second:
            with Body(memory) as first:
                await read(request_of(bytes(80)), first)
                reading = asyncio.create_task(read(request_of(b"x" * 40), second))
                await asyncio.sleep(0.05)
                assert not reading.done()
            assert await reading == b"x" * 40
        await assert_all_is_free(memory)

    asyncio.run(bodies())


def test_a_body_that_stalls_takes_no_more_than_has_arrived() -> None:
    """Also 21 at a time, each of which says that it is large."""

    async def bodies() -> None:
        memory, never = BodyMemory(LIMIT), asyncio.Event()
        with Body(memory) as last:
            stalled = [asyncio.create_task(stall(memory, never)) for _ in range(21)]
            await asyncio.sleep(0)
            assert await read(request_of(bytes(60)), last) == bytes(60)
            for each in stalled:
                each.cancel()
            await asyncio.gather(*stalled, return_exceptions=True)
        await assert_all_is_free(memory)

    async def stall(memory: BodyMemory, never: asyncio.Event) -> None:
        with Body(memory) as body:
            await read(request_of(b"x", never), body)

    asyncio.run(bodies())


@pytest.mark.parametrize(
    ("patience_s", "timeout_s", "status"), [(0.1, 60.0, 503), (60.0, 0.1, 408)]
)
def test_a_body_is_refused_when_others_hold_the_memory_for_long(
    patience_s: float, timeout_s: float, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "_PATIENCE_S", patience_s)

    async def bodies() -> None:
        memory = BodyMemory(LIMIT)
        with Body(memory) as at_work, Body(memory) as body:
            await read(request_of(bytes(80)), at_work)
            with pytest.raises(RequestError) as refused:
                await read(request_of(bytes(40)), body, timeout_s)
            assert refused.value.status_code == status
        await assert_all_is_free(memory)

    asyncio.run(bodies())


def test_many_bodies_at_once_are_all_read() -> None:
    """More than fit, and each holds its memory for a moment."""

    async def bodies() -> None:
        memory = BodyMemory(LIMIT)

        async def size_of(size: int) -> int:
            with Body(memory) as body:
                found = len(await read(request_of(bytes(size)), body))
                await asyncio.sleep(0.001)
            return found

        sizes = [10 + i % 70 for i in range(200)]
        assert await asyncio.gather(*map(size_of, sizes)) == sizes
        await assert_all_is_free(memory)

    asyncio.run(bodies())
