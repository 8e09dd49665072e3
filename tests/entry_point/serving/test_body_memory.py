"""The memory that the bodies of all requests share."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.requests import Request

from entry_point.serving.formats import RequestError
from entry_point.serving.routes import Body, BodyMemory, read_body

LIMIT = 100
MOST = 90


def request_of(*parts: bytes | asyncio.Event) -> Request:
    """A request whose body arrives in these chunks; it pauses until an event is set."""

    async def messages() -> AsyncIterator[dict[str, object]]:
        for part in parts:
            if isinstance(part, asyncio.Event):
                await part.wait()
            else:
                yield {"type": "http.request", "body": part, "more_body": True}
        yield {"type": "http.request", "body": b"", "more_body": False}

    return Request({"type": "http", "headers": []}, messages().__anext__)


async def read(request: Request, body: Body, timeout_s: float = 60) -> bytes:
    await read_body(request, body, MOST, timeout_s)
    return bytes(body.content)


def full() -> "pytest.RaisesExc[RequestError]":
    return pytest.raises(RequestError, match="too many large requests at once")


async def assert_all_is_free(memory: BodyMemory) -> None:
    with memory.body() as first, memory.body() as second:
        assert len(await read(request_of(bytes(MOST)), first)) == MOST
        assert len(await read(request_of(bytes(LIMIT - MOST)), second)) == LIMIT - MOST


def test_a_body_waits_for_the_memory_of_a_request_that_ends() -> None:
    async def bodies() -> None:
        memory = BodyMemory(LIMIT)
        with memory.body() as second:
            with memory.body() as first:
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
        with memory.body() as last:
            stalled = [asyncio.create_task(stall(memory, never)) for _ in range(21)]
            await asyncio.sleep(0)
            assert await read(request_of(bytes(60)), last) == bytes(60)
            for each in stalled:
                each.cancel()
            await asyncio.gather(*stalled, return_exceptions=True)
        await assert_all_is_free(memory)

    async def stall(memory: BodyMemory, never: asyncio.Event) -> None:
        with memory.body() as body:
            await read(request_of(b"x", never), body)

    asyncio.run(bodies())


@pytest.mark.parametrize("timeout_s", [60, 0.1])
def test_a_body_is_refused_when_requests_at_work_hold_the_memory_for_long(
    timeout_s: float,
) -> None:
    """And is not said to be late."""

    async def bodies() -> None:
        memory = BodyMemory(LIMIT, patience_s=0.5)
        with memory.body() as at_work, memory.body() as body:
            await read(request_of(bytes(80)), at_work)
            with full() as refused:
                await read(request_of(bytes(40)), body, timeout_s)
            assert refused.value.status_code == 503
            assert len(at_work.content) == 80
        await assert_all_is_free(memory)

    asyncio.run(bodies())


def test_many_bodies_at_once_are_all_read() -> None:
    """More than fit, and each holds its memory for a moment."""

    async def bodies() -> None:
        memory = BodyMemory(LIMIT)

        async def size_of(size: int) -> int:
            with memory.body() as body:
                found = len(await read(request_of(bytes(size - 5), bytes(5)), body))
                await asyncio.sleep(0.001)
            return found

        sizes = [10 + i % 70 for i in range(200)]
        assert await asyncio.gather(*map(size_of, sizes)) == sizes
        await assert_all_is_free(memory)

    asyncio.run(bodies())


def test_bodies_that_fill_the_memory_before_any_is_complete_are_all_read() -> None:
    """The oldest goes past the limit, and no two at the same time."""

    async def bodies() -> None:
        memory, largest = BodyMemory(LIMIT), 0

        async def read_slowly() -> int:
            nonlocal largest
            pauses = [asyncio.Event() for _ in range(3)]
            parts = [part for pause in pauses for part in (pause, bytes(20))]
            with memory.body() as body:
                reading = asyncio.create_task(read(request_of(*parts), body))
                for pause in pauses:
                    await asyncio.sleep(0.02)
                    pause.set()
                size = len(await reading)
                largest = max(largest, memory.used())
                return size

        assert await asyncio.gather(*(read_slowly() for _ in range(5))) == [60] * 5
        assert LIMIT < largest <= LIMIT + 60
        await assert_all_is_free(memory)

    asyncio.run(bodies())
