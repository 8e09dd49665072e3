"""The URLs: what SageMaker calls, /metrics, and a page to try the model on. An ASGI application.

Bodies of requests have limits on size, time and the memory of all of them together.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from entry_point.config.serve_config import ORIGIN, ServerConfig
from entry_point.serving import formats
from entry_point.serving.formats import RequestError
from entry_point.serving.model_service import ModelService
from entry_point.serving.page import POLICY, page

logger = logging.getLogger(__name__)

MB = 2**20
CUSTOM_ATTRIBUTES = b"x-amzn-sagemaker-custom-attributes"
BODY_MEMORY_MB = 512
"""For the bodies of all requests together, unless two of the largest need more."""
BODY_S, _SLOWEST_MB_PER_S = 30.0, 3.0
"""How long a body may take to arrive, unless the largest needs more at this speed."""
_PATIENCE_S = 5.0
"""How long a body waits for memory."""
_COURTESY_BYTES, _COURTESY_S = 64 * MB, 2.0
"""How much of a body that is too large is read before the answer: a client that is still sending
when the connection closes never sees the answer."""
_TRANSFORM_MB, _MOST_TRANSFORMS = 100, 16
"""SageMaker's limit for the payloads that one container gets at once."""

_HOST = re.compile("(?i)^https?://[^/]*")
_PREFLIGHT = {
    b"access-control-allow-methods": b"GET, HEAD, POST",
    b"access-control-allow-headers": b"content-type, " + CUSTOM_ATTRIBUTES,
    b"access-control-max-age": b"3600",
}

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = dict[bytes, bytes]


class ClientDisconnectError(Exception):
    """The client has gone."""


@dataclass
class Response:
    content: bytes
    kind: str = formats.JSON
    status: int = 200
    headers: Headers = field(default_factory=dict)


