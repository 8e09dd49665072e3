"""Small bodies that are large images: they are bounded, and strangers do not wait for them."""

import base64
import io
import json
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from entry_point.serving.request_images import FORMATS
from tests.entry_point.serving.conftest import Serve
from tests.entry_point.serving.served_model import PATIENCE_S, Served, with_code
from tests.entry_point.serving.test_invocations import encoded
from tests.entry_point.serving.test_serve_limits import png_of

LINES = "application/jsonlines"
SIDE = 7900
"""62 megapixels: a little below serve.max_megapixels."""
MEGA = 10**6


def webp_of(side: int) -> bytes:
    """A valid lossless WebP of one color: each of its codes has one symbol, of no bits."""
    bits = (side - 1) | (side - 1) << 14
    codes = 0b1 | 0b1 << 4 | 0b1 << 8 | 0b1 << 12 | 0b1 << 16
    stream = b"\x2f" + struct.pack("<I", bits) + struct.pack("<Q", codes << 3)[:9]
    stream += bytes(len(stream) % 2)
    content = b"WEBPVP8L" + struct.pack("<I", len(stream)) + stream
    return b"RIFF" + struct.pack("<I", len(content)) + content


def lines(content: bytes, count: int) -> str:
    return "\n".join([json.dumps(base64.b64encode(content).decode())] * count)


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
    """Three requests of 150 bytes, 560 megapixels together."""
    assert len(webp_of(SIDE)) == 34 and Image.open(io.BytesIO(webp_of(SIDE))).size == (SIDE, SIDE)
    server = serve(f"model_dir={served_model}")
    server.wait_until_ready()
    server.invoke(encoded("WEBP"))
    before = peak_mb(server)
    ended: list[int] = []
    body = lines(webp_of(SIDE), 3)
    threads = [in_thread(lambda: ended.append(server.invoke(body, LINES).status)) for _ in range(3)]
    for _ in range(5):
        for kind in ("JPEG", "PNG", "WEBP"):
            assert server.invoke(encoded(kind)).status == 200
    assert not ended  # each of the 9 images takes longer than all 15 small ones
    for thread in threads:
        thread.join(PATIENCE_S)
    assert ended == [200] * 3
    assert peak_mb(server) < before + 21 * SIDE**2 / 2**20 + 100


def test_the_pixels_of_a_request_together_are_bounded(serve: Serve, served_model: Path) -> None:
    server = serve(f"model_dir={served_model}", "serve.max_payload_mb=2", "serve.max_megapixels=10")
    server.wait_until_ready()
    server.invoke(webp_of(50))
    before = peak_mb(server)
    answer = server.invoke(lines(webp_of(2000), 5), LINES)  # 20 megapixels, 16 are allowed
    assert answer.status == 413
    message = "the images of a request together: must have at most 16 megapixels"
    assert answer.json()["error"] == message
    answer = server.invoke(lines(webp_of(9900), 60), LINES)
    assert answer.status == 413
    assert answer.json()["error"] == "image 0: has too many pixels; at most 10 megapixels"
    assert peak_mb(server) < before + 40  # nothing was decoded
    assert server.invoke(lines(webp_of(2000), 4), LINES).status == 200


def test_large_images_leave_most_of_the_queue_to_others(serve: Serve, served_model: Path) -> None:
    """`serve.max_queue=4` lets one large image wait or be decoded."""
    server = serve(f"model_dir={served_model}", "serve.max_queue=4")
    server.wait_until_ready()
    statuses: list[int] = []
    threads = [
        in_thread(lambda: statuses.append(server.invoke(webp_of(SIDE)).status)) for _ in range(4)
    ]
    for thread in threads:
        thread.join(PATIENCE_S)
    assert 200 in statuses and set(statuses) <= {200, 503}
    assert server.invoke(encoded()).status == 200


def test_a_large_request_does_not_hold_up_a_small_one(serve: Serve, served_model: Path) -> None:
    server = serve(f"model_dir={served_model}")
    server.wait_until_ready()
    ended: list[int] = []
    body = lines(png_of(400), 1000)
    thread = in_thread(lambda: ended.append(server.invoke(body, LINES).status))
    assert server.invoke(encoded()).status == 200
    assert not ended
    thread.join(PATIENCE_S)
    assert ended == [200]


def test_a_model_with_its_own_prediction_gets_bounded_images(
    serve: Serve, served_model: Path, tmp_path: Path
) -> None:
    code = "def predict_fn(images, model):\n    return [image.size for image in images]\n"
    server = serve(f"model_dir={with_code(served_model, tmp_path / 'model', code)}")
    server.wait_until_ready()
    assert server.invoke(lines(webp_of(50), 2), LINES).json() == {"predictions": [[50, 50]] * 2}
    answer = server.invoke(webp_of(9900))
    assert answer.status == 413 and "at most 64 megapixels" in answer.json()["error"]


MEASURE = """
import io, pathlib, re, sys
from PIL import Image
from entry_point.config.serve_config import ServerConfig
from entry_point.serving.request_images import RequestImages, check_images
Image.init()
config = ServerConfig(decoder="pillow")
images = RequestImages(224, 256, config, 1)
images.warm_up()
(image,) = check_images([open(sys.argv[1], "rb").read()], config, use_operator=False)

def bytes_of(name):
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(re.search(name + r":\s+(\d+)", status)[1])

before = bytes_of("VmRSS")
pathlib.Path("/proc/self/clear_refs").write_text("5")  # restarts the peak
images._with_pillow(image)
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
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, tmp_path / "image"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    taken, counted = map(int, done.stdout.split())
    assert 3 * 9 * MEGA < taken <= counted
