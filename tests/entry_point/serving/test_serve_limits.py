"""Clients that send too much, too slowly or too often: the others are still served."""

import asyncio
import io
import re
import select
import struct
import threading
import zlib
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from PIL import Image

from entry_point.config.serve_config import ServerConfig
from entry_point.data.decode.pillow import FORMATS
from entry_point.serving.images import ImageDecoder, Photo, RequestImage
from entry_point.serving.predictor import Predictor
from tests import forkserver
from tests.entry_point.serving.conftest import Serve
from tests.entry_point.serving.served_model import (
    ALONE,
    PATIENCE_S,
    Served,
    as_json,
    encoded,
    head,
    read_answer,
    wait_for,
    write_slow_model,
)

MB = 2**20
JSON = "application/json"
SIDE = 7900
"""62 megapixels: within the limit."""
READ_IN_A_SECOND = {"app.BODY_S": 1}
MEGA = 10**6


def test_a_body_above_the_limit_is_refused_in_either_coding(
    serve: Serve, served_model: Path
) -> None:
    server = serve(f"model_dir={served_model}", "serve.max_payload_mb=1")
    within = encoded() + bytes(MB - 10_000)
    assert server.invoke(within).status == 200

    # Nothing is on its way when the server closes: a client that still sends may see a reset.
    in_chunks = b"10000\r\n%s\r\n" % bytes(65536) * 16 + b"1\r\n\0\r\n"
    for body in (head(MB + 1), head(None) + in_chunks):
        with closing(server.connect()) as connection:
            connection.sendall(body)
            answer = read_answer(connection)
        assert answer.startswith(b"HTTP/1.1 413 ") and b"at most 1 MB" in answer


def test_endless_bodies_end_and_take_no_memory(serve: Serve, served_model: Path) -> None:
    server = serve(f"model_dir={served_model}", "serve.max_payload_mb=1")
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


def test_a_body_that_does_not_arrive_in_time_is_answered(serve: Serve, served_model: Path) -> None:
    server = serve(
        f"model_dir={served_model}", "serve.max_payload_mb=3", constants=READ_IN_A_SECOND
    )
    for start in (head(1000), head(1000) + bytes(10), head(None) + b"5\r\nabc"):
        with closing(server.connect()) as connection:
            connection.sendall(start)
            assert read_answer(connection).startswith(b"HTTP/1.1 408 "), start
    assert server.invoke(encoded()).status == 200


@pytest.mark.parametrize(
    "sent",
    [b"\x16\x03\x01 not HTTP\r\n\r\n", head(None) + b"3\r\nabc\r\nno length\r\n"],
    ids=["TLS", "a malformed chunk"],
)
def test_a_request_that_is_no_http_is_answered_and_closed(sent: bytes, server: Served) -> None:
    with closing(server.connect()) as connection:
        connection.sendall(sent)
        assert read_answer(connection).startswith(b"HTTP/1.1 400 ")


def compressed_zeros(count: int) -> bytes:
    """What zlib makes of `count` zeros; each MB of them is compressed to the same bytes."""
    deflate = zlib.compressobj(9, wbits=-15)
    megabyte = deflate.compress(bytes(MB)) + deflate.flush(zlib.Z_FULL_FLUSH)
    rest = deflate.compress(bytes(count % MB)) + deflate.flush()
    checksum = struct.pack(">I", count % 65521 << 16 | 1)
    return b"\x78\xda" + megabyte * (count // MB) + rest + checksum


def png_of(side: int) -> bytes:
    """A valid, highly compressed gray PNG of side x side pixels."""
    data = compressed_zeros(side * (side + 1))

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    signature = b"\x89PNG\r\n\x1a\n"
    return signature + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def test_decompression_bombs_are_refused_before_they_are_decoded(
    serve: Serve, served_model: Path
) -> None:
    server = serve(f"model_dir={served_model}", constants={"images.MAX_PIXELS": MEGA})
    server.invoke(png_of(1000))
    before = server.memory_mb()
    photo = io.BytesIO()
    Image.new("L", (1500, 1500)).save(photo, "JPEG")
    for bomb in (png_of(1001), png_of(12_000), png_of(30_000), photo.getvalue()):
        answer = server.invoke(bomb)
        assert answer.status == 413 and "at most 1 megapixels" in answer.json()["error"]
    assert server.invoke(png_of(1000)).status == 200
    assert server.memory_mb() < before + 20


def test_a_full_queue_answers_503_and_ping_still_answers(serve: Serve, tmp_path: Path) -> None:
    model, go = write_slow_model(tmp_path)
    server = serve(f"model_dir={model}", *ALONE, constants={"predictor.MAX_QUEUE": 2})
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda: statuses.append(server.invoke(encoded()).status))
        for _ in range(8)
    ]
    threads[0].start()
    wait_for(lambda: (tmp_path / "started").exists())
    for thread in threads[1:]:
        thread.start()
    wait_for(lambda: server.ping() == 200 and len(statuses) == 5)
    assert statuses == [503] * 5
    go.touch()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(statuses) == [200] * 3 + [503] * 5


