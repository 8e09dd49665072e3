"""HTTP clients in a process of their own, which send as fast as they get answers.

`python http_clients.py` reads orders from its input, each a line of JSON, and answers each with a
line. It imports only the standard library, and not the project: it starts in milliseconds, and as
little as possible of the cores that it shares with the server goes to it.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

_MOST_HEADER_BYTES = 2**16
TYPES = {
    ".jpg": "image/jpeg",
    ".png": "image/png",
    ".json": "application/json",
    ".damaged": "image/jpeg",
}
"""A file's suffix says what it is; the answer to a damaged one is 400."""


@dataclass
class Order:
    """`clients` connections to `port` of this machine send the files of `folder`, in turns. A
    client whose answer says `Connection: close` ends, as it would go on elsewhere."""

    port: int
    folder: str
    clients: int
    seconds: float
    """Each client sends until then, at least one request."""


@dataclass
class Sent:
    """What the clients measured together."""

    per_second: float
    seconds: list[float]
    """Of each request."""
    cpu_seconds: float
    """Of this process."""
    lost: int
    """Requests without an answer."""


def send(order: Order) -> Sent:
    """Carry out an order. Raises RuntimeError for another answer than the expected one."""
    paths = sorted(Path(order.folder).iterdir())
    requests = [_request(path) for path in paths]
    statuses = [400 if path.suffix == ".damaged" else 200 for path in paths]
    connections = [
        socket.create_connection(("127.0.0.1", order.port)) for _ in range(order.clients)
    ]
    seconds: list[float] = []
    failures: list[Exception] = []
    lost: list[int] = []
    started, cpu = time.monotonic(), time.process_time()

    def be_client(number: int) -> None:
        sent = 0
        with connections[number] as connection:
            try:
                while not sent or time.monotonic() < started + order.seconds:
                    which = (number + sent) % len(requests)
                    asked = time.monotonic()
                    goes_on = _ask(connection, requests[which], statuses[which])
                    seconds.append(time.monotonic() - asked)
                    if not goes_on:
                        return
                    sent += 1
            except OSError:
                lost.append(number)
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=be_client, args=(i,)) for i in range(order.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise RuntimeError(f"{len(failures)} clients failed") from failures[0]
    per_second = len(seconds) / (time.monotonic() - started)
    return Sent(per_second, seconds, time.process_time() - cpu, len(lost))


def _request(path: Path) -> bytes:
    body = path.read_bytes()
    lines = ("POST /invocations HTTP/1.1", "Host: x", f"Content-Type: {TYPES[path.suffix]}",
             "Accept: application/json", f"Content-Length: {len(body)}", "", "")  # fmt: skip
    return "\r\n".join(lines).encode() + body


def _ask(connection: socket.socket, request: bytes, status: int) -> bool:
    """Send a request and read its answer; returns whether the connection stays open."""
    connection.sendall(request)
    answer = b""
    while b"\r\n\r\n" not in answer and len(answer) < _MOST_HEADER_BYTES:
        answer += _receive(connection)
    header, _, body = answer.partition(b"\r\n\r\n")
    if not header.startswith(b"HTTP/1.1 %d " % status):
        raise RuntimeError(answer.decode(errors="replace"))
    lines = header.lower()
    missing = int(lines.partition(b"content-length: ")[2].partition(b"\r\n")[0]) - len(body)
    while missing:
        missing -= len(_receive(connection))
    return b"connection: close" not in lines


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
