"""Predicts images with the model folder of a finished run.

Training copies this file to `model/code/inference.py`, so it imports only torch and Pillow. There
SageMaker's PyTorch inference toolkit calls `model_fn`, `input_fn`, `predict_fn` and `output_fn`,
if its torch can load the program. `entry_point.predict` and `entry_point.serve` use the same
functions.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch.export.passes import move_to_device_pass

PROGRAM = "model.pt2"
SETTINGS = "inference.json"
CLASSES = "classes.json"

# torch.export.load trusts its file: it runs pickles and compiled code in it, and evaluates its text
# as Python. So a program may hold only what an exported network consists of.
_FILES = re.compile(
    r"archive_format|archive_version|byteorder|version|\.data/\w+|models/model\.json"
    r"|data/(weights|constants)/model_\w+_config\.json|data/sample_inputs/model\.pt"
    r"|data/weights/weight_\d+|data/constants/tensor_\d+"
)
_NAME = re.compile(r"[\w.-]*")
_TREE = re.compile(
    r'("(type|context|children_spec|builtins\.(tuple|list|dict)|null|\[\])"|null|\d|[][{},:\s])*'
)
_TEXTS = {
    "target": re.compile(
        r"torch\.ops\.aten\.(?!(save|from_file)\.)\w+\.\w+|torch\.sym_\w+|math\.\w+"
        r"|torch\.ops\.higher_order\.wrap_with_(autocast|set_grad_enabled)"
        r"|_operator\.(add|and_|eq|floordiv|ge|getitem|gt|le|lt|mod|mul|ne|neg|or_|pow|sub|truediv)"
    ),
    "expr_str": re.compile(
        r"(Symbol\('[a-z]+\d+'|[a-z]+=(True|False)|[A-Z][A-Za-z]*|[a-z]+\d+|\d+(\.\d+)?"
        r"|[-+*/(),<>=~&|\s])*"
    ),
    "in_spec": _TREE,
    "out_spec": _TREE,
    "guards_code": re.compile(r"(?!)"),
}
_INERT = ("metadata", "torch_version", "as_string", "as_strings")


JSON, CSV = "application/json", "text/csv"
JSON_LINES = "application/jsonlines"
_ALIASES = dict.fromkeys(("application/x-jsonlines", "application/x-ndjson"), JSON_LINES)


class ModelError(RuntimeError):
    """The model folder cannot be loaded; the message says what to do."""


def _toolkit_error() -> Any:
    """The base class of errors that the toolkit answers with their own status, not with 500."""
    try:
        return import_module("sagemaker_inference.errors").BaseInferenceToolkitError
    except ImportError:
        return Exception


class RequestError(ValueError, _toolkit_error()):  # type: ignore[misc]
    """A request that cannot be answered: its HTTP status, and what is wrong in one line."""

    def __init__(self, status_code: int, message: str) -> None:
        ValueError.__init__(self, message)
        self.status_code, self.message, self.phrase = status_code, message, message


@dataclass(frozen=True)
class Model:
    """A loaded model. `program` maps uint8 `(N, 3, S, S)` to answers `(N, names)`: probabilities,
    or for the kind `regression` numbers."""

    program: torch.nn.Module
    kind: str
    names: list[str]
    threshold: float
    image_size: int
    resize: int
    device: torch.device


def model_fn(model_dir: str, context: Any = None) -> Model:
    """Load a model folder that training wrote, on the GPU that `context` names, if any.

    Raises:
        ModelError: a file is missing or damaged, or this torch cannot read it.
    """
    folder = Path(model_dir)
    settings, names = (_read_json(folder / name) for name in (SETTINGS, CLASSES))
    try:
        made_with, image_size, resize = (settings[k] for k in ("torch", "image_size", "resize"))
    except KeyError as error:
        raise ModelError(
            f"{folder / SETTINGS} has no {error}: another version of this code wrote it; start the "
            "finished run again, which rewrites its model"
        ) from error
    kind, threshold = settings.get("kind", "classification"), settings.get("threshold", 0.5)
    if kind not in _DESCRIBE:
        raise ModelError(
            f"{folder / SETTINGS}: kind={kind!r}: this code knows {', '.join(_DESCRIBE)}; use the "
            "code/inference.py beside it, or the image that trained the model"
        )
    device = _device(context)
    program = load_program(folder / PROGRAM, device, made_with)
    return Model(program, kind, names, threshold, image_size, resize, device)


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read ({error}): copy the model again") from error


def _device(context: Any) -> torch.device:
    """The toolkit starts one worker per GPU and numbers them."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    number = None if context is None else context.system_properties.get("gpu_id")
    return torch.device("cuda", int(number or 0))


