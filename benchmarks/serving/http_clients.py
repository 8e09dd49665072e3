"""HTTP clients in a process of their own, which send as fast as they get answers.

`python http_clients.py` reads orders from its input, each a line of JSON, and answers each with a
line. It imports only the standard library, and not the project: it starts in milliseconds, and as
little as possible of the cores that it shares with the server goes to it.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

TYPES = {".jpg": "image/jpeg", ".json": "application/json"}


@dataclass
class Order:
    """`clients` connections to `port` of this machine send the files of `folder`, in turns."""

    port: int
    folder: str
    clients: int
    seconds: float
    """Each client sends until then, at least one request."""


@dataclass
class Sent:
    """The result of all clients together."""

    per_second: float
    seconds: list[float]
    """Latency of each request."""
    cpu_seconds: float
    """CPU time of this process."""


def send(order: Order) -> Sent:
    """Carry out an order. Raises RuntimeError for another answer than 200, and OSError."""
    requests = [_request(path) for path in sorted(Path(order.folder).iterdir())]
    address = ("127.0.0.1", order.port)
    connections = [socket.create_connection(address) for _ in range(order.clients)]
    started, cpu = time.monotonic(), time.process_time()

    def be_client(number: int) -> list[float]:
        seconds: list[float] = []
        with connections[number] as connection:
            while not seconds or time.monotonic() < started + order.seconds:
                asked = time.monotonic()
                _ask(connection, requests[(number + len(seconds)) % len(requests)])
                seconds.append(time.monotonic() - asked)
        return seconds

    with ThreadPoolExecutor(order.clients) as threads:
        seconds = list(chain.from_iterable(threads.map(be_client, range(order.clients))))
    per_second = len(seconds) / (time.monotonic() - started)
    return Sent(per_second, seconds, time.process_time() - cpu)


def _request(path: Path) -> bytes:
    body = path.read_bytes()
    lines = ("POST /invocations HTTP/1.1", "Host: x", f"Content-Type: {TYPES[path.suffix]}",
             "Accept: application/json", f"Content-Length: {len(body)}", "", "")  # fmt: skip
    return "\r\n".join(lines).encode() + body


def _ask(connection: socket.socket, request: bytes) -> None:
    """Send a request and read its answer."""
    connection.sendall(request)
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += _receive(connection)
    header, _, body = answer.partition(b"\r\n\r\n")
    if not header.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(answer.decode(errors="replace"))
    length = header.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    missing = int(length) - len(body)
    while missing:
        missing -= len(_receive(connection))


def _receive(connection: socket.socket) -> bytes:
    received = connection.recv(2**16)
    if not received:
        raise ConnectionError("the server closed the connection")
    return received


def main() -> None:
    """Carry out the orders of the input, one after another."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps(asdict(send(Order(**json.loads(line))))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
