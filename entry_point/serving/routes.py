"""The URLs: what SageMaker calls, /metrics, and a page to try the model on.

Bodies of requests have limits on size, time and the memory of all of them together.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from entry_point.config.serve_config import ServerConfig
from entry_point.serving.formats import RequestError
from entry_point.serving.model_service import ModelService

logger = logging.getLogger(__name__)

T = TypeVar("T")
MB = 2**20
CUSTOM_ATTRIBUTES = "x-amzn-sagemaker-custom-attributes"
# For the bodies of all requests together, unless two of the largest need more.
BODY_MEMORY_MB = 512
# How long a body may take to arrive, unless the largest needs more at this speed.
BODY_S, _SLOWEST_MB_PER_S = 30.0, 3.0
# How long a body waits for memory.
_PATIENCE_S = 5.0
# How much of a body that is too large is read before the answer: a client that is still sending
# when the connection closes never sees the answer.
_COURTESY_BYTES, _COURTESY_S = 64 * MB, 2.0
# SageMaker's limit for the payloads that one container gets at once.
_TRANSFORM_MB = 100
_MOST_TRANSFORMS = 16
_PAGE = Path(__file__).with_name("page.html")
# The page has its script and style inside, and talks to this server only.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src blob:; connect-src 'self'"
)


class Routes:
    """The endpoints as methods; they share the model and the memory for bodies."""

    def __init__(self, service: ModelService, config: ServerConfig) -> None:
        self._service, self._config = service, config
        self._memory = BodyMemory(max(BODY_MEMORY_MB, 2 * config.max_payload_mb) * MB)

    def app(self) -> Starlette:
        handlers = {HTTPException: _http_error, Exception: _unexpected}
        routes = [
            Route("/ping", self.ping),
            Route("/invocations", self.invocations, methods=["POST"]),
            Route("/execution-parameters", self.execution_parameters),
            Route("/metrics", self.metrics),
            Route("/", self.page),
        ]
        return Starlette(routes=routes, exception_handlers=handlers)  # type: ignore[arg-type]

    async def ping(self, _request: Request) -> Response:
        if self._service.is_ready:
            return JSONResponse({"status": "ready"})
        return _error(503, "the model is loading")

    async def execution_parameters(self, _request: Request) -> Response:
        """What a batch transform sends, unless CreateTransformJob names its own limits."""
        largest = min(self._config.max_payload_mb, _TRANSFORM_MB)
        return JSONResponse(
            {
                "MaxConcurrentTransforms": min(_MOST_TRANSFORMS, _TRANSFORM_MB // largest),
                "BatchStrategy": "MULTI_RECORD",
                "MaxPayloadInMB": largest,
            }
        )

    async def metrics(self, _request: Request) -> Response:
        return Response(self._service.metrics.page(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    async def page(self, _request: Request) -> Response:
        text = _PAGE.read_text(encoding="utf-8")
        if self._service.unfinished is not None:
            text = text.replace("Try the model", "Try the unfinished model")
        return HTMLResponse(text, headers={"Content-Security-Policy": _POLICY})

    async def invocations(self, request: Request) -> Response:
        started = time.monotonic()
        with self._memory.body() as body:
            response = await self._answer(request, body)
        self._service.metrics.request(response.status_code, time.monotonic() - started)
        if attributes := request.headers.get(CUSTOM_ATTRIBUTES):
            response.headers[CUSTOM_ATTRIBUTES] = attributes
        return response

    async def _answer(self, request: Request, body: Body) -> Response:
        try:
            if not self._service.is_ready:
                raise RequestError(503, "the model is loading")
            largest_mb = self._config.max_payload_mb
            timeout_s = max(BODY_S, largest_mb / _SLOWEST_MB_PER_S)
            await read_body(request, body, largest_mb * MB, timeout_s)
            answer = self._service.answer(
                body.content, _content_type(request), ",".join(request.headers.getlist("accept"))
            )
            content, kind = await _unless_disconnected(request, answer)
            return Response(content, media_type=kind)
        except ClientDisconnect:
            return Response(status_code=499)  # nginx's status for it; nobody receives it
        except asyncio.CancelledError:
            return _error(503, "the server is stopping")
        except RequestError as error:
            response = _error(error.status_code, str(error))
        except Exception:
            logger.exception("a request failed")
            response = _error(500, "the model failed; the server's log has the reason")
        if not body.is_complete:
            # The rest of the body may still be on its way.
            response.headers["connection"] = "close"
        return response


def _content_type(request: Request) -> str:
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        raise RequestError(415, f"content encoding {encoding!r}: must be absent or identity")
    return request.headers.get("content-type", "")


async def _unless_disconnected(request: Request, answer: Awaitable[T]) -> T:
    """Await the answer; stop if the client goes away. Raises ClientDisconnect."""
    answering = asyncio.ensure_future(answer)
    gone = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((answering, gone), return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise ClientDisconnect
        return answering.result()
    finally:
        answering.cancel()
        gone.cancel()


def _error(status: int, message: str, headers: Any = None) -> Response:
    """One JSON line."""
    line = json.dumps({"error": " ".join(message.split())}, ensure_ascii=False) + "\n"
    extra = {"Retry-After": "1"} if status == 503 else {}
    return Response(line, status, {**extra, **(headers or {})}, media_type="application/json")


async def _http_error(_request: Request, error: HTTPException) -> Response:
    return _error(error.status_code, str(error.detail), error.headers)


async def _unexpected(_request: Request, _unhandled: Exception) -> Response:
    return _error(500, "the server failed; its log has the reason")


# -- bodies of requests


class Body:
    """The bytes of one request that have arrived so far, and the memory that they count against."""

    def __init__(self, memory: BodyMemory) -> None:
        self.content = bytearray()
        self.is_complete = self.waits_for_memory = False
        self._memory = memory

    async def append(self, chunk: bytes) -> None:
        """Raises TimeoutError if there is no memory for the chunk within `_PATIENCE_S`."""
        self.waits_for_memory = True
        await self._memory.wait_for(self, len(chunk))
        self.waits_for_memory = False
        self.content += chunk


class BodyMemory:
    """The memory of the bodies of all requests, in bytes: of what has arrived, not of what may.

    When it is full, bodies wait until requests are answered. If incomplete bodies fill it, the
    oldest continues, past the limit: otherwise none might ever be complete.
    """

    def __init__(self, limit: int, patience_s: float = _PATIENCE_S) -> None:
        self._limit, self._patience_s = limit, patience_s
        self._bodies: dict[Body, None] = {}
        """The oldest first."""
        self._freed = asyncio.Event()

    @contextmanager
    def body(self) -> Iterator[Body]:
        """A new body; its memory is free again at the end."""
        body = Body(self)
        self._bodies[body] = None
        try:
            yield body
        finally:
            del self._bodies[body]
            self._freed.set()

    async def wait_for(self, body: Body, size: int) -> None:
        """Wait until `body` may grow by `size` bytes. Raises TimeoutError."""
        async with asyncio.timeout(self._patience_s):
            while not self._has_room(body, size):
                self._freed.clear()
                await self._freed.wait()

    def used(self) -> int:
        return sum(len(each.content) for each in self._bodies)

    def _has_room(self, body: Body, size: int) -> bool:
        if self.used() + size <= self._limit:
            return True
        is_oldest = next(iter(self._bodies)) is body
        return is_oldest and not any(each.is_complete for each in self._bodies)


async def read_body(request: Request, body: Body, most: int, timeout_s: float) -> None:
    """Read the request into `body`, at most `most` bytes within `timeout_s`.

    Raises:
        RequestError: 408, 413 or 503.
        ClientDisconnect: the client has gone.
    """
    declared = request.headers.get("content-length")
    too_large = RequestError(413, f"the body: must have at most {most / MB:g} MB")
    if declared and int(declared) > most:
        await _discard(request, int(declared))
        raise too_large
    try:
        async with asyncio.timeout(timeout_s):
            async for chunk in request.stream():
                if len(body.content) + len(chunk) > most:
                    raise too_large
                await body.append(chunk)
    except TimeoutError as error:
        if body.waits_for_memory:
            raise RequestError(503, "too many large requests at once; try again later") from error
        raise RequestError(408, f"the body: must arrive within {timeout_s:g} s") from error
    body.is_complete = True


async def _discard(request: Request, declared: int) -> None:
    """Read away a body that is a little too large, so that its sender sees the answer."""
    if declared > _COURTESY_BYTES or "expect" in request.headers:
        return
    try:
        async with asyncio.timeout(_COURTESY_S):
            async for _ in request.stream():
                pass
    except (TimeoutError, ClientDisconnect):
        pass