class Routes:
    """The endpoints as methods; they share the model and the memory for bodies."""

    def __init__(self, service: ModelService, config: ServerConfig) -> None:
        self._service, self._config = service, config
        self._memory = BodyMemory(max(BODY_MEMORY_MB, 2 * config.max_payload_mb) * MB)
        self.is_stopping = False
        """Whether each answer asks its client to send the next request elsewhere."""
        self._get: dict[str, Callable[[], Response]] = {
            "/ping": self._ping,
            "/execution-parameters": self._execution_parameters,
            "/metrics": self._metrics,
            "/": self._page,
        }
        self._origins = frozenset(origin.encode() for origin in config.origins)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one HTTP request, see the specification of ASGI 3."""
        try:
            response = await self._respond(scope, receive)
        except Exception:
            logger.exception("a request failed")
            response = _error(500, "the server failed; its log has the reason")
        headers = response.headers | {
            b"content-type": response.kind.encode(),
            b"content-length": str(len(response.content)).encode(),
        }
        if self._origins:
            headers |= self._for_pages(_headers(scope).get(b"origin", b""))
        if self.is_stopping:
            headers[b"connection"] = b"close"
        head = {"status": response.status, "headers": list(headers.items())}
        await send({"type": "http.response.start", **head})
        await send({"type": "http.response.body", "body": response.content})

    async def _respond(self, scope: Message, receive: Receive) -> Response:
        path, method = scope["path"], scope["method"]
        if not path.startswith("/"):  # a proxy may name the whole URL
            path = _HOST.sub("", path) or "/"
        methods: Sequence[str] = ("GET", "HEAD") if path in self._get else ()
        if path == "/invocations":
            methods = ("POST",)
        if method == "OPTIONS" and (methods or path == "*"):
            return self._options(_headers(scope), methods or ("GET", "HEAD", "POST"))
        if not methods:
            return _error(404, f"{path}: no such URL")
        if method not in methods:
            return _error(405, f"{path}: send {methods[0]}", _allow(methods))
        if path == "/invocations":
            return await self._invocations(_headers(scope), receive)
        return self._get[path]()

    def _options(self, headers: Headers, methods: Sequence[str]) -> Response:
        """Answer a browser that asks whether a page of another origin may send a request."""
        origin = headers.get(b"origin", b"")
        if b"access-control-request-method" not in headers:
            return Response(b"", headers=_allow(methods))
        if not self._origins & {origin, b"*"}:
            shown = origin.decode("latin-1")
            wanted = shown if ORIGIN.fullmatch(shown) else "*"
            allowing = f"start the server with serve.origins=[{wanted}]"
            return _error(403, f"origin {shown}: pages of it may not ask; {allowing}")
        return Response(b"", headers=_allow(methods) | _PREFLIGHT)

    def _for_pages(self, origin: bytes) -> Headers:
        """Returns the headers by which a browser lets a page of that origin read the answer."""
        if b"*" in self._origins:
            return {b"access-control-allow-origin": b"*"}
        allowed = {b"access-control-allow-origin": origin} if origin in self._origins else {}
        return {b"vary": b"Origin"} | allowed

    def _ping(self) -> Response:
        if self._service.is_ready:
            return Response(b'{"status": "ready"}')
        return _error(503, "the model is loading")

    def _execution_parameters(self) -> Response:
        """Returns what a batch transform sends, unless CreateTransformJob names its own limits."""
        largest = min(self._config.max_payload_mb, _TRANSFORM_MB)
        parameters = {
            "MaxConcurrentTransforms": min(_MOST_TRANSFORMS, _TRANSFORM_MB // largest),
            "BatchStrategy": "MULTI_RECORD",
            "MaxPayloadInMB": largest,
        }
        return Response(json.dumps(parameters).encode())

    def _metrics(self) -> Response:
        return Response(self._service.metrics.page(), CONTENT_TYPE_PLAIN_0_0_4)

    def _page(self) -> Response:
        text = page(self._service.model if self._service.is_ready else None)
        policy = {b"content-security-policy": POLICY.encode()}
        return Response(text.encode(), "text/html; charset=utf-8", headers=policy)

    async def _invocations(self, headers: Headers, receive: Receive) -> Response:
        started, body = time.monotonic(), bytearray()
        try:
            response = await self._answer(headers, receive, body)
        finally:
            self._memory.free(len(body))
        self._service.metrics.request(response.status, time.monotonic() - started)
        if attributes := headers.get(CUSTOM_ATTRIBUTES):
            response.headers[CUSTOM_ATTRIBUTES] = attributes
        return response

    async def _answer(self, headers: Headers, receive: Receive, body: bytearray) -> Response:
        is_complete = False
        try:
            if not self._service.is_ready:
                raise RequestError(503, "the model is loading")
            kind, accept = _text(headers, b"content-type"), _text(headers, b"accept")
            if (encoding := _text(headers, b"content-encoding").lower()) not in ("", "identity"):
                message = "must be absent or identity"
                raise RequestError(415, f"content encoding {encoding!r}: {message}")
            largest_mb = self._config.max_payload_mb
            timeout_s = max(BODY_S, largest_mb / _SLOWEST_MB_PER_S)
            await self._memory.read(receive, headers, body, largest_mb * MB, timeout_s)
            is_complete = True
            answer = self._service.answer(body, kind, accept)
            return Response(*await _unless_disconnected(receive, answer))
        except ClientDisconnectError:
            return Response(b"", status=499)  # nginx's status for it; nobody receives it
        except asyncio.CancelledError:
            return _error(503, "the server is stopping")
        except RequestError as error:
            response = _error(error.status_code, str(error))
        except Exception:
            logger.exception("a request failed")
            response = _error(500, "the model failed; the server's log has the reason")
        if not is_complete:
            # The rest of the body may still be on its way.
            response.headers[b"connection"] = b"close"
        return response


def _allow(methods: Sequence[str]) -> Headers:
    return {b"allow": ", ".join([*methods, "OPTIONS"]).encode()}


def _headers(scope: Message) -> Headers:
    headers: Headers = {}
    for name, value in scope["headers"]:
        headers[name] = headers[name] + b"," + value if name in headers else value
    return headers


def _text(headers: Headers, name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1")


async def _unless_disconnected(
    receive: Receive, answering: asyncio.Future[tuple[bytes, str]]
) -> tuple[bytes, str]:
    """Await the answer; cancel it if the client goes away. Raises ClientDisconnectError."""
    gone = asyncio.ensure_future(receive())
    gone.add_done_callback(lambda _: answering.cancel())
    try:
        return await answering
    except asyncio.CancelledError:
        if gone.done():
            raise ClientDisconnectError from None
        raise
    finally:
        gone.cancel()


def _error(status: int, message: str, headers: Headers | None = None) -> Response:
    """Returns one JSON line."""
    extra = {b"retry-after": b"1"} if status == HTTPStatus.SERVICE_UNAVAILABLE else {}
    content = formats.error_line(message)
    return Response(content, status=status, headers={**extra, **(headers or {})})


class BodyMemory:
    """The bytes of all bodies that have arrived and are not answered yet, and their limit."""

    def __init__(self, limit: int) -> None:
        self._limit, self._used = limit, 0
        self._freed = asyncio.Event()

    async def read(
        self, receive: Receive, headers: Headers, body: bytearray, most: int, timeout_s: float
    ) -> None:
        """Read a request into `body`, at most `most` bytes within `timeout_s`.

        Its bytes count until they are freed, also if it fails.

        Raises:
            RequestError: 408, 413 or 503.
            ClientDisconnectError: the client has gone.
        """
        too_large = RequestError(413, f"the body: must have at most {most / MB:g} MB")
        if (declared := int(headers.get(b"content-length", 0))) > most:
            if declared <= _COURTESY_BYTES and b"expect" not in headers:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_COURTESY_S):
                        while (await receive()).get("more_body"):
                            pass
            raise too_large
        try:
            async with asyncio.timeout(timeout_s):
                has_more = True
                while has_more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnectError
                    chunk, has_more = message["body"], message["more_body"]
                    if len(body) + len(chunk) > most:
                        raise too_large
                    await self._take(len(chunk))
                    body += chunk
        except TimeoutError as error:
            raise RequestError(408, f"the body: must arrive within {timeout_s:g} s") from error

    async def _take(self, size: int) -> None:
        """Wait until there is room. Raises RequestError (503)."""
        if self._used + size > self._limit:
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    while self._used + size > self._limit:
                        self._freed.clear()
                        await self._freed.wait()
            except TimeoutError as error:
                full = "too many large requests at once; try again later"
                raise RequestError(503, full) from error
        self._used += size

    def free(self, size: int) -> None:
        self._used -= size
        self._freed.set()
