"""The server process: uvicorn, started while the model loads, and stopped without a lost answer."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import uvicorn

from entry_point.config.config_errors import ConfigError
from entry_point.config.serve_config import ServerConfig
from entry_point.job.program import ExitCode
from entry_point.serving.connection import Connection
from entry_point.serving.model_service import ModelService
from entry_point.serving.routes import Routes

logger = logging.getLogger(__name__)

# Longer than the idle time of SageMaker's and most other proxies, so that they close first.
_KEEP_ALIVE_S = 75
# The platform kills 30 s after SIGTERM. For so long, clients of open connections are told to close
# them,
CLOSING_S = 2.0
# then requests that were accepted are answered,
DRAIN_S = 18
# then the workers may end their batches.
_LAST_BATCH_S = 4.0
_MOST_FILES = 65536
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
        self._server = Server(Routes(self._service, config))
        self._failure: Exception | None = None

    async def run(self, listening: socket.socket) -> int:
        port = listening.getsockname()[1]
        # Before and after uvicorn handles signals itself, which it repeats when it has stopped.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._server.handle_exit)
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
            os._exit(ExitCode.FINISHED)
        return ExitCode.FINISHED

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
    """Returns the listening socket; raises ConfigError if the address is not free."""
    try:
        listening = socket.create_server((config.host, config.port), backlog=2048)
    except OSError as error:
        message = f"cannot listen on {config.host} ({error.strerror or error}); choose another port"
        raise ConfigError("serve.port", config.port, message) from error
    # Connections inherit both. An answer is several writes: Nagle's algorithm would hold back all
    # but the first until the client acknowledges it, which takes most clients 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A client that does not read its answer loses the connection.
    if sys.platform == "linux":
        milliseconds = 1000 * _KEEP_ALIVE_S
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    return listening


class Server(uvicorn.Server):
    """A server that is not running yet. A signal stops it; `should_exit` does so at once.

    A client may send its next request just when the server closes the connection, and gets no
    answer. So for `CLOSING_S`, or until no connection is left, each answer announces the end.
    """

    def __init__(self, routes: Routes) -> None:
        # Each connection is an open file.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
        if soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        config = uvicorn.Config(
            routes,
            http=Connection,
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
        super().__init__(config)
        self._routes, self._closing_until = routes, float("inf")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if not self._routes.is_stopping:
            self._routes.is_stopping = True
            self._closing_until = time.monotonic() + CLOSING_S

    async def on_tick(self, counter: int) -> bool:
        """uvicorn calls it ten times a second."""
        is_unused = self._routes.is_stopping and not self.server_state.connections
        if is_unused or time.monotonic() > self._closing_until:
            self.should_exit = True
        return await super().on_tick(counter)
