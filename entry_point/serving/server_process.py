"""Runs the server until it is asked to stop; the model loads while /ping already answers."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from pathlib import Path

from entry_point.config.serve_config import ServerConfig
from entry_point.contract import exit_codes
from entry_point.serving.http_server import http_server, listen
from entry_point.serving.model_service import ModelService
from entry_point.serving.routes import Routes

logger = logging.getLogger(__name__)

# The platform kills 30 s after SIGTERM: requests get `DRAIN_S`, then the workers this.
_LAST_BATCH_S = 4.0
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
