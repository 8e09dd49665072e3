"""The memory that the bodies of all requests share."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.requests import Request

from entry_point.serving.formats import RequestError
from entry_point.serving.request_body import Body, BodyMemory, read_body

LIMIT = 100
MOST = 90
SLOWEST = 30


def request_of(*parts: bytes | asyncio.Event, declared: int | None = None) -> Request:
    """A request whose body arrives in these chunks; it pauses until an event is set.

    Without the size `declared`, it has no header of its size.
    """

    async def messages() -> AsyncIterator[dict[str, object]]:
        for part in parts:
            if isinstance(part, asyncio.Event):
                await part.wait()
            else:
                yield {"type": "http.request", "body": part, "more_body": True}
        yield {"type": "http.request", "body": b"", "more_body": False}

    headers = [] if declared is None else [(b"content-length", str(declared).encode())]
    return Request({"type": "http", "headers": headers}, messages().__anext__)


async def read(memory: BodyMemory, request: Request, body: Body) -> bytes:
    await read_body(request, body, memory, MOST, timeout_s=60)
    return bytes(body.content)


def full() -> "pytest.RaisesExc[RequestError]":
    return pytest.raises(RequestError, match="too many large requests at once")


async def assert_all_is_free(memory: BodyMemory) -> None:
    with memory.body() as first, memory.body() as second:
        assert len(await read(memory, request_of(bytes(MOST), declared=MOST), first)) == MOST
        rest = LIMIT - MOST
        assert len(await read(memory, request_of(bytes(rest), declared=rest), second)) == rest


def test_a_body_waits_for_the_memory_of_a_request_that_ends() -> None:
    async def bodies() -> None:
        memory = BodyMemory(LIMIT, slowest=SLOWEST)
        with memory.body() as second:
            with memory.body() as first:
                await read(memory, request_of(bytes(80), declared=80), first)
                reading = asyncio.create_task(read(memory, request_of(b"x" * 40), second))
                await asyncio.sleep(0.05)
                assert not reading.done()
            assert await reading == b"x" * 40
        await assert_all_is_free(memory)

    asyncio.run(bodies())


def test_a_stalled_body_gives_its_memory_to_one_that_arrives() -> None:
    async def bodies() -> None:
        memory, never = BodyMemory(LIMIT, slowest=SLOWEST), asyncio.Event()
        with memory.body() as stalled, memory.body() as body:
            request = request_of(bytes(10), never, declared=80)
            stalling = asyncio.create_task(read(memory, request, stalled))
            await asyncio.sleep(0)
            parts = b"x" * 60, b"y" * 20
            assert await read(memory, request_of(*parts), body) == b"".join(parts)
            with full() as refused:
                await stalling
        assert refused.value.status_code == 503
        await assert_all_is_free(memory)

    asyncio.run(bodies())


def test_a_body_that_trickles_gives_its_memory_to_one_that_arrives() -> None:
    """A byte now and then is no pause."""

    async def bodies() -> None:
        memory, bytes_to_come = (
            BodyMemory(LIMIT, slowest=SLOWEST),
            [asyncio.Event() for _ in "x" * 80],
        )

        async def trickle() -> None:
            for event in bytes_to_come:
                event.set()
                await asyncio.sleep(0.05)

        parts = [part for event in bytes_to_come for part in (event, b"x")]
        with memory.body() as slow, memory.body() as body:
            sending = asyncio.create_task(trickle())
            arriving = asyncio.create_task(read(memory, request_of(*parts, declared=80), slow))
            await asyncio.sleep(0)
            assert len(await read(memory, request_of(bytes(60), declared=60), body)) == 60
            with full():
                await arriving
            sending.cancel()
        await assert_all_is_free(memory)

    asyncio.run(bodies())


def test_a_body_that_arrives_steadily_keeps_its_memory() -> None:
    async def bodies() -> None:
        memory, pauses = BodyMemory(LIMIT, slowest=SLOWEST), [asyncio.Event() for _ in range(6)]
        parts = [part for pause in pauses for part in (pause, bytes(10))]
        with memory.body() as body:
            with memory.body() as steady:
                request = request_of(bytes(10), *parts, declared=70)
                arriving = asyncio.create_task(read(memory, request, steady))
                await asyncio.sleep(0)
                request = request_of(bytes(60), declared=60)
                waiting = asyncio.create_task(read(memory, request, body))
                for pause in pauses:
                    await asyncio.sleep(0.2)
                    assert not waiting.done()
                    pause.set()
                assert len(await arriving) == 70
            assert len(await waiting) == 60
        await assert_all_is_free(memory)

    asyncio.run(bodies())


def test_the_smallest_body_that_waits_comes_first() -> None:
    async def bodies() -> None:
        memory = BodyMemory(LIMIT, slowest=SLOWEST)
        with memory.body() as small, memory.body() as large:
            with memory.body() as at_work:
                await read(memory, request_of(bytes(90), declared=90), at_work)
                late, early = (
                    asyncio.create_task(read(memory, request_of(bytes(size), declared=size), body))
                    for size, body in ((80, large), (30, small))
                )
                await asyncio.sleep(0.05)
                assert not late.done() and not early.done()
            assert len(await early) == 30
            assert not late.done()
            late.cancel()
            await asyncio.gather(late, return_exceptions=True)
        await assert_all_is_free(memory)

    asyncio.run(bodies())


def test_a_body_is_refused_when_requests_at_work_hold_the_memory_for_long() -> None:
    async def bodies() -> None:
        memory = BodyMemory(LIMIT, patience_s=0.5)
        with memory.body() as at_work, memory.body() as body:
            await read(memory, request_of(bytes(80), declared=80), at_work)
            with full():
                await read(memory, request_of(bytes(40), declared=40), body)
            assert len(at_work.content) == 80
        await assert_all_is_free(memory)

    asyncio.run(bodies())


def test_a_body_that_got_no_memory_is_not_said_to_be_late() -> None:
    async def bodies() -> None:
        memory = BodyMemory(LIMIT, slowest=SLOWEST)
        with memory.body() as at_work, memory.body() as body:
            await read(memory, request_of(bytes(80), declared=80), at_work)
            with full():
                await read_body(request_of(bytes(40)), body, memory, MOST, timeout_s=0.1)
        await assert_all_is_free(memory)

    asyncio.run(bodies())


def test_a_body_without_a_size_frees_what_it_did_not_need() -> None:
    async def bodies() -> None:
        memory = BodyMemory(LIMIT, patience_s=0.5)
        with memory.body() as first, memory.body() as second:
            assert len(await read(memory, request_of(bytes(20)), first)) == 20
            assert len(await read(memory, request_of(bytes(80), declared=80), second)) == 80

    asyncio.run(bodies())


def test_many_bodies_at_once_are_all_read() -> None:
    """More than fit, and each holds its memory for a moment."""

    async def bodies() -> None:
        memory = BodyMemory(LIMIT, slowest=SLOWEST)

        async def size_of(size: int) -> int:
            with memory.body() as body:
                request = request_of(bytes(size - 5), bytes(5), declared=size)
                found = len(await read(memory, request, body))
                await asyncio.sleep(0.001)
            return found

        sizes = [10 + i % 70 for i in range(200)]
        assert await asyncio.gather(*map(size_of, sizes)) == sizes
        await assert_all_is_free(memory)

    asyncio.run(bodies())


def test_more_large_bodies_than_fit_do_not_wait_for_each_other() -> None:
    async def bodies() -> None:
        memory = BodyMemory(LIMIT, slowest=SLOWEST)

        async def read_slowly() -> int:
            pauses = [asyncio.Event() for _ in range(3)]
            parts = [part for pause in pauses for part in (pause, bytes(20))]
            with memory.body() as body:
                request = request_of(*parts, declared=60)
                reading = asyncio.create_task(read(memory, request, body))
                for pause in pauses:
                    await asyncio.sleep(0.02)
                    pause.set()
                return len(await reading)

        assert await asyncio.gather(*(read_slowly() for _ in range(5))) == [60] * 5

    asyncio.run(bodies())
