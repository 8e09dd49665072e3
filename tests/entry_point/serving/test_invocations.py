"""What the server answers to images, to JSON, and to what is neither."""

import base64
import io
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import pytest
from PIL import Image

from tests import commands
from tests.entry_point.prediction.predicted import rows
from tests.entry_point.serving.conftest import Serve
from tests.entry_point.serving.served_model import CLASSES, Answer, Served, as_json, encoded


def in_base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def test_ping_says_that_the_server_is_ready(server: Served) -> None:
    assert server.request("GET", "/ping").json() == {"status": "ready"}
    assert server.request("HEAD", "/ping").body == b""


def test_the_log_has_a_line_for_each_request(server: Served) -> None:
    server.invoke(b"damaged")
    assert ' - "POST /invocations HTTP/1.1" 400\n' in server.log()


def test_a_batch_transform_gets_an_answer_for_each_object(server: Served) -> None:
    """An object per request, several at a time; a client may send it in chunks, without its
    length."""
    images = [encoded(size=(50 + number, 40)) for number in range(12)]
    bodies = [*images[:6], *(iter([image[:100], image[100:]]) for image in images[6:])]

    def transform(body: bytes | Iterator[bytes]) -> Answer:
        return server.invoke(body, "application/x-image", Accept="*/*")

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(transform, bodies))
    assert {answer.status for answer in answers} == {200}
    alone = [server.invoke(image).json() for image in images]
    assert [answer.json() for answer in answers] == alone


@pytest.mark.parametrize("kind", ["image/jpeg", "application/x-image", "application/octet-stream"])
def test_one_image_is_classified(server: Served, kind: str) -> None:
    answer = server.invoke(encoded(), kind)
    assert answer.status == 200 and answer.headers["content-type"] == "application/json"
    (prediction,) = answer.json()["predictions"]
    assert prediction["class"] in CLASSES
    assert sum(prediction["probabilities"].values()) == pytest.approx(1, abs=1e-4)


def test_a_body_without_a_type_is_an_image_or_json(server: Served) -> None:
    """curl's --data-binary says application/x-www-form-urlencoded."""
    image = encoded()
    expected = server.invoke(image).json()
    for kind in ({}, {"Content-Type": "application/x-www-form-urlencoded"}):
        for body in (image, as_json([image])):
            answer = server.request("POST", "/invocations", body, kind)
            assert (answer.status, answer.json()) == (200, expected)


def wrapped(image: bytes) -> str:
    """As `base64 FILE` prints it, with the line ends of Windows."""
    return base64.encodebytes(image).decode().replace("\n", "\r\n")


def url_safe(image: bytes) -> str:
    text = base64.urlsafe_b64encode(image).decode()
    assert set("-_") & set(text)
    return text


def unpadded(image: bytes) -> str:
    padded = next(
        text for more in range(3) if (text := in_base64(image + bytes(more))).endswith("=")
    )
    return padded.rstrip("=")


def escaped(image: bytes) -> str:
    url = f"DATA:image/png;name=x;BASE64,{quote(in_base64(image))}"
    return url.replace("/", "%2F")


@pytest.mark.parametrize(
    "form",
    [
        in_base64,
        wrapped,
        url_safe,
        unpadded,
        escaped,
        lambda image: f"data:image/png;base64,{in_base64(image)}",
        lambda image: {"image": in_base64(image)},
        lambda image: {"b64": in_base64(image)},
    ],
    ids=["plain", "wrapped", "url-safe", "unpadded", "escaped", "data URL", "image", "b64"],
)
def test_several_images_are_answered_in_their_order(
    server: Served, form: Callable[[bytes], object]
) -> None:
    images = [encoded("PNG"), encoded("JPEG"), encoded("GIF", mode="L"), encoded("WEBP")]
    alone = [server.invoke(image).json()["predictions"][0] for image in images]
    body = json.dumps({"instances": [form(image) for image in images]})
    together = server.invoke(body, "application/json; charset=utf-8").json()["predictions"]
    assert [each["class"] for each in together] == [each["class"] for each in alone]
    assert [each["probability"] for each in together] == pytest.approx(
        [each["probability"] for each in alone], abs=1e-5
    )


@pytest.mark.parametrize("accept", ["", "*/*", "text/csv", "application/json;top=0", "x" * 5000])
def test_the_answer_is_json_whatever_is_accepted(server: Served, accept: str) -> None:
    answer = server.invoke(encoded(), Accept=accept)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")


def test_the_answers_are_those_of_predict(
    server: Served, served_model: Path, photo_folder: Path, tmp_path: Path
) -> None:
    """Equal to six decimals: the pixels are the same, upright ones and progressive ones too."""
    source, output = photo_folder / "val", tmp_path / "output"
    arguments = [f"model_dir={served_model}", f"input={source}", f"output_dir={output}"]
    assert commands.predict([*arguments, "batch_size=1"]) == 0
    found = rows(output)
    assert len(found) == 24
    for row in found:
        (answer,) = server.invoke((source / row["path"]).read_bytes()).json()["predictions"]
        assert answer["class"] == row["class"], row
        assert list(answer["probabilities"].values()) == pytest.approx(row["scores"], abs=1e-6)


