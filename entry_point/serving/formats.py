"""The forms of requests and answers: one image or several; JSON, JSON lines, a form, a mask."""

from __future__ import annotations

import base64
import json
import logging
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from python_multipart import FormParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import File, parse_options_header
from torch import Tensor

from entry_point.job.program import shortened
from entry_point.model_folder import Model

JSON, JSON_LINES, PNG = "application/json", "application/jsonlines", "image/png"
FORM = "multipart/form-data"
_IMAGE = "application/x-image"
_UNNAMED = ("", "application/x-www-form-urlencoded")
_ALIASES = dict.fromkeys(("application/x-jsonlines", "application/x-ndjson"), JSON_LINES)
MAX_INSTANCES = 1000
"""Images in one request."""
_FROM_URL_SAFE, _LINE_BREAKS = bytes.maketrans(b"-_", b"+/"), b" \t\r\n"
"""Base64's other alphabet; what `base64 FILE` and MIME put in between."""
_MARKS_PER_INSTANCE = 16
"""Commas, brackets and braces of JSON, and lines of a form: an instance of ours has six at most."""

# It logs what clients do wrong.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)


class RequestError(ValueError):
    """A request that cannot be answered: its HTTP status, and what is wrong in one line."""

    def __init__(self, status_code: int, message: str) -> None:
        super().__init__(message)
        self.status_code, self.message = status_code, message


def error_line(message: str) -> bytes:
    """Returns the JSON line that refuses a request. Whoever wrote the message, it is short."""
    line = json.dumps({"error": shortened(" ".join(message.split()))}, ensure_ascii=False) + "\n"
    return line.encode(errors="backslashreplace")


@dataclass(frozen=True)
class Instances:
    """The encoded images of a request, and their files' names if it was a form."""

    contents: Sequence[bytes | bytearray]
    names: Sequence[str] | None = None


def read_instances(body: bytes | bytearray, content_type: str) -> Instances:
    """Returns the encoded images of a request.

    - One image: image/*, application/x-image, application/octet-stream.
    - JSON: {"instances": [INSTANCE, ...]}. An instance is an image in base64, a data URL, or an
      object with one of them as `b64` or `image`.
    - JSON lines: an instance per line.
    - A form, multipart/form-data: each of its files.
    - No type, or curl's default for --data-binary: JSON if it begins like that, else one image.

    What a text would make of itself is counted before it is parsed. Raises RequestError.
    """
    kind = media_type(content_type)
    if kind in _UNNAMED:
        kind = JSON if body[:100].lstrip()[:1] == b"{" else _IMAGE
    if kind.startswith("image/") or kind in (_IMAGE, "application/octet-stream"):
        return Instances([body])
    if kind not in _READ:
        allowed = f"image/*, {_IMAGE}, {FORM}, {JSON} or {JSON_LINES}"
        raise RequestError(415, f"content type {content_type!r}: must be {allowed}")
    instances = _READ[kind](body, content_type)
    if not instances.contents:
        raise RequestError(400, "the body: holds no images; send at least one")
    _refuse_more(len(instances.contents), MAX_INSTANCES, "images")
    return instances


def _refuse_more(count: int, most: int, what: str) -> None:
    if count > most:
        raise RequestError(413, f"the body: must have at most {most} {what}, has {count}")


def media_type(text: str) -> str:
    """Returns the media type without parameters, in lower case, under one name."""
    kind = text.split(";")[0].strip().lower()
    return _ALIASES.get(kind, kind)


def _read_json(body: bytes | bytearray, _content_type: str) -> Instances:
    document = _parse_json(body, "the body")
    instances = document.get("instances") if isinstance(document, dict) else None
    if not isinstance(instances, list):
        raise RequestError(400, 'the body: must be {"instances": [BASE64, ...]}')
    _refuse_more(len(instances), MAX_INSTANCES, "images")
    return Instances([_decode_base64(each, f"instances[{i}]") for i, each in enumerate(instances)])


def _read_lines(body: bytes | bytearray, _content_type: str) -> Instances:
    _refuse_more(body.count(b"\n"), MAX_INSTANCES, "lines")
    lines = [(i, line) for i, line in enumerate(bytes(body).split(b"\n"), 1) if line.strip()]
    return Instances(
        [_decode_base64(_parse_json(line, f"line {i}"), f"line {i}") for i, line in lines]
    )


