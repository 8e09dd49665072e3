"""The server process: uvicorn, started once the model has answered. A stop loses no request."""

from __future__ import annotations

import errno
import logging
import resource
import socket
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

import uvicorn

from entry_point.config.config_errors import ConfigError
from entry_point.config.serve_config import ServerConfig
from entry_point.job.program import ExitCode, end_at_once, exit_on_stop
from entry_point.serving.app import App
from entry_point.serving.connection import Connection
from entry_point.serving.predictor import Predictor

logger = logging.getLogger(__name__)

# Longer than the idle timeout of SageMaker's and most other proxies, so that they close first.
_KEEP_ALIVE_S = 75
# The platform sends SIGKILL 30 s after SIGTERM.
CLOSING_S = 2.0
"""After SIGTERM, answers ask clients for this long to close their connections."""
DRAIN_S = 18
"""Then accepted requests are answered; those that take longer are dropped."""
_MOST_FILES = 65536


def run_server(folder: Path, config: ServerConfig) -> NoReturn:
    """Serve the model in `folder` until SIGTERM or Ctrl-C, and end the process.

    Raises UserError.
    """
    exit_on_stop(ExitCode.FINISHED)  # while the model loads
    with bind(config) as listening:
        app = App(Predictor(folder, config), config)
        port = listening.getsockname()[1]
        address = address_of(config, port)
        logger.info("%s is ready on port %d; try it:", folder, port)
        logger.info("  curl --data-binary @IMAGE.jpg -H 'Content-Type: image/jpeg' "
                    "%s/invocations", address)  # fmt: skip
        logger.info("  or open %s/ in a browser", address)
        Server(app).run(sockets=[listening])
    end_at_once(ExitCode.FINISHED)


def address_of(config: ServerConfig, port: int) -> str:
    """Returns the URL by which this machine reaches the server."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"http://{'localhost' if host in ('', '0.0.0.0', '[::]') else host}:{port}"


def bind(config: ServerConfig) -> socket.socket:
    """Returns a bound socket that does not listen yet. Raises ConfigError."""
    listening = socket.socket(socket.AF_INET6 if ":" in config.host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Connections inherit these options. An answer is several writes: Nagle's algorithm would delay
    # all but the first until the client acknowledges it, which takes most clients 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A client that does not read its answer loses the connection.
    if sys.platform == "linux":
        milliseconds = 1000 * _KEEP_ALIVE_S
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    try:
        listening.bind((config.host, config.port))
    except OSError as error:
        reason = error.strerror or error
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            message = f"is not an address of this machine ({reason}); 0.0.0.0 is all of them"
            raise ConfigError("serve.host", config.host, message) from error
        message = f"cannot listen on {config.host} ({reason}); choose another port"
        raise ConfigError("serve.port", config.port, message) from error
    return listening


class Server(uvicorn.Server):
    """Stops at a signal without losing a request.

    A client may send its next request just as the server closes an idle connection. So answers
    first announce the end (`Connection: close`), for `CLOSING_S` or until no connection is left.
    """

    def __init__(self, app: App) -> None:
        # Each connection is an open file.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
        if soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        config = uvicorn.Config(
            app,
            http=Connection,
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=DRAIN_S,
        )
        super().__init__(config)
        self._app, self._closing_until = app, float("inf")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if not self._app.is_stopping:
            self._app.is_stopping = True
            self._closing_until = time.monotonic() + CLOSING_S

    async def on_tick(self, counter: int) -> bool:
        """uvicorn calls it ten times a second."""
        is_unused = self._app.is_stopping and not self.server_state.connections
        if is_unused or time.monotonic() > self._closing_until:
            self.should_exit = True
        return await super().on_tick(counter)
