"""How a connection may be used: what is refused as dust, whose length is ambiguous, who is
answered though half of the connection is closed."""

import json
import re
import socket
import threading
from contextlib import closing
from pathlib import Path

import h11
import pytest

from entry_point.serving.connection import Parser
from tests.entry_point.serving.conftest import Serve
from tests.entry_point.serving.served_model import (
    ALONE,
    Served,
    as_json,
    encoded,
    head,
    read_answer,
    wait_for,
    write_slow_model,
)

MB = 2**20
DUST = "arrives in too many small pieces; send chunks of 1 kB or more"
MOST_EVENTS = 50
"""As many as an ordinary request may cost."""
NEXT = b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"


def chunks(body: bytes, size: int, extension: bytes = b"") -> bytes:
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x%s\r\n%s\r\n" % (len(p), extension, p) for p in pieces) + b"0\r\n\r\n"


def parse(reads: list[bytes]) -> tuple[int, str]:
    """The events that a request costs the server's parser, and why it refuses it if it does."""
    parser, events = Parser(), 0
    try:
        for read in reads:
            parser.receive_data(read)
            while parser.next_event() not in (h11.NEED_DATA, h11.PAUSED):
                events += 1
            events += 1
    except h11.RemoteProtocolError:
        return events, parser.refusal
    return events, ""


def in_reads(sent: bytes, size: int) -> list[bytes]:
    return [sent[start : start + size] for start in range(0, len(sent), size)]


@pytest.mark.parametrize(
    "reads",
    [
        in_reads(head(None) + chunks(bytes(700_000), 1), 256 * 1024),
        in_reads(head(None) + chunks(bytes(500_000), 3), 256 * 1024),
        in_reads(head(None) + chunks(bytes(100_000), 1, b";" + b"x" * 40), 256 * 1024),
        [head(None), *in_reads(chunks(bytes(10_000), 1000), 1)],
        [head(MB), *[b"x"] * MB],
        in_reads(head(0, "X: " + "y" * 10_000), 1),
    ],
    ids=["chunks of 1", "chunks of 3", "extensions", "packets", "packets of a body", "of a header"],
)
def test_dust_is_refused_before_it_costs_more_than_a_request(reads: list[bytes]) -> None:
    events, refusal = parse(reads)
    assert refusal == DUST and events < MOST_EVENTS


