"""One client's connection: uvicorn's, with limits that uvicorn and h11 lack.

h11 parses in Python, on the event loop, at a fixed cost per header, chunk and packet: without a
limit, one client that sends many small pieces would stall all others.
"""

from __future__ import annotations

import re
import socket
from typing import Any

import h11
from h11._readers import ChunkedReader
from h11._receivebuffer import ReceiveBuffer
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from entry_point.serving.forms import JSON, error_line

_MOST_HEADERS, _MOST_HEADER_BYTES = 100, 16 * 1024
_FREE_PIECES, _BYTES_PER_PIECE = 32, 32
"""Packets and chunks of any size that headers or a body may come in, which cost as much as the
request itself; and the average size that further ones must have."""
_END_OF_HEADERS = re.compile(rb"\A\r?\n|\n\r?\n")
_LENGTHS = re.compile(rb"(?i)\n(?:content-length|transfer-encoding):((?:.|\n[ \t])*)")
_BEGINNING = b"HTTP/1.1 "
"""The first bytes of every answer."""
_LOOK_EVERY_S = 0.1


def _check_lines(received: bytes) -> int:
    """Returns the length of the headers or trailers that `received` begins with.

    Raises RemoteProtocolError if they have too many lines or bytes.
    """
    found = _END_OF_HEADERS.search(received)
    length = found.start() if found else len(received)
    if length > _MOST_HEADER_BYTES or received.count(b"\n", 0, length) > _MOST_HEADERS:
        most = f"{_MOST_HEADERS} lines and {_MOST_HEADER_BYTES} bytes"
        raise h11.RemoteProtocolError(f"must have at most {most} of headers")
    return length


class _Chunks(ChunkedReader):
    def __call__(self, buffer: ReceiveBuffer) -> h11.Data | h11.EndOfMessage | None:
        if self._reading_trailer:
            _check_lines(bytes(buffer))
        return super().__call__(buffer)


class Parser(h11.Connection):
    """Refuses requests of ambiguous length, and those that come in too many small pieces."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, _MOST_HEADER_BYTES)
        self.refusal = ""
        """Why the last request was refused."""
        self.has_begun = False
        """Whether `_BEGINNING` has been sent already."""
        self._pieces = self._bytes = 0

    def next_event(self) -> Any:
        """Parse the next event. Raises RemoteProtocolError for a request that is refused."""
        try:
            if self.their_state is h11.IDLE:
                self._check_headers()
            event = super().next_event()
            kind = type(event)
            if kind is h11.Request or kind is h11.EndOfMessage:
                self._pieces = self._bytes = 0
                if type(self._reader) is ChunkedReader:
                    self._reader = _Chunks()
            else:
                self._count(len(event.data) if isinstance(event, h11.Data) else 0)
            return event
        except h11.RemoteProtocolError as error:
            self.refusal = str(error)
            raise

    def _check_headers(self) -> None:
        received = self.trailing_data[0]
        # A proxy that reads another length than h11 would take a part of the body for the next
        # request (request smuggling).
        if b"," in b",".join(_LENGTHS.findall(received, 0, _check_lines(received))):
            raise h11.RemoteProtocolError("must have one Content-Length or Transfer-Encoding")

    def _count(self, size: int) -> None:
        """Count a chunk, or a packet."""
        self._pieces += 1
        self._bytes += size
        if self._pieces > _FREE_PIECES + self._bytes // _BYTES_PER_PIECE:
            message = "arrives in too many small pieces; send chunks of 1 kB or more"
            raise h11.RemoteProtocolError(message)

    def send_with_data_passthrough(self, event: h11.Event) -> list[bytes] | None:
        """Returns the bytes of an event, for `send`, without what has been sent already."""
        parts = super().send_with_data_passthrough(event)
        if self.has_begun and isinstance(event, (h11.Response, h11.InformationalResponse)):
            self.has_begun = False
            return [b"".join(parts or ()).removeprefix(_BEGINNING)]
        return parts


class Connection(H11Protocol):
    """Answers clients that closed only their sending half; drops the work of those that left."""

    conn: Parser

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.conn = Parser()
        self._has_ended = False

    def send_400_response(self, msg: str) -> None:
        """Answer a request that the parser refused, and close the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            content = error_line(f"the request: {self.conn.refusal or msg}")
            headers = {"content-type": JSON, "content-length": str(len(content))}
            head = h11.Response(
                status_code=400,
                headers=list({**headers, "connection": "close"}.items()),
                reason="Bad Request",
            )
            for event in (head, h11.Data(data=content), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event))
        if self.cycle is not None:  # the app works on it, but its answer cannot be sent any more
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection open until the client's requests are answered."""
        if not self._has_ended:
            self._has_ended = True
            self._finish()
        return True

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._has_ended:
            self._finish()

    def _finish(self) -> None:
        """Close the connection, unless the client may wait for an answer."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        elif self.conn.their_state is h11.SEND_BODY:
            self.send_400_response("ended before its last byte")
        elif self.conn.our_state is h11.SEND_RESPONSE:
            # A half-closed client receives these bytes; the system of a closed one resets the
            # connection.
            self.conn.has_begun = True
            self.transport.write(_BEGINNING)
            self._look(self.cycle)

    def _look(self, cycle: RequestResponseCycle) -> None:
        """Drop the request if its client has gone; check again later, until it is answered."""
        if cycle.response_complete or self.transport.is_closing():
            return
        connection: socket.socket = self.transport.get_extra_info("socket")
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
        else:
            self.loop.call_later(_LOOK_EVERY_S, self._look, cycle)
