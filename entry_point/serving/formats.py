"""The forms of requests and answers: JSON, JSON lines, CSV; one image or several."""

from __future__ import annotations

import base64
import csv
import io
import json
import logging
import math
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from python_multipart import FormParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import File, parse_options_header

from entry_point.class_masks import as_png, class_mask, shares_of_classes
from entry_point.model_folder import Model

JSON, CSV = "application/json", "text/csv"
JSON_LINES, PNG = "application/jsonlines", "image/png"
TEXTS = (JSON, JSON_LINES, CSV)
FORM = "multipart/form-data"
_IMAGE = "application/x-image"
_UNNAMED = ("", "application/x-www-form-urlencoded")
_ALIASES = dict.fromkeys(("application/x-jsonlines", "application/x-ndjson"), JSON_LINES)


# It logs what clients do wrong.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)


class RequestError(ValueError):
    """A request that cannot be answered: its HTTP status, and what is wrong in one line."""

    def __init__(self, status_code: int, message: str) -> None:
        super().__init__(message)
        self.status_code, self.message = status_code, message


def read_instances(body: bytes | bytearray, content_type: str) -> list[bytes | bytearray]:
    """The encoded images of a request.

    - One image: image/*, application/x-image, application/octet-stream.
    - JSON: {"instances": [INSTANCE, ...]}. An instance is an image in base64, a data URL, or an
      object with one of them as `b64` or `image`.
    - JSON lines: an instance per line.
    - A form, multipart/form-data: each of its files.
    - No type, or curl's default for --data-binary: JSON if it begins like that, else one image.

    Raises RequestError.
    """
    instances = _split(body, content_type)
    if not instances:
        raise RequestError(400, "the body: holds no images; send at least one")
    return instances


def is_image(body: bytes | bytearray, content_type: str) -> bool:
    """Whether the body is one image, which nothing has to parse."""
    kind = _kind(body, content_type)
    return kind.startswith("image/") or kind in (_IMAGE, "application/octet-stream")


def _kind(body: bytes | bytearray, content_type: str) -> str:
    kind = media_type(content_type)
    if kind in _UNNAMED:
        kind = JSON if body[:100].lstrip()[:1] == b"{" else _IMAGE
    return kind


def _split(body: bytes | bytearray, content_type: str) -> list[bytes | bytearray]:
    if is_image(body, content_type):
        return [body]
    kind = _kind(body, content_type)
    if kind == FORM:
        return _read_form(body, content_type)
    if kind == JSON:
        document = _parse_json(body, "the body")
        instances = document.get("instances") if isinstance(document, dict) else None
        if not isinstance(instances, list):
            raise RequestError(400, 'the body: must be {"instances": [BASE64, ...]}')
        return [_decode_base64(each, f"instances[{i}]") for i, each in enumerate(instances)]
    if kind == JSON_LINES:
        all_lines: list[Any] = [*body.splitlines()]
        lines = [(i, line) for i, line in enumerate(all_lines, 1) if line.strip()]
        return [_decode_base64(_parse_json(line, f"line {i}"), f"line {i}") for i, line in lines]
    allowed = f"image/*, {_IMAGE}, {FORM}, {JSON} or {JSON_LINES}"
    raise RequestError(415, f"content type {content_type!r}: must be {allowed}")


def media_type(text: str) -> str:
    """The media type without parameters, in lower case, under one name."""
    kind = text.split(";")[0].strip().lower()
    return _ALIASES.get(kind, kind)


def _parse_json(text: bytes | bytearray, place: str) -> Any:
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
    try:
        if content.startswith("data:"):
            content = content.partition(";base64,")[2]
        # `base64 FILE` and MIME break lines.
        text = content.encode("ascii").translate(None, b" \t\r\n")
        return base64.b64decode(text, validate=True)
    except (AttributeError, ValueError) as error:
        raise RequestError(400, f"{place}: must be an image in base64") from error


def _read_form(body: bytes | bytearray, content_type: str) -> list[bytes | bytearray]:
    """The files of a form. Other fields are ignored."""
    _, options = parse_options_header(content_type)
    files: list[bytes | bytearray] = []

    def keep(file: File) -> None:
        file.file_object.seek(0)
        files.append(file.file_object.read())

    try:
        parser = FormParser(
            FORM,
            on_field=None,
            on_file=keep,
            boundary=options.get(b"boundary"),
            config={"MAX_MEMORY_FILE_SIZE": math.inf},  # never on a disk
        )
        parser.write(bytes(body))
        parser.finalize()
    except FormParserError as error:
        must = "must be a form with the boundary that Content-Type names"
        raise RequestError(400, f"the body: {must}") from error
    return files


