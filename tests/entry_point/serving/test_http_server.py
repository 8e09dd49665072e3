"""What the HTTP server does with its sockets."""

import asyncio
import socket
import urllib.request

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from entry_point.config.serve_config import ServerConfig
from entry_point.serving.http_server import BoundedProtocol, http_server, listen


def test_no_part_of_an_answer_waits_for_the_clients_acknowledgement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accepted: list[int] = []
    made = BoundedProtocol.connection_made

    def connection_made(self: BoundedProtocol, transport: asyncio.Transport) -> None:
        made(self, transport)
        connection = transport.get_extra_info("socket")
        accepted.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    async def hello(_: Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    async def ask() -> bytes:
        config = ServerConfig(host="127.0.0.1", port=0)
        listening = listen(config)
        server = http_server(Starlette(routes=[Route("/", hello)]), config)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        answer = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read())
        server.should_exit = True
        await serving
        return bytes(answer)

    monkeypatch.setattr(BoundedProtocol, "connection_made", connection_made)
    assert asyncio.run(ask()) == b"hello"
    assert accepted == [1]