@pytest.mark.parametrize(
    "reads",
    [
        in_reads(head(None) + chunks(bytes(MB), 1000), 256 * 1024),
        in_reads(head(None) + chunks(bytes(MB), 76), 256 * 1024),  # lines of base64
        in_reads(head(None) + chunks(bytes(400), 10), 1400),
        in_reads(head(MB) + bytes(MB), 536),  # the smallest packets of the internet
        in_reads(head(60) + bytes(60), 64) * 1000,
        [head(0)[:30], head(0)[30:]],
    ],
    ids=["kB", "lines", "a few of 10", "small packets", "requests", "a header in two"],
)
def test_ordinary_streams_are_not_dust(reads: list[bytes]) -> None:
    parser, complete = Parser(), 0
    for read in reads:
        parser.receive_data(read)
        while (event := parser.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
            if isinstance(event, h11.EndOfMessage):
                complete += 1
                parser.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                parser.send(h11.EndOfMessage())
                parser.start_next_cycle()
    assert complete == sum(read.startswith(b"POST") for read in reads)


def test_dust_of_many_clients_is_answered_and_delays_nobody(server: Served) -> None:
    sent = head(None) + chunks(bytes(200_000), 1)
    answers: list[bytes] = []

    def send() -> None:
        with closing(server.connect()) as connection:
            for piece in in_reads(sent, 1000):
                try:
                    connection.sendall(piece)
                except OSError:
                    break
            answers.append(read_answer(connection))

    threads = [threading.Thread(target=send) for _ in range(16)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        assert server.request("GET", "/ping", timeout=2).status == 200
    for thread in threads:
        thread.join()
    # Some are reset while they still send.
    refused = [answer for answer in answers if answer]
    assert len(answers) == 16 and refused
    for answer in refused:
        assert answer.startswith(b"HTTP/1.1 400 ") and DUST.encode() in answer
    assert "Traceback" not in server.log()


@pytest.mark.parametrize(
    "sent",
    [
        head(0, *["a: b"] * 200),
        head(0, *["a: b"] * 40_000),
        head(0, "a: " + "b" * 17_000),
        head(None) + b"0\r\n" + b"a: b\r\n" * 200 + b"\r\n",
        head(None) + b"3\r\nabc\r\n0\r\na: " + b"b" * 17_000 + b"\r\n\r\n",
    ],
    ids=["lines", "many lines", "bytes", "trailers", "bytes of trailers"],
)
def test_headers_and_trailers_are_bounded_also_in_one_read(sent: bytes) -> None:
    events, refusal = parse([sent])
    assert refusal == "must have at most 100 lines and 16384 bytes of headers"
    assert events < 5


def test_trailers_and_a_pipelined_request_behind_them_are_read(server: Served) -> None:
    body = chunks(encoded(), 1000)[:-2] + b"a: b\r\nc: d\r\n\r\n"
    with closing(server.connect()) as connection:
        connection.sendall(head(None) + body + NEXT)
        connection.shutdown(socket.SHUT_WR)
        assert statuses(read_answer(connection)) == [200, 200]


def statuses(answers: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", answers)]


LENGTH, CHUNKED = "Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n"


@pytest.mark.parametrize(
    "lengths",
    [
        LENGTH + CHUNKED,
        CHUNKED + "X: y\r\n" + LENGTH,
        LENGTH + LENGTH,
        LENGTH + LENGTH.lower().replace("5", "6"),
        "Content-Length: 5, 5\r\n",
        "Content-Length: 5\r\n , 5\r\n",
        "Content-Length: +5\r\n",
        "Content-Length : 5\r\n",
        CHUNKED + CHUNKED,
        "Transfer-Encoding: chunked, chunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: identity\r\n" + LENGTH,
    ],
)
def test_a_request_with_two_lengths_is_the_last_of_its_connection(
    lengths: str, server: Served
) -> None:
    """What follows could be a request that a proxy took for the body."""
    first = b"POST /invocations HTTP/1.1\r\nHost: x\r\n" + lengths.encode() + b"\r\n0\r\n\r\n"
    with closing(server.connect()) as connection:
        connection.sendall(first + NEXT)
        answer = read_answer(connection)
    assert statuses(answer) == [400] and b"connection: close" in answer.lower()
    assert list(json.loads(answer.partition(b"\r\n\r\n")[2])) == ["error"]


def test_a_client_that_has_closed_its_half_gets_all_its_answers(server: Served) -> None:
    image = encoded()
    with closing(server.connect()) as connection:
        connection.sendall((head(len(image)) + image) * 3 + NEXT)
        connection.shutdown(socket.SHUT_WR)
        answers = read_answer(connection)
    assert statuses(answers) == [200] * 4
    assert answers.count(b'{"predictions"') == 3
    assert "Traceback" not in server.log()


def test_a_half_closed_client_is_answered_after_others_that_have_gone(
    serve: Serve, tmp_path: Path
) -> None:
    """Both look alike until one refuses the beginning of its answer."""
    model, go = write_slow_model(tmp_path)
    server = serve(f"model_dir={model}", *ALONE, constants={"predictor.MAX_QUEUE": 2})
    image = encoded()
    with closing(server.connect()) as computed, closing(server.connect()) as half:
        computed.sendall(head(len(image)) + image)
        wait_for(lambda: (tmp_path / "started").exists())
        half.sendall(head(len(image)) + image)
        half.shutdown(socket.SHUT_WR)
        for _ in range(3):
            wait_for(server.has_room)
            with closing(server.connect()) as gone:
                gone.sendall(head(len(image)) + image)
                server.settle()
                assert not server.has_room()
        go.touch()
        answer = read_answer(half)
    assert answer.startswith(b"HTTP/1.1 200 ") and statuses(answer) == [200]


@pytest.mark.parametrize("sent", [head(100) + b"abc", head(None) + b"5\r\nab"])
def test_a_body_that_ends_before_its_last_byte_is_refused(sent: bytes, server: Served) -> None:
    with closing(server.connect()) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        answer = read_answer(connection)
    assert statuses(answer) == [400] and b"ended before its last byte" in answer


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://127.0.0.1:8080/ping", 200),
        ("HTTPS://example.com/ping?x=http://y/z", 200),
        ("http://example.com", 200),
        ("http://example.com/none", 404),
        ("/%70ing", 200),
        ("ftp://example.com/ping", 404),
    ],
)
def test_a_request_may_name_the_whole_url_as_proxies_do(
    target: str, status: int, server: Served
) -> None:
    assert server.request("GET", target).status == status


def test_an_image_may_be_posted_to_the_whole_url(server: Served) -> None:
    answer = server.request("POST", "http://example.com:80/invocations", as_json([encoded()]))
    assert answer.status == 200 and len(answer.json()["predictions"]) == 1


X = "x" * 15_000


@pytest.mark.parametrize(
    ("method", "target", "headers"),
    [
        ("GET", f"/{X}", {}),
        ("POST", "/invocations", {"Content-Type": X}),
        ("POST", "/invocations", {"Content-Encoding": X}),
        ("OPTIONS", "/ping", {"Origin": X, "Access-Control-Request-Method": "GET"}),
        ("GET", "/ping", {"Content-Length": X}),
        ("GET", f"/ping\xff{X}", {}),
    ],
)
def test_a_refusal_is_short_whatever_was_sent(
    method: str, target: str, headers: dict[str, str], server: Served
) -> None:
    lines = [f"{method} {target} HTTP/1.1", "Host: x"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    with closing(server.connect()) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
        connection.shutdown(socket.SHUT_WR)
        answer = read_answer(connection)
    assert statuses(answer)[0] >= 400
    content = answer.partition(b"\r\n\r\n")[2]
    assert list(json.loads(content)) == ["error"] and len(content) < 600
