"""What the HTTP server does with its sockets."""

import re
import signal
import socket
from contextlib import closing
from pathlib import Path

from entry_point.config.serve_config import ServerConfig
from entry_point.job.program import ExitCode
from entry_point.serving.server import bind
from tests.entry_point.serving.conftest import Serve
from tests.entry_point.serving.served_model import PATIENCE_S, encoded, head

LONG = {"server.CLOSING_S": PATIENCE_S}


def test_no_part_of_an_answer_waits_for_the_clients_acknowledgement() -> None:
    """And a client that does not read its answer loses the connection."""
    with bind(ServerConfig(host="127.0.0.1", port=0)) as listening:
        listening.listen()
        with socket.create_connection(listening.getsockname()):
            accepted, _ = listening.accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 75_000


def ask(connection: socket.socket, body: bytes) -> bytes:
    """Send a request; returns the answer's header."""
    connection.sendall(head(len(body)) + body)
    answer = b""
    while (found := re.search(rb"content-length: (\d+)[^\0]*?\r\n\r\n", answer)) is None:
        answer += connection.recv(65536) or b"content-length: 0\r\n\r\n"
    missing = found.end() + int(found[1]) - len(answer)
    while missing > 0:
        missing -= len(connection.recv(missing))
    return answer[: found.end()].lower()


def test_a_server_that_stops_tells_each_client_before_it_closes(
    serve: Serve, served_model: Path
) -> None:
    server = serve(f"model_dir={served_model}", constants=LONG)
    image, clients = encoded(), [server.connect() for _ in range(5)]
    used, unused = clients[:3], clients[3:]
    for client in used:
        assert b"connection: close" not in ask(client, image)
    server.process.send_signal(signal.SIGTERM)
    with closing(server.connect()) as last:
        while b"connection: close" not in ask(last, image):  # until the signal has arrived
            pass
    for client in (*used, *unused):
        header = ask(client, image)
        assert header.startswith(b"http/1.1 200") and b"connection: close" in header
        assert client.recv(1) == b""
        client.close()
    assert server.process.wait(PATIENCE_S / 2) == ExitCode.FINISHED  # as nobody is left
