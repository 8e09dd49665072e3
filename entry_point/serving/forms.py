"""The forms of requests and answers: one image, or JSON with several; JSON, or a PNG."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from entry_point.config.retired import retired
from entry_point.job.text import shortened

JSON, PNG = "application/json", "image/png"
_IMAGE = ("application/x-image", "application/octet-stream")
_UNNAMED = ("", "application/x-www-form-urlencoded")
"""No content type, and the default of `curl --data-binary`."""
MAX_INSTANCES = 1000
"""Most images in one request."""
_MARKS_PER_INSTANCE = 16
"""Most commas, brackets and braces of JSON per instance; the documented forms have up to six."""
_FROM_URL_SAFE, _LINE_BREAKS = bytes.maketrans(b"-_", b"+/"), b" \t\r\n"
"""Base64's URL-safe alphabet; the line breaks that `base64 FILE` and MIME insert."""

Headers = dict[bytes, bytes]
"""HTTP headers; names are in lower case."""


@dataclass
class Answer:
    """An HTTP answer."""

    content: bytes
    kind: str = JSON
    """Content-Type."""
    status: int = HTTPStatus.OK
    headers: Headers = field(default_factory=dict)
    """Besides Content-Type and Content-Length."""


class RequestError(ValueError):
    """A request that cannot be answered: its HTTP status, and what is wrong in one line."""

    def __init__(self, status: int, message: str, headers: Headers | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers or {}

    def answer(self) -> Answer:
        """Returns the answer that refuses the request, a line of JSON."""
        again = {b"retry-after": b"1"} if self.status == HTTPStatus.SERVICE_UNAVAILABLE else {}
        return Answer(error_line(str(self)), JSON, self.status, {**again, **self.headers})


def error_line(message: str) -> bytes:
    """Returns an error as one short line of JSON, whatever the message is."""
    line = json.dumps({"error": shortened(" ".join(message.split()))}, ensure_ascii=False) + "\n"
    return line.encode(errors="backslashreplace")


def read_images(body: bytearray, content_type: str) -> Sequence[bytes | bytearray]:
    """Returns the encoded images of a request.

    - One image: image/*, application/x-image, application/octet-stream.
    - JSON: {"instances": [INSTANCE, ...]}. An instance is an image in base64, a data URL, or an
      object with one of them as `b64` or `image`.
    - No type, or curl's default for --data-binary: JSON if it begins like that, else one image.

    Commas and brackets are counted before JSON is parsed, which bounds its memory. Raises
    RequestError.
    """
    kind = content_type.split(";")[0].strip().lower()
    if kind in _UNNAMED:
        kind = JSON if body[:100].lstrip()[:1] == b"{" else _IMAGE[0]
    if kind.startswith("image/") or kind in _IMAGE:
        return [body]
    if kind != JSON:
        wanted = retired(kind) or f"must be image/*, {_IMAGE[0]} or {JSON}"
        raise RequestError(415, f"content type {content_type!r}: {wanted}")
    marks = sum(map(body.count, (b",", b"[", b"{")))
    _refuse_more(marks, MAX_INSTANCES * _MARKS_PER_INSTANCE, "commas and brackets")
    try:
        document = json.loads(body)
    except json.JSONDecodeError as error:
        where = f"character {error.pos + 1}"
        raise RequestError(400, f"the body: is not JSON, see {where}") from error
    except (ValueError, RecursionError) as error:
        raise RequestError(400, "the body: is not JSON, or nested too deeply") from error
    instances = document.get("instances") if isinstance(document, dict) else None
    if not isinstance(instances, list):
        raise RequestError(400, 'the body: must be {"instances": [BASE64, ...]}')
    if not instances:
        raise RequestError(400, "the body: holds no images; send at least one")
    _refuse_more(len(instances), MAX_INSTANCES, "images")
    return [_decode_base64(each, f"instances[{i}]") for i, each in enumerate(instances)]


def _refuse_more(count: int, most: int, what: str) -> None:
    if count > most:
        raise RequestError(413, f"the body: must have at most {most} {what}, has {count}")


def _decode_base64(instance: Any, place: str) -> bytes:
    content = instance
    if isinstance(instance, dict):
        content = instance.get("b64", instance.get("image"))
    if not isinstance(content, str):
        raise RequestError(400, f"{place}: must be an image in base64")
    if content[:5].lower() == "data:":
        header, _, content = content.partition(",")
        if not header.lower().endswith(";base64"):
            raise RequestError(400, f"{place}: must be a data URL in base64")
        for escape, character in (("%2B", "+"), ("%2F", "/"), ("%3D", "=")):
            content = content.replace(escape, character)
    try:
        text = content.encode("ascii").translate(_FROM_URL_SAFE, _LINE_BREAKS)
        return base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    except ValueError as error:
        wrong = re.search(r"[^A-Za-z0-9+/=_ \t\r\n-]", content)
        what = f"{wrong[0]!r} is not one of its characters" if wrong else "its end is wrong"
        raise RequestError(400, f"{place}: must be an image in base64; {what}") from error


def wants_png(accept: str) -> bool:
    """Returns whether an Accept header prefers image/png: names it, and not after JSON."""
    return PNG in accept.lower().partition(JSON)[0]