def test_the_bodies_of_all_requests_together_are_bounded(serve: Serve, served_model: Path) -> None:
    """What has arrived counts, and not what a header announces."""
    room = {"app.BODY_MEMORY_MB": 8}
    server = serve(f"model_dir={served_model}", "serve.max_payload_mb=4", constants=room)
    large = encoded() + bytes(3 * MB)
    with ExitStack() as connections:
        stalled = [connections.enter_context(closing(server.connect())) for _ in range(24)]
        for connection in stalled[3:]:
            connection.sendall(head(4 * MB) + b"x")
        for connection in stalled[:3]:
            with suppress(OSError):  # refused while it is sent
                connection.sendall(head(4 * MB) + bytes(3 * MB))
        (refused,), _, _ = select.select(stalled, [], [], PATIENCE_S)
        assert read_answer(refused)[:13] in (b"HTTP/1.1 503 ", b"")
        assert server.try_invoke(large) in (503, None)
        assert server.invoke(encoded()).status == 200
    wait_for(lambda: server.try_invoke(large) == 200)


def test_a_thousand_stalled_connections_leave_room_for_others(
    serve: Serve, served_model: Path
) -> None:
    server = serve(f"model_dir={served_model}")
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
        # What arrived, buffers of 64 kB for each connection, and what reading needs.
        assert server.memory_mb() < before + 500 * 0.2 + 1000 / 16 + 60
    finally:
        for connection in connections:
            connection.close()


def test_a_client_that_has_gone_leaves_its_place_in_the_queue(serve: Serve, tmp_path: Path) -> None:
    """And its photo is not computed."""
    model, go = write_slow_model(tmp_path)
    server = serve(f"model_dir={model}", *ALONE, constants={"predictor.MAX_QUEUE": 1})
    image = encoded()
    with closing(server.connect()) as computed, closing(server.connect()) as gone:
        computed.sendall(head(len(image)) + image)
        wait_for(lambda: (tmp_path / "started").exists())
        gone.sendall(head(len(image)) + image)
        server.settle()
        assert not server.has_room()
        gone.close()
        wait_for(server.has_room)  # the server needs a moment to notice
        with closing(server.connect()) as last:
            last.sendall(head(len(image), "Connection: close") + image)
            server.settle()
            assert not server.has_room()
            go.touch()
            assert read_answer(last).startswith(b"HTTP/1.1 200 ")
    assert (tmp_path / "started").read_text() == "11"  # batches


def test_the_photo_of_a_client_that_goes_while_it_is_decoded_is_not_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, go = write_slow_model(tmp_path)
    go.touch()
    predictor = Predictor(model, ServerConfig(workers=1, max_batch=1))
    decode = ImageDecoder.decode
    began, may_end = threading.Event(), threading.Event()

    def decode_slowly(self: ImageDecoder, image: RequestImage) -> Photo:
        photo = decode(self, image)
        began.set()
        assert may_end.wait(PATIENCE_S)
        return photo

    async def leave_and_come_back() -> None:
        gone = asyncio.ensure_future(predictor.answer(bytearray(encoded()), "image/jpeg", ""))
        await asyncio.to_thread(began.wait, PATIENCE_S)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        may_end.set()
        await predictor.answer(bytearray(encoded()), "image/jpeg", "")

    monkeypatch.setattr(ImageDecoder, "decode", decode_slowly)
    asyncio.run(leave_and_come_back())
    assert (tmp_path / "started").read_text() == "1"  # batches


def webp_of(side: int) -> bytes:
    """A valid lossless WebP of one color: each of its codes has one symbol, of no bits."""
    bits = (side - 1) | (side - 1) << 14
    codes = 0b1 | 0b1 << 4 | 0b1 << 8 | 0b1 << 12 | 0b1 << 16
    stream = b"\x2f" + struct.pack("<I", bits) + struct.pack("<Q", codes << 3)[:9]
    stream += bytes(len(stream) % 2)
    content = b"WEBPVP8L" + struct.pack("<I", len(stream)) + stream
    return b"RIFF" + struct.pack("<I", len(content)) + content