def describe(
    answers: torch.Tensor, model: Model, sizes: Sequence[tuple[int, int]] = ()
) -> list[dict[str, Any]]:
    """Convert answers to plain values, by the model's kind. Masks need the images' heights and
    widths in pixels, `sizes`.

    - `classification`: `class` (the likeliest), its `probability`, and all `probabilities` by name.
    - `multilabel`: `labels` that reach the threshold, and all `probabilities` by name.
    - `regression`: `values` by name.
    - `segmentation`: `mask`, a PNG of the image's size in base64, and the `shares` of its pixels
      by name.
    """
    if model.kind == "segmentation":
        pairs = zip(answers, sizes, strict=True)
        return [_mask(class_mask(answer, *size), model) for answer, size in pairs]
    # What Python's round() makes of a float32, in a fraction of the time.
    rounded = (answers.double() * 1e6).round() / 1e6
    rows = zip(answers.tolist(), rounded.tolist(), strict=True)
    return [_DESCRIBE[model.kind](row, short, model) for row, short in rows]


def _classes(row: list[float], rounded: list[float], model: Model) -> dict[str, Any]:
    likeliest = row.index(max(row))
    return {
        "class": model.names[likeliest],
        "probability": rounded[likeliest],
        "probabilities": dict(zip(model.names, rounded, strict=True)),
    }


def _labels(row: list[float], rounded: list[float], model: Model) -> dict[str, Any]:
    found = [name for name, p in zip(model.names, row, strict=True) if p >= model.threshold]
    return {"labels": found, "probabilities": dict(zip(model.names, rounded, strict=True))}


def _numbers(row: list[float], _: list[float], model: Model) -> dict[str, Any]:
    named = zip(model.names, row, strict=True)
    return {"values": {name: float(f"{value:.7g}") for name, value in named}}


def _mask(mask: NDArray[np.uint8], model: Model) -> dict[str, Any]:
    shares = shares_of_classes(mask, len(model.names)).tolist()
    return {
        "mask": base64.b64encode(as_png(mask)).decode(),
        "shares": {name: round(each, 6) for name, each in zip(model.names, shares, strict=True)},
    }


_DESCRIBE = {"classification": _classes, "multilabel": _labels, "regression": _numbers}


def csv_line(prediction: dict[str, Any]) -> list[Any]:
    """A prediction as a CSV line.

    A class and its probability; or the labels found, separated by `|`, and every label's
    probability; or the numbers; or the shares of a mask.
    """
    if "shares" in prediction:
        return list(prediction["shares"].values())
    if "class" in prediction:
        return [prediction["class"], prediction["probability"]]
    if "labels" in prediction:
        return ["|".join(prediction["labels"]), *prediction["probabilities"].values()]
    return list(prediction["values"].values())


def formats_of(kind: str) -> tuple[str, ...]:
    """The formats of the answers of a model of this kind."""
    return (*TEXTS, PNG) if kind == "segmentation" else TEXTS


def choose_format(accept: str, formats: Sequence[str]) -> str:
    """The format that an Accept header prefers.

    Raises RequestError (406) if it accepts none.
    """
    wanted = []
    for position, choice in enumerate(accept.split(",") if accept.strip() else ["*/*"]):
        stated = re.search(r";\s*q\s*=\s*(\d*\.?\d+)", choice)
        wanted.append((-float(stated[1]) if stated else -1.0, position, media_type(choice)))
    refused = {kind for weight, _, kind in wanted if not weight}
    for weight, _, kind in sorted(wanted):
        for known in formats:
            matches = kind in (known, "*/*", f"{known.partition('/')[0]}/*")
            if weight and matches and known not in refused:
                return known
    allowed = f"{', '.join(formats[:-1])} or {formats[-1]}"
    raise RequestError(406, f"accept {accept!r}: must include {allowed}")


def format_predictions(predictions: list[dict[str, Any]], kind: str) -> bytes | str:
    """The predictions in one of the formats that `choose_format` returns.

    JSON {"predictions": [...]}, a JSON line per image, CSV lines (see `csv_line`), or the mask of
    the only image.
    """
    if kind == PNG:
        if len(predictions) > 1:
            must = f"accept {PNG}: answers one image; send one, or accept {JSON}"
            raise RequestError(406, must)
        return base64.b64decode(predictions[0]["mask"])
    if kind == JSON:
        return msgspec.json.encode({"predictions": predictions})
    if kind == JSON_LINES:
        return msgspec.json.Encoder().encode_lines(predictions)
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerows(map(csv_line, predictions))
    return lines.getvalue()
