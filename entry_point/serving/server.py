"""The server process: uvicorn, started while the model loads, and stopped without a lost answer."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import signal
import socket
import sys
import threading
from pathlib import Path

import h11
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from entry_point.config.config_errors import ConfigError
from entry_point.config.serve_config import ServerConfig
from entry_point.contract import exit_codes
from entry_point.serving.model_service import ModelService
from entry_point.serving.routes import Routes

logger = logging.getLogger(__name__)

# Longer than the idle time of SageMaker's and most other proxies, so that they close first.
_KEEP_ALIVE_S = 75
# How long a stop waits for the answers to the requests that were accepted.
DRAIN_S = 20
# The platform kills 30 s after SIGTERM: requests get `DRAIN_S`, then the workers this.
_LAST_BATCH_S = 4.0
_MOST_FILES = 65536
# How long a stop waits for the first request of a connection that it finds open.
_FIRST_REQUEST_S = 1
LOG_EVERY_S = 60.0


def run_server(folder: Path, config: ServerConfig) -> int:
    """Serve the model in `folder` until SIGTERM or Ctrl-C; returns the exit code.

    Raises UserError.
    """
    with listen(config) as listening:
        return asyncio.run(_ServerProcess(folder, config).run(listening))


class _ServerProcess:
    def __init__(self, folder: Path, config: ServerConfig) -> None:
        self._service = ModelService(folder, config)
        self._folder = folder
        self._server = http_server(Routes(self._service, config).app())
        self._failure: Exception | None = None

    async def run(self, listening: socket.socket) -> int:
        port = listening.getsockname()[1]
        # Before and after uvicorn handles signals itself, which it repeats when it has stopped.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: setattr(self._server, "should_exit", True))
        threading.Thread(target=self._load, args=(port,), daemon=True).start()
        logging_numbers = asyncio.create_task(self._log_numbers())
        await self._server.serve(sockets=[listening])
        logging_numbers.cancel()
        if self._failure is not None:
            raise self._failure
        self._log_line()
        if not self._service.stop(_LAST_BATCH_S):
            logger.warning("a batch is still running; ending without it")
            sys.stdout.flush()
            os._exit(exit_codes.FINISHED)
        return exit_codes.FINISHED

    def _load(self, port: int) -> None:
        try:
            self._service.load()
        except Exception as error:
            self._failure = error
            self._server.should_exit = True
            return
        logger.info("%s is ready on port %d; try it:", self._folder, port)
        logger.info("  curl --data-binary @IMAGE.jpg -H 'Content-Type: image/jpeg' "
                    "http://localhost:%d/invocations", port)  # fmt: skip
        logger.info("  or open http://localhost:%d/ in a browser", port)

    async def _log_numbers(self) -> None:
        while True:
            await asyncio.sleep(LOG_EVERY_S)
            self._log_line()

    def _log_line(self) -> None:
        if line := self._service.metrics.log_line():
            logger.info("%s", line)


def listen(config: ServerConfig) -> socket.socket:
    """The listening socket; raises ConfigError if the address is not free."""
    try:
        return socket.create_server((config.host, config.port), backlog=2048)
    except OSError as error:
        must = f"cannot listen on {config.host} ({error.strerror or error}); choose another port"
        raise ConfigError("serve.port", config.port, must) from error


def http_server(app: Starlette) -> uvicorn.Server:
    """A server that is not running yet; `should_exit` stops it."""
    _allow_many_connections()
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=BoundedProtocol,
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=DRAIN_S,
        )
    )


def _allow_many_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1, which would wait without limit for a client to read its answer."""

    first_request_s: float = _FIRST_REQUEST_S
    _ends_after_request = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # An answer is several writes. Without this, Nagle's algorithm holds back all but the first
        # until the client acknowledges it, which takes most clients 40 ms. asyncio sets it only for
        # sockets whose protocol number is given, which those that `listen` accepts are not.
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._ends_after_request and self.cycle is not None:
            super().shutdown()

    def shutdown(self) -> None:
        """Close after the answer. A new connection may stay until its first request arrives."""
        if self.cycle is not None:
            super().shutdown()
        else:
            self._ends_after_request = True
            self.loop.call_later(self.first_request_s, self._end_unused)

    def _end_unused(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            super().shutdown()

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        """One JSON line, unless an answer has begun."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            line = json.dumps({"error": msg}).encode() + b"\n"
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(line)).encode()),
                (b"connection", b"close"),
            ]
            response = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
            for event in (response, h11.Data(data=line), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