def _parse_json(text: bytes | bytearray, place: str) -> Any:
    marks = sum(map(text.count, (b",", b"[", b"{")))
    _refuse_more(marks, MAX_INSTANCES * _MARKS_PER_INSTANCE, "commas and brackets")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"character {error.pos + 1}"
        raise RequestError(400, f"{place}: is not JSON, see {where}") from error
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"{place}: is not JSON, or nested too deeply") from error


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
        what = (
            f"{wrong[0]!r} is not one of its characters" if wrong else "its end or padding is wrong"
        )
        raise RequestError(400, f"{place}: must be an image in base64; {what}") from error


def _read_form(body: bytes | bytearray, content_type: str) -> Instances:
    """Returns the files of a form. Other fields are ignored."""
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    contents: list[bytes | bytearray] = []
    names: list[str] = []

    def keep(file: File) -> None:
        file.file_object.seek(0)
        contents.append(file.file_object.read())
        names.append((file.file_name or b"").decode(errors="replace"))

    _refuse_more(body.count(b"--" + (boundary or b"")), 2 * MAX_INSTANCES, "parts")
    try:
        parser = FormParser(
            FORM,
            on_field=None,
            on_file=keep,
            boundary=boundary,
            config={"MAX_MEMORY_FILE_SIZE": math.inf},  # never on a disk
        )
        parser.write(bytes(body))
        parser.finalize()
    except FormParserError as error:
        message = "must be a form with the boundary that Content-Type names"
        raise RequestError(400, f"the body: {message}") from error
    return Instances(contents, names)


_READ = {FORM: _read_form, JSON: _read_json, JSON_LINES: _read_lines}


@dataclass(frozen=True)
class Accepted:
    """The form of an answer."""

    kind: str
    """JSON, JSON_LINES or PNG."""
    top: int | None = None
    """Names with a probability or a share: the best ones. None: see `best_by_name`."""


def read_accept(accept: str, answers_png: bool = False) -> Accepted:
    """Returns the first form in an Accept header that there is, JSON if it takes any.

    A media type's parameter `top` is a number of names, or `all`: `application/json;top=5`. Raises
    RequestError (406) if no form is accepted.
    """
    known = (JSON, JSON_LINES, PNG) if answers_png else (JSON, JSON_LINES)
    for choice in accept.split(",") if accept.strip() else ["*/*"]:
        wanted = media_type(choice)
        for kind in known:
            if wanted in (kind, "*/*", f"{kind.partition('/')[0]}/*"):
                return Accepted(kind, _read_top(choice))
    raise RequestError(406, f"accept {accept!r}: must include {' or '.join(known)}")


def _read_top(choice: str) -> int | None:
    for parameter in choice.split(";")[1:]:
        name, _, value = (part.strip().lower() for part in parameter.partition("="))
        if name != "top":
            continue
        if value == "all":
            return sys.maxsize
        if not re.fullmatch("[1-9][0-9]{0,8}", value):
            raise RequestError(406, f"accept {choice!r}: top must be a number from 1, or all")
        return int(value)
    return None


def describe(
    answer: Tensor, model: Model, size: tuple[int, int] = (0, 0), top: int | None = None
) -> dict[str, Any]:
    """Convert the answer for one image to plain values, in the form of the model's task.

    `size`: the image's height and width. `top`: see `Accepted`. Raises RequestError (500) for an
    answer that is not finite.
    """
    if not np.isfinite(answer.numpy()).all():
        raise RequestError(500, "the model's answer is NaN or infinite")
    return model.task.describe(answer, size, top)


def format_predictions(predictions: list[dict[str, Any]], kind: str) -> bytes:
    """Returns the predictions as JSON {"predictions": [...]}, as a JSON line per image, or the PNG
    of the only image. In JSON, it is text in base64."""
    if kind == PNG:
        if len(predictions) > 1:
            message = f"accept {PNG}: answers one image; send one, or accept {JSON}"
            raise RequestError(406, message)
        return next(each for each in predictions[0].values() if isinstance(each, bytes))
    if kind == JSON:
        return msgspec.json.encode({"predictions": predictions})
    return msgspec.json.Encoder().encode_lines(predictions)
