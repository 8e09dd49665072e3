"""The ASGI application: the URLs that SageMaker calls, and a page to try the model.

Request bodies are limited in size, in time, and in the memory of all of them together.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any

from entry_point.config.retired import retired
from entry_point.config.serve_config import ORIGIN, ServerConfig
from entry_point.serving.forms import Answer, Headers, RequestError
from entry_point.serving.page import page
from entry_point.serving.predictor import Predictor

logger = logging.getLogger(__name__)

MB = 2**20
BODY_MEMORY_MB = 512
"""Memory for all request bodies together, or for two of the largest if these need more."""
BODY_S, _SLOWEST_MB_PER_S = 30.0, 3.0
"""Deadline for a body to arrive, extended if the largest one needs longer at this speed."""

_METHODS = {"/ping": ("GET", "HEAD"), "/": ("GET", "HEAD"), "/invocations": ("POST",)}
"""Allowed methods by URL."""
_HOST = re.compile("(?i)^https?://[^/]*")
_CLOSE = {b"connection": b"close"}
"""Header of answers to bodies that may still be arriving, and of all answers while stopping."""
_PREFLIGHT = {
    b"access-control-allow-methods": b"GET, HEAD, POST",
    b"access-control-allow-headers": b"content-type",
    b"access-control-max-age": b"3600",
}
"""Headers that let a browser send requests from a page of an allowed origin."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class App:
    """Answers requests as ASGI 3 specifies."""

    def __init__(self, predictor: Predictor, config: ServerConfig) -> None:
        self._predictor, self._page = predictor, page(predictor.model)
        self._origins = frozenset(origin.encode() for origin in config.origins)
        largest_mb = config.max_payload_mb
        self._largest, self._room = largest_mb * MB, max(BODY_MEMORY_MB, 2 * largest_mb) * MB
        """Most bytes of one body; bytes left for further bodies."""
        self._body_s = max(BODY_S, largest_mb / _SLOWEST_MB_PER_S)
        self.is_stopping = False
        """Whether answers close their connections, so that clients go to another server."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        headers: Headers = dict(scope["headers"])
        try:
            answer = await self._answer(scope, headers, receive)
        except RequestError as error:
            answer = error.answer()
        except asyncio.CancelledError:
            answer = RequestError(503, "the server is stopping").answer()
        except Exception:
            logger.exception("a request failed")
            answer = RequestError(500, "the model failed; the server's log has the reason").answer()
        sent = {
            **answer.headers,
            **self._for_pages(headers.get(b"origin", b"")),
            **(_CLOSE if self.is_stopping else {}),
            b"content-type": answer.kind.encode(),
            b"content-length": str(len(answer.content)).encode(),
        }
        head = {"status": answer.status, "headers": list(sent.items())}
        await send({"type": "http.response.start", **head})
        await send({"type": "http.response.body", "body": answer.content})

    async def _answer(self, scope: Message, headers: Headers, receive: Receive) -> Answer:
        """Returns the answer of the URL. Raises RequestError."""
        path, method = scope["path"], scope["method"]
        if not path.startswith("/"):  # a proxy may name the whole URL
            path = _HOST.sub("", path) or "/"
        if path not in _METHODS:
            raise RequestError(404, f"{path}: {retired(path) or 'no such URL'}")
        if method == "OPTIONS" and b"access-control-request-method" in headers:
            return self._preflight(headers.get(b"origin", b""))
        if method not in _METHODS[path]:
            allowed = {b"allow": ", ".join(_METHODS[path]).encode()}
            raise RequestError(405, f"{path}: send {_METHODS[path][0]}", allowed)
        if path == "/":
            return self._page
        if path == "/ping":
            return Answer(b'{"status": "ready"}')
        return await self._invoke(headers, receive)

    def _preflight(self, origin: bytes) -> Answer:
        """Answer a CORS preflight request: may a page of this origin send requests?"""
        if not self._origins & {origin, b"*"}:
            shown = origin.decode("latin-1")
            wanted = shown if ORIGIN.fullmatch(shown) else "*"
            allowing = f"start the server with serve.origins=[{wanted}]"
            raise RequestError(403, f"origin {shown}: pages of it may not ask; {allowing}")
        return Answer(b"", headers=_PREFLIGHT)

    def _for_pages(self, origin: bytes) -> Headers:
        """Returns the CORS headers that let a page of that origin read the answer."""
        if not self._origins:
            return {}
        if b"*" in self._origins:
            return {b"access-control-allow-origin": b"*"}
        allowed = {b"access-control-allow-origin": origin} if origin in self._origins else {}
        return {b"vary": b"Origin"} | allowed

    async def _invoke(self, headers: Headers, receive: Receive) -> Answer:
        """Read the body and answer it; its bytes count against the memory limit until then."""
        kind, accept, encoding = (
            headers.get(name, b"").decode("latin-1")
            for name in (b"content-type", b"accept", b"content-encoding")
        )
        body = bytearray()
        try:
            if encoding.lower() not in ("", "identity"):
                raise RequestError(415, f"content encoding {encoding!r}: must be absent", _CLOSE)
            await self._read(receive, int(headers.get(b"content-length", 0)), body)
            return await _unless_gone(receive, self._predictor.answer(body, kind, accept))
        finally:
            self._room += len(body)

    async def _read(self, receive: Receive, declared: int, body: bytearray) -> None:
        """Read a request into `body`; `declared` is its Content-Length, or 0.

        Raises RequestError, which closes the connection: the rest may still be arriving.
        """
        most = f"must have at most {self._largest // MB} MB"
        too_large = RequestError(413, f"the body: {most}", _CLOSE)
        if declared > self._largest:
            raise too_large
        has_more = True
        try:
            async with asyncio.timeout(self._body_s):
                while has_more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _gone()
                    chunk, has_more = message["body"], message["more_body"]
                    if len(body) + len(chunk) > self._largest:
                        raise too_large
                    if len(chunk) > self._room:
                        full = "too many large requests at once; try again later"
                        raise RequestError(503, full, _CLOSE)
                    self._room -= len(chunk)
                    body += chunk
        except TimeoutError as error:
            late = f"the body: must arrive within {self._body_s:g} s"
            raise RequestError(408, late, _CLOSE) from error


async def _unless_gone(receive: Receive, answering: Coroutine[Any, Any, Answer]) -> Answer:
    """Await the answer; cancel its work if the client disconnects."""
    answer = asyncio.ensure_future(answering)
    gone = asyncio.ensure_future(receive())
    gone.add_done_callback(lambda _: answer.cancel())
    try:
        return await answer
    except asyncio.CancelledError:
        if gone.done():
            raise _gone() from None
        raise
    finally:
        gone.cancel()


def _gone() -> RequestError:
    return RequestError(499, "the client has gone")  # nginx's status for it; nobody receives it
