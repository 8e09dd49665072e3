"""The memory that the bodies of all requests share."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.requests import Request

from entry_point.inference import RequestError
from entry_point.serving.request_body import Body, BodyMemory, read_body

LIMIT = 100


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


async def read(memory: BodyMemory, request: Request, body: Body) -> bytes:
    await read_body(request, body, memory, LIMIT, timeout_s=60)
    return bytes(body.content)


def test_a_body_waits_for_the_memory_of_a_request_that_ends() -> None:
    async def bodies() -> None:
        memory = BodyMemory(LIMIT)
        with memory.body() as second:
            with memory.body() as first:
                await read(memory, request_of(bytes(80)), first)
                reading = asyncio.create_task(read(memory, request_of(b"x" * 40), second))
                await asyncio.sleep(0.05)
                assert not reading.done()
            assert await reading == b"x" * 40

    asyncio.run(bodies())


def test_a_stalled_body_gives_its_memory_to_one_that_arrives() -> None:
    async def bodies() -> None:
        memory, never = BodyMemory(LIMIT), asyncio.Event()
        with memory.body() as stalled, memory.body() as body:
            stalling = asyncio.create_task(read(memory, request_of(bytes(80), never), stalled))
            await asyncio.sleep(0)
            assert (
                await read(memory, request_of(b"x" * 60, b"y" * 40), body) == b"x" * 60 + b"y" * 40
            )
            with pytest.raises(RequestError, match="too many large requests at once") as refused:
                await stalling
        assert refused.value.status_code == 503

    asyncio.run(bodies())


def test_a_body_that_waits_outlives_one_that_stalls_later() -> None:
    async def bodies() -> None:
        memory, waits, never = BodyMemory(LIMIT), asyncio.Event(), asyncio.Event()
        with memory.body() as stalled, memory.body() as body:
            parts = (bytes(10), waits, bytes(10), never)
            stalling = asyncio.create_task(read(memory, request_of(*parts), stalled))
            reading = asyncio.create_task(read(memory, request_of(bytes(60), bytes(40)), body))
            await asyncio.sleep(0.05)
            assert body.is_waiting
            waits.set()
            assert len(await reading) == LIMIT
            with pytest.raises(RequestError, match="too many large requests at once"):
                await stalling

    asyncio.run(bodies())


def test_a_body_is_refused_when_requests_at_work_hold_the_memory_for_long() -> None:
    async def bodies() -> None:
        memory = BodyMemory(LIMIT, patience_s=0.5)
        with memory.body() as at_work, memory.body() as body:
            await read(memory, request_of(bytes(80)), at_work)
            with pytest.raises(RequestError, match="too many large requests at once"):
                await read(memory, request_of(bytes(40)), body)
            assert len(at_work.content) == 80

    asyncio.run(bodies())


def test_many_bodies_at_once_all_end_and_leave_all_memory_free() -> None:
    async def bodies() -> None:
        memory = BodyMemory(LIMIT)

        async def status() -> int:
            with memory.body() as body:
                try:
                    assert len(await read(memory, request_of(bytes(10), bytes(10)), body)) == 20
                except RequestError as error:
                    return error.status_code
            return 200

        statuses = {*await asyncio.gather(*(status() for _ in range(200)))}
        assert 200 in statuses and statuses <= {200, 503}
        with memory.body() as body:
            assert len(await read(memory, request_of(bytes(LIMIT)), body)) == LIMIT

    asyncio.run(bodies())