def test_bf16_answers_nearly_the_same(server: Served, served_model: Path, serve: Serve) -> None:
    half = serve(f"model_dir={served_model}", "serve.precision=bf16")
    image = encoded()
    (exact,), (near,) = (each.invoke(image).json()["predictions"] for each in (server, half))
    assert near["probabilities"] == pytest.approx(exact["probabilities"], abs=0.02)
    assert near["probabilities"] != exact["probabilities"]


@pytest.mark.parametrize(
    ("body", "kind", "headers", "status", "words"),
    [
        (b"no image", "image/png", {}, 400, "image 0: is not an image"),
        (b"", "image/png", {}, 400, "image 0: is not an image"),
        (b"\xff\xd8\xff", "image/jpeg", {}, 400, "image 0: cannot be read as an image"),
        (encoded()[:1000], "image/jpeg", {}, 400, "cannot be read as an image"),
        (
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
            "image/eps",
            {},
            400,
            "not an image in one of the formats JPEG, PNG, ",
        ),
        (b"{", "application/json", {}, 400, "the body: is not JSON"),
        (b"[" * 10_000, "application/json", {}, 400, "the body: is not JSON, "),
        (b"[" * 100_000, "application/json", {}, 413, "at most 16000 commas and brackets"),
        (b"\xff", "application/json", {}, 400, "the body: is not JSON, or"),
        (b"[]", "application/json", {}, 400, 'must be {"instances"'),
        (b'{"instances": []}', "application/json", {}, 400, "holds no images"),
        (as_json([b""] * 1001), "application/json", {}, 413, "at most 1000 images, has 1001"),
        (b'{"instances": [7]}', "application/json", {}, 400, "instances[0]: must be an image in"),
        (b'{"instances": [{}]}', "application/json", {}, 400, "instances[0]: must be an image in"),
        (b'{"instances": ["AAAA"]}', "application/json", {}, 400, "image 0: is not an image"),
        (b'{"instances": ["AA*A"]}', "application/json", {}, 400, "base64; '*' is not one"),
        (b'{"instances": ["AAAAA"]}', "application/json", {}, 400, "its end is wrong"),
        (b'{"instances": ["AA==AA"]}', "application/json", {}, 400, "its end is wrong"),
        (b'{"instances": ["data:,AAAA"]}', "application/json", {}, 400, "a data URL in base64"),
        (b'{"instances": ["data:AAAA"]}', "application/json", {}, 400, "a data URL in base64"),
        (b'{"instances": ["\xc3\xa9"]}', "application/json", {}, 400, "not one of its characters"),
        (b"a,b", "text/csv", {}, 415, "content type 'text/csv': must be image/*"),
        (b"--x", "multipart/form-data; boundary=x", {}, 415, "retired: use the image itself"),
        (b'"AAAA"', "application/jsonlines", {}, 415, "retired: use the image itself as the body"),
        (encoded(), "image/jpeg", {"Content_Encoding": "gzip"}, 415, "encoding 'gzip'"),
    ],
)
def test_a_wrong_request_is_answered_with_one_json_line(
    server: Served, body: bytes | str, kind: str, headers: dict[str, str], status: int, words: str
) -> None:
    answer = server.invoke(body, kind, **headers)
    assert answer.status == status
    assert answer.body.count(b"\n") == 1
    assert words in answer.json()["error"]


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", "/none", 404, "/none: no such URL"),
        ("GET", "/metrics", 404, "/metrics: retired: use the platform's metrics"),
        ("GET", "/execution-parameters", 404, "retired: use MaxConcurrentTransforms"),
        ("GET", "/invocations", 405, "/invocations: send POST"),
        ("OPTIONS", "/ping", 405, "/ping: send GET"),
    ],
)
def test_an_unknown_url_or_method_is_answered_with_one_json_line(
    method: str, path: str, status: int, words: str, server: Served
) -> None:
    answer = server.request(method, path)
    assert answer.status == status and words in answer.json()["error"]
    allowed = {"/invocations": "POST", "/ping": "GET, HEAD"}.get(path)
    assert answer.headers.get("allow") == allowed


def test_a_damaged_jpeg_is_refused_as_in_training_though_pillow_would_read_it(
    server: Served,
) -> None:
    whole = encoded(size=(400, 300))
    cut = whole[: len(whole) // 2] + whole[-len(whole) // 3 :]
    with Image.open(io.BytesIO(cut)) as image:
        image.load()
    answer = server.invoke(cut, "image/jpeg")
    assert answer.status == 400
    assert answer.json()["error"].startswith("image 0: cannot be read as an image: Corrupt JPEG")


def test_a_damaged_image_does_not_fail_the_requests_that_share_its_batch(server: Served) -> None:
    good = [encoded() for _ in range(3)]
    mixed = server.invoke(as_json([good[0], b"damaged", good[1]]), "application/json")
    assert (mixed.status, mixed.json()["error"]) == (
        400,
        "image 1: is not an image that can be read: not an image in one of the formats JPEG, PNG, "
        "WEBP, AVIF, GIF, BMP, PPM, TIFF",
    )
    assert server.invoke(as_json(good), "application/json").status == 200
