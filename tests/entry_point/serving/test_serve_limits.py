"""Clients that send too much, too slowly or too often: the others are still served."""

import io
import json
import select
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from PIL import Image

from tests.entry_point.serving.conftest import Serve
from tests.entry_point.serving.served_model import PATIENCE_S, Served, with_code
from tests.entry_point.serving.test_invocations import encoded

MB = 2**20
SLOW_CODE = """
import pathlib, time
def model_fn(folder):
    return pathlib.Path(folder)
def predict_fn(images, folder):
    (folder / "started").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)
    return [{"class": "a", "probability": 1.0}] * len(images)
"""


def head(length: int | None, *lines: str) -> bytes:
    """A request's headers; without a length the body is chunked."""
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    fields = ["POST /invocations HTTP/1.1", "Host: x", "Content-Type: image/jpeg", size, *lines]
    return "\r\n".join([*fields, "", ""]).encode()


def read_answer(connection: socket.socket) -> bytes:
    """Everything until the server closes the connection."""
    received = b""
    try:
        while chunk := connection.recv(65536):
            received += chunk
    except ConnectionResetError:
        pass
    return received


def test_a_body_above_the_limit_is_refused_in_either_coding(
    serve: Serve, served_model: Path
) -> None:
    server = serve(f"model_dir={served_model}", "serve.max_payload_mb=1")
    server.wait_until_ready()
    within = encoded() + bytes(MB - 10_000)
    assert server.invoke(within).status == 200

    def chunks() -> Iterator[bytes]:
        yield from [bytes(65536)] * 17

    declared = server.invoke(bytes(MB + 1))
    with closing(server.connect()) as connection:
        connection.sendall(head(None))
        for chunk in chunks():
            connection.sendall(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        streamed = read_answer(connection)
    assert declared.status == 413 and b"at most 1 MB" in declared.body
    assert streamed.startswith(b"HTTP/1.1 413 ") and b"at most 1 MB" in streamed


def test_endless_bodies_end_and_take_no_memory(serve: Serve, served_model: Path) -> None:
    server = serve(f"model_dir={served_model}", "serve.max_payload_mb=1")
    server.wait_until_ready()
    before = server.memory_mb()
    for start in (head(2**50), head(None)):
        with closing(server.connect()) as connection:
            connection.sendall(start)
            block = bytes(65536)
            sent = 0
            with pytest.raises((BrokenPipeError, ConnectionResetError)):
                while True:
                    connection.sendall(b"%x\r\n%s\r\n" % (len(block), block))
                    sent += len(block)
            assert sent < 100 * MB
    assert server.memory_mb() < before + 30
    assert server.invoke(encoded()).status == 200


def test_slow_clients_are_cut_off_wherever_they_stop(serve: Serve, served_model: Path) -> None:
    server = serve(f"model_dir={served_model}", "serve.read_timeout_s=1")
    server.wait_until_ready()
    starts = {
        b"": b"",
        b"POST /invocations HT": b"",
        head(1000): b"HTTP/1.1 408 ",
        head(1000) + bytes(10): b"HTTP/1.1 408 ",
        head(None) + b"5\r\nabc": b"HTTP/1.1 408 ",
    }
    for start, expected in starts.items():
        with closing(server.connect()) as connection:
            connection.sendall(start)
            answer = read_answer(connection)
            assert answer.startswith(expected) and bool(answer) == bool(expected), start
    assert server.invoke(encoded()).status == 200


def test_an_idle_connection_after_an_answer_must_not_send_half_a_request(
    serve: Serve, served_model: Path
) -> None:
    server = serve(f"model_dir={served_model}", "serve.read_timeout_s=1")
    server.wait_until_ready()
    with closing(server.connect()) as connection:
        connection.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b""
        while not answer.endswith(b"}"):
            answer += connection.recv(65536)
        connection.sendall(b"G")
        assert read_answer(connection) == b""


def test_a_request_that_is_no_http_is_answered_with_one_json_line(server: Served) -> None:
    with closing(server.connect()) as connection:
        connection.sendall(b"\x16\x03\x01 not HTTP\r\n\r\n")
        header, _, body = read_answer(connection).partition(b"\r\n\r\n")
    assert header.startswith(b"HTTP/1.1 400 ")
    assert list(json.loads(body)) == ["error"]


def png_of(side: int) -> bytes:
    """A valid, highly compressed gray PNG of side x side pixels."""
    rows = zlib.compressobj(9)
    data = b"".join(rows.compress(bytes(side + 1)) for _ in range(side)) + rows.flush()

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    signature = b"\x89PNG\r\n\x1a\n"
    return signature + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def test_decompression_bombs_are_refused_before_they_are_decoded(
    serve: Serve, served_model: Path
) -> None:
    server = serve(f"model_dir={served_model}", "serve.max_megapixels=1")
    server.wait_until_ready()
    server.invoke(png_of(1000))
    before = server.memory_mb()
    photo = io.BytesIO()
    Image.new("L", (1500, 1500)).save(photo, "JPEG")
    for bomb in (png_of(1001), png_of(12_000), png_of(30_000), photo.getvalue()):
        answer = server.invoke(bomb)
        assert answer.status == 413 and "at most 1 megapixels" in answer.json()["error"]
    assert server.invoke(png_of(1000)).status == 200
    assert server.memory_mb() < before + 20


def test_more_images_than_allowed_are_refused(serve: Serve, served_model: Path) -> None:
    server = serve(f"model_dir={served_model}", "serve.max_instances=2")
    server.wait_until_ready()
    answer = server.invoke('""\n""\n""', "application/jsonlines")
    assert answer.status == 413 and "at most 2 images, has 3" in answer.json()["error"]


def test_a_full_queue_answers_503_and_ping_still_answers(
    serve: Serve, served_model: Path, tmp_path: Path
) -> None:
    model = with_code(served_model, tmp_path / "model", SLOW_CODE)
    server = serve(f"model_dir={model}", "serve.max_queue=2")
    server.wait_until_ready()
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda: statuses.append(server.invoke(encoded()).status))
        for _ in range(8)
    ]
    threads[0].start()
    wait_for(lambda: (model / "started").exists())
    for thread in threads[1:]:
        thread.start()
    wait_for(lambda: server.ping() == 200 and len(statuses) == 5)
    assert statuses == [503] * 5
    (model / "go").touch()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(statuses) == [200] * 3 + [503] * 5


