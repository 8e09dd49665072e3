"""Hostile bodies neither crash the server nor grow it.

HOSTILE_BODIES=1000000 sends more of them than the usual run.
"""

import base64
import io
import json
import os
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from entry_point.serving.forms import RequestError, read_images
from tests.entry_point.serving.conftest import Serve
from tests.entry_point.serving.served_model import as_json, encoded

CORPUS = Path(__file__).parents[2] / "fuzz" / "corpus"
BODIES = int(os.environ.get("HOSTILE_BODIES", "4000"))
PER_REQUEST = 500
GROWTH_MB = 50


def seeds() -> list[bytes]:
    """The fuzz corpus, and small images of Pillow's other formats."""
    photo = Image.effect_noise((40, 30), 60).convert("RGB")
    others = []
    for kind in ("PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM"):
        out = io.BytesIO()
        photo.save(out, kind)
        others.append(out.getvalue())
    return [path.read_bytes() for path in sorted(CORPUS.iterdir())] + others


def damaged(content: bytes, other: bytes, draw: random.Random) -> bytes:
    """Bytes flipped, cut off, repeated, or joined with another file."""
    body = bytearray(content)
    for _ in range(draw.randrange(4)):
        body[draw.randrange(len(body))] = draw.randrange(256)
    kind = draw.randrange(5)
    if kind == 0:
        del body[draw.randrange(1, len(body) + 1) :]
    elif kind == 1:
        start = draw.randrange(len(body))
        body[start:start] = body[start : start + draw.randrange(200)]
    elif kind == 2:
        body[draw.randrange(len(body)) :] = other[draw.randrange(len(other)) :]
    return bytes(body)


def bodies(count: int) -> Iterator[bytes]:
    draw, known = random.Random(0), seeds()
    for _ in range(count):
        yield damaged(draw.choice(known), draw.choice(known), draw)


def test_hostile_images_neither_crash_the_server_nor_grow_it(
    serve: Serve, served_model: Path
) -> None:
    # A lying header may cost the memory of this many pixels.
    server = serve(f"model_dir={served_model}", constants={"images.MAX_PIXELS": 4_000_000})
    made = bodies(BODIES)
    half = 0.0
    for number in range(BODIES // PER_REQUEST):
        body = as_json([next(made) for _ in range(PER_REQUEST)])
        answer = server.invoke(body, "application/json")
        assert answer.status in (200, 400, 413), answer.body
        assert answer.body.count(b"\n") == 1
        if number == BODIES // PER_REQUEST // 2:
            # The heap's fragments and torch's caches are there by now; a leak would go on.
            half = server.memory_mb()
    assert server.memory_mb() < half + GROWTH_MB
    assert server.invoke(encoded()).status == 200
    assert "Traceback" not in server.log()


def test_hostile_requests_of_every_kind_are_answered(serve: Serve, served_model: Path) -> None:
    server = serve(f"model_dir={served_model}", constants={"images.MAX_PIXELS": 4_000_000})
    draw = random.Random(1)
    kinds = ("image/jpeg", "application/json", "application/jsonlines", "text/csv", "", ";;q=x")
    document = json.dumps({"instances": [base64.b64encode(encoded()).decode()]}).encode()
    for body in bodies(300):
        chosen = draw.choice((body, damaged(document, body, draw)))
        accept = draw.choice(("*/*", "a/b;q=", "application/json;top=-1", ",,,", "x" * 5000))
        answer = server.invoke(chosen, draw.choice(kinds), Accept=accept)
        assert answer.status in (200, 400, 413, 415), answer.body
    assert "Traceback" not in server.log()


@pytest.mark.parametrize(
    ("body", "words"),
    [(b"[],", "commas and brackets"), (b"{", "commas and brackets"), (b"\n", "is not JSON")],
)
def test_what_a_text_would_make_of_itself_is_counted_before_it_is_parsed(
    body: bytes, words: str
) -> None:
    """24 MB of each take no more than a copy."""
    text = bytearray(body * (24 * 2**20 // len(body)))
    tracemalloc.start()
    with pytest.raises(RequestError, match=words):
        read_images(text, "application/json")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * len(text)