def load_program(path: Path, device: torch.device, made_with: str) -> torch.nn.Module:
    """Load the exported program on `device`.

    It was traced on a CPU, and its constants and checks name that device: moving the resulting
    module would not change them. No code that the file contains is executed.
    """
    try:
        content = path.read_bytes()
        check_program(path, content)
        with _without_pickles():
            program = torch.export.load(io.BytesIO(content))
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"{path} was made with torch {made_with} and cannot be loaded by torch "
            f"{torch.__version__} ({type(error).__name__}): copy the model again, or use a "
            f"container with torch {made_with} or newer"
        ) from error
    if device.type != "cpu":
        # By default, convolutions on a GPU round to the 10 bits of TF32, unlike those on a CPU.
        torch.backends.cudnn.allow_tf32 = False
        program = move_to_device_pass(program, str(device))
    return program.module()


@contextmanager
def _without_pickles() -> Iterator[None]:
    """Have torch.load, which torch.export.load calls for parts of a program, refuse to run code."""
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def check_program(path: Path, content: bytes) -> None:
    """Raise ModelError if `content`, read from `path`, holds more than an exported network."""
    reader = torch._C.PyTorchFileReader(io.BytesIO(content))
    files = [name for name in reader.get_all_records() if not _FILES.fullmatch(name)]
    # A file of this name makes torch read the rest in an older format, all of it pickles.
    files += [n for n in zipfile.ZipFile(io.BytesIO(content)).namelist() if n == "version"]
    texts = _foreign_texts(json.loads(reader.get_record("models/model.json")))
    for foreign in (*files, *texts):
        raise ModelError(
            f"{path}: {foreign[:80]!r} is not part of a program that training writes; the file is "
            "not loaded, since it could run code: copy the model again from its run"
        )


def _foreign_texts(value: Any, key: str = "") -> Iterator[str]:
    """The texts below `key` that torch might evaluate to something other than a network."""
    if isinstance(value, dict):
        for name, below in value.items():
            yield from (() if _NAME.fullmatch(name) else (name,))
            yield from (() if name in _INERT else _foreign_texts(below, name))
    elif isinstance(value, list):
        for below in value:
            yield from _foreign_texts(below, key)
    elif isinstance(value, str) and not _TEXTS.get(key, _NAME).fullmatch(value):
        yield value


def read_image(content: bytes | bytearray) -> Image.Image:
    """Decode any format that Pillow reads, upright and RGB. Raises ValueError if damaged."""
    try:
        with Image.open(io.BytesIO(content)) as image:
            return ImageOps.exif_transpose(image).convert("RGB")
    except UnidentifiedImageError as error:
        raise ValueError("is not an image that Pillow can read") from error
    except Exception as error:  # Pillow raises errors of many types for damaged files
        raise ValueError(f"cannot be read as an image: {error}") from error


def prepare(image: Image.Image, image_size: int, resize: int) -> torch.Tensor:
    """The center crop that validation uses: uint8 `(3, image_size, image_size)`."""
    width, height = image.size
    side = max(1, round(min(width, height) * image_size / resize))
    left, top = (width - side) // 2, (height - side) // 2
    sample = image.crop((left, top, left + side, top + side)).resize(
        (image_size, image_size), Image.Resampling.BILINEAR
    )
    pixels = torch.frombuffer(bytearray(sample.tobytes()), dtype=torch.uint8)
    return pixels.view(image_size, image_size, 3).permute(2, 0, 1)


def read_instances(body: bytes | bytearray | str, content_type: str) -> list[bytes | bytearray]:
    """The encoded images of a request, in one of three forms.

    - One image: image/*, application/x-image.
    - JSON: {"instances": [BASE64, ...]}; an instance may also be {"image": BASE64}.
    - JSON lines: an instance per line.

    Raises RequestError.
    """
    instances = _split(body, media_type(content_type), content_type)
    if not instances:
        raise RequestError(400, "the body: holds no images; send at least one")
    return instances