def test_memory_for_bodies_is_taken_from_those_that_stall(serve: Serve, served_model: Path) -> None:
    limits = ("serve.max_payload_mb=4", "serve.body_memory_mb=8")
    server = serve(f"model_dir={served_model}", *limits)
    server.wait_until_ready()
    stalled = [server.connect() for _ in range(3)]
    for connection in stalled:
        connection.sendall(head(4 * MB) + bytes(2 * MB + MB // 2))
    assert server.invoke(encoded() + bytes(3 * MB)).status == 200
    # Which bodies lose their memory depends on the order in which the server reads them.
    refused, _, _ = select.select(stalled, [], [], PATIENCE_S)
    assert read_answer(refused[0]).startswith(b"HTTP/1.1 503 ")
    for connection in stalled:
        connection.close()


def test_a_thousand_stalled_connections_leave_room_for_others(
    serve: Serve, served_model: Path
) -> None:
    server = serve(f"model_dir={served_model}", "serve.body_memory_mb=64")
    server.wait_until_ready()
    before = server.memory_mb()
    connections = []
    try:
        for number in range(1000):
            connections.append(server.connect())
            if number % 2:
                connections[-1].sendall(head(20 * MB) + bytes(200_000))
        for _ in range(5):
            assert server.invoke(encoded()).status == 200
            assert server.ping() == 200
        # The bodies' memory, buffers of 64 kB for each connection, and what reading needs.
        assert server.memory_mb() < before + 64 + 1000 / 16 + 60
    finally:
        for connection in connections:
            connection.close()


def test_a_client_that_has_gone_leaves_its_place_in_the_queue(
    serve: Serve, served_model: Path, tmp_path: Path
) -> None:
    model = with_code(served_model, tmp_path / "model", SLOW_CODE)
    server = serve(f"model_dir={model}", "serve.max_queue=1")
    server.wait_until_ready()
    image = encoded()
    with closing(server.connect()) as computed, closing(server.connect()) as gone:
        computed.sendall(head(len(image)) + image)
        wait_for(lambda: (model / "started").exists())
        gone.sendall(head(len(image)) + image)
        wait_for(lambda: waiting(server) == 1)
        gone.close()
        last = threading.Thread(target=lambda: answers.append(server.invoke(image).status))
        answers: list[int] = []
        # The server needs a moment to notice.
        wait_for(lambda: waiting(server) == 0)
        last.start()
        wait_for(lambda: waiting(server) == 1)
        (model / "go").touch()
        last.join(PATIENCE_S)
    assert answers == [200]


def waiting(server: Served) -> int:
    page = server.request("GET", "/metrics").body.decode()
    return int(page.rsplit("serve_queue_requests ", 1)[1])


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
