"""What the HTTP server does with its sockets."""

import asyncio
import socket
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from entry_point.config.serve_config import ServerConfig
from entry_point.serving.server import BoundedProtocol, http_server, listen

PATIENCE_S = 60
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def hello(_: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


@asynccontextmanager
async def running() -> AsyncIterator[tuple[uvicorn.Server, int]]:
    """A server and its port; it has stopped at the end of the block."""
    config = ServerConfig(host="127.0.0.1", port=0)
    listening = listen(config)
    server = http_server(Starlette(routes=[Route("/", hello)]))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    yield server, listening.getsockname()[1]
    server.should_exit = True
    await asyncio.wait_for(serving, PATIENCE_S)


async def connected_at_a_stop(
    server: uvicorn.Server, port: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that the server has accepted before it is told to stop."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while not server.server_state.connections:
        await asyncio.sleep(0.01)
    server.should_exit = True
    return reader, writer


async def until_closed(port: int) -> None:
    """Returns when nothing listens on `port`."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionError:
            return
        writer.close()
        await asyncio.sleep(0.01)


def test_no_part_of_an_answer_waits_for_the_clients_acknowledgement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accepted: list[int] = []
    made = BoundedProtocol.connection_made

    def connection_made(self: BoundedProtocol, transport: asyncio.Transport) -> None:
        made(self, transport)
        connection = transport.get_extra_info("socket")
        accepted.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    async def ask() -> bytes:
        async with running() as (_, port):
            url = f"http://127.0.0.1:{port}"
            return bytes(await asyncio.to_thread(lambda: urllib.request.urlopen(url).read()))

    monkeypatch.setattr(BoundedProtocol, "connection_made", connection_made)
    assert asyncio.run(ask()) == b"hello"
    assert accepted == [1]


def test_a_request_that_arrives_just_after_a_stop_on_an_open_connection_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(BoundedProtocol, "first_request_s", PATIENCE_S)

    async def ask() -> bytes:
        async with running() as (server, port):
            reader, writer = await connected_at_a_stop(server, port)
            await until_closed(port)
            writer.write(REQUEST)
            answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
            writer.close()
            return answer

    answer = asyncio.run(ask())
    assert answer.startswith(b"HTTP/1.1 200 OK") and answer.endswith(b"hello")


def test_a_stop_closes_a_connection_that_stays_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedProtocol, "first_request_s", 0.01)

    async def ask() -> bytes:
        async with running() as (server, port):
            reader, writer = await connected_at_a_stop(server, port)
            received = await asyncio.wait_for(reader.read(), PATIENCE_S)
            writer.close()
            return received

    assert asyncio.run(ask()) == b""