def peak_mb(server: Served) -> float:
    """The most memory that the server has had so far."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1024


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_others_are_answered_while_large_images_are_decoded(
    serve: Serve, served_model: Path
) -> None:
    """Two requests of 100 bytes, 250 megapixels together."""
    assert len(webp_of(SIDE)) == 34 and Image.open(io.BytesIO(webp_of(SIDE))).size == (SIDE, SIDE)
    server = serve(f"model_dir={served_model}")
    server.invoke(encoded("WEBP"))
    before = peak_mb(server)
    ended: list[int] = []
    body = as_json([webp_of(SIDE)] * 2)
    threads = [in_thread(lambda: ended.append(server.invoke(body, JSON).status)) for _ in range(2)]
    for _ in range(2):
        for kind in ("JPEG", "PNG", "WEBP"):
            assert server.invoke(encoded(kind)).status == 200
    assert not ended  # each of the 4 images takes longer than all 6 small ones
    for thread in threads:
        thread.join(PATIENCE_S)
    assert ended == [200] * 2
    assert peak_mb(server) < before + 21 * SIDE**2 / 2**20 + 100


def test_the_pixels_of_a_request_together_are_bounded(serve: Serve, served_model: Path) -> None:
    most = {"images.MAX_PIXELS": 10 * MEGA}
    server = serve(f"model_dir={served_model}", "serve.max_payload_mb=2", constants=most)
    server.invoke(webp_of(50))
    before = peak_mb(server)
    answer = server.invoke(as_json([webp_of(2000)] * 5), JSON)  # 20 megapixels, 16 are allowed
    assert answer.status == 413
    message = "the images of a request together: must have at most 16 megapixels"
    assert answer.json()["error"] == message
    answer = server.invoke(as_json([webp_of(9900)] * 60), JSON)
    assert answer.status == 413
    assert answer.json()["error"] == "image 0: has too many pixels; at most 10 megapixels"
    assert peak_mb(server) < before + 40  # nothing was decoded
    assert server.invoke(as_json([webp_of(2000)] * 4), JSON).status == 200


def test_large_images_leave_most_of_the_queue_to_others(serve: Serve, served_model: Path) -> None:
    server = serve(f"model_dir={served_model}", constants={"predictor.MOST_LARGE": 1})
    statuses: list[int] = []
    threads = [
        in_thread(lambda: statuses.append(server.invoke(webp_of(4000)).status)) for _ in range(4)
    ]
    for thread in threads:
        thread.join(PATIENCE_S)
    assert 200 in statuses and set(statuses) <= {200, 503}
    assert server.invoke(encoded()).status == 200


MEASURE = r"""
import pathlib, re, sys
from types import SimpleNamespace
from entry_point.config.data_config import DataConfig
from entry_point.serving.images import ImageDecoder
decoder = ImageDecoder(SimpleNamespace(config=SimpleNamespace(data=DataConfig())), 25)
decoder.warm_up()
(image,) = decoder.open([open(sys.argv[1], "rb").read()])

def bytes_of(name):
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(re.search(name + r":\s+(\d+)", status)[1])

before = bytes_of("VmRSS")
pathlib.Path("/proc/self/clear_refs").write_text("5")  # restarts the peak
decoder.decode(image)
print(bytes_of("VmHWM") - before, image.memory)
"""
HUNGRY: dict[str, dict[str, object]] = {
    "JPEG": {"progressive": True, "subsampling": 0},
    "PNG": {},
    "WEBP": {"method": 0},
    "TIFF": {"compression": "tiff_lzw"},
    "AVIF": {"speed": 10},
}


@pytest.mark.parametrize("kind", FORMATS)
def test_no_format_takes_more_memory_than_is_counted(tmp_path: Path, kind: str) -> None:
    """Of images that are turned, too: Pillow then holds both."""
    photo = Image.effect_noise((64, 64), 60).convert("RGB").resize((3000, 3000))
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = {"exif": exif} if kind in ("JPEG", "PNG", "WEBP", "TIFF", "AVIF") else {}
    photo.save(tmp_path / "image", kind, **HUNGRY.get(kind, {}), **turned)
    process = forkserver.start(["-c", MEASURE, str(tmp_path / "image")], tmp_path / "log")
    output, _ = process.communicate()
    assert process.returncode == 0, output
    taken, counted = map(int, output.split())
    assert 3 * 9 * MEGA < taken <= counted