def _split(body: bytes | bytearray | str, kind: str, content_type: str) -> list[bytes | bytearray]:
    if kind.startswith("image/") or kind in ("application/x-image", "application/octet-stream", ""):
        return [body.encode() if isinstance(body, str) else body]
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
    allowed = f"image/*, application/x-image, {JSON} or {JSON_LINES}"
    raise RequestError(415, f"content type {content_type!r}: must be {allowed}")


def media_type(text: str) -> str:
    """The media type without parameters, in lower case, under one name."""
    kind = text.split(";")[0].strip().lower()
    return _ALIASES.get(kind, kind)


def _parse_json(text: bytes | bytearray | str, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"{place}: is not JSON ({error})") from error


def _decode_base64(instance: Any, place: str) -> bytes:
    content: Any = instance.get("image") if isinstance(instance, dict) else instance
    try:
        return base64.b64decode(content, validate=True)
    except (TypeError, ValueError) as error:
        raise RequestError(400, f"{place}: must be an image in base64 ({error})") from error


def input_fn(body: bytes | str, content_type: str) -> list[Image.Image]:
    """Decode the images of a request, see `read_instances`. Raises RequestError."""
    images = []
    for number, content in enumerate(read_instances(body, content_type)):
        try:
            images.append(read_image(content))
        except ValueError as error:
            raise RequestError(400, f"image {number}: {error}") from error
    return images


def predict_fn(images: list[Image.Image], model: Model) -> list[dict[str, Any]]:
    """The prediction for each image, see `describe`."""
    batch = torch.stack([prepare(image, model.image_size, model.resize) for image in images])
    return describe(predict_batch(batch, model), model)


@torch.inference_mode()
def predict_batch(batch: torch.Tensor, model: Model) -> torch.Tensor:
    """uint8 `(N, 3, S, S)` -> float32 answers `(N, names)` on the CPU."""
    answers: torch.Tensor = model.program(batch.to(model.device))
    return answers.float().cpu()


def describe(answers: torch.Tensor, model: Model) -> list[dict[str, Any]]:
    """Convert answers `(N, names)` to plain values, by the model's kind.

    - `classification`: `class` (the likeliest), its `probability`, and all `probabilities` by name.
    - `multilabel`: `labels` that reach the threshold, and all `probabilities` by name.
    - `regression`: `values` by name.
    """
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


_DESCRIBE = {"classification": _classes, "multilabel": _labels, "regression": _numbers}


def csv_line(prediction: dict[str, Any]) -> list[Any]:
    """A prediction as a CSV line.

    A class and its probability; or the labels found, separated by `|`, and every label's
    probability; or the numbers.
    """
    if "class" in prediction:
        return [prediction["class"], prediction["probability"]]
    if "labels" in prediction:
        return ["|".join(prediction["labels"]), *prediction["probabilities"].values()]
    return list(prediction["values"].values())


def choose_format(accept: str) -> str:
    """The format that an Accept header prefers, of those that `output_fn` writes.

    Raises RequestError (406) if it accepts none.
    """
    wanted = []
    for position, choice in enumerate(accept.split(",") if accept.strip() else ["*/*"]):
        stated = re.search(r";\s*q\s*=\s*(\d*\.?\d+)", choice)
        wanted.append((-float(stated[1]) if stated else -1.0, position, media_type(choice)))
    refused = {kind for weight, _, kind in wanted if not weight}
    for weight, _, kind in sorted(wanted):
        for known in (JSON, JSON_LINES, CSV):
            matches = kind in (known, "*/*", f"{known.partition('/')[0]}/*")
            if weight and matches and known not in refused:
                return known
    raise RequestError(406, f"accept {accept!r}: must include {JSON}, {JSON_LINES} or {CSV}")


def output_fn(predictions: list[dict[str, Any]], accept: str) -> str:
    """Format as JSON {"predictions": [...]}, as a JSON line per image, or as CSV lines.

    For a CSV line see `csv_line`. Raises RequestError.
    """
    kind = choose_format(accept)
    if kind == JSON:
        return json.dumps({"predictions": predictions}, ensure_ascii=False)
    if kind == JSON_LINES:
        return "".join(json.dumps(p, ensure_ascii=False) + "\n" for p in predictions)
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerows(map(csv_line, predictions))
    return lines.getvalue()
