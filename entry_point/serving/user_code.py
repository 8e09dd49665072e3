"""The model's own `code/inference.py`, called as SageMaker's inference toolkit calls it."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from entry_point import inference
from entry_point.inference import ModelError, RequestError

logger = logging.getLogger(__name__)

HOOKS = ("model_fn", "input_fn", "predict_fn", "output_fn")
_TEXTS = (inference.JSON, inference.JSON_LINES, inference.CSV)


@dataclass(frozen=True)
class Call:
    """One request as the hooks take it. `accept` is not empty."""

    body: bytes | bytearray
    content_type: str
    accept: str

    def content(self) -> bytes | str:
        """The body; as in the toolkit, text is decoded."""
        try:
            is_text = inference.media_type(self.content_type) in _TEXTS
            return self.body.decode() if is_text else bytes(self.body)
        except UnicodeDecodeError as error:
            raise RequestError(400, f"the body: must be UTF-8 ({error.reason})") from error


def own_code(folder: Path) -> ModuleType | None:
    """The imported `code/inference.py` of a model folder; None if it is missing or training's.

    Raises ModelError.
    """
    file = folder / "code" / "inference.py"
    if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() == _written(folder):
        return None
    logger.info("this model has its own %s", file)
    sys.path.insert(0, str(file.parent))
    try:
        module = importlib.import_module("inference")
    except Exception as error:
        logger.exception("cannot import %s", file)
        raise ModelError(
            f"{file} cannot be imported ({type(error).__name__}: {_line(error)}): correct it, or "
            "ignore it with serve.user_code=false"
        ) from error
    if not any(hasattr(module, name) for name in HOOKS):
        raise ModelError(f"{file} defines none of {', '.join(HOOKS)}: define at least one")
    return module


def _written(folder: Path) -> str | None:
    """The hash of the file that training wrote."""
    try:
        settings = json.loads((folder / inference.SETTINGS).read_text(encoding="utf-8"))
        return str(settings.get("code_sha256"))
    except (OSError, ValueError, AttributeError):
        return None


def replaces_prediction(module: ModuleType) -> bool:
    """Whether more than the form of the answers is the model's own."""
    return any(hasattr(module, name) for name in HOOKS if name != "output_fn")


class Hooks:
    """The four functions: the model's own, and ours where it has none."""

    def __init__(self, module: ModuleType, model_dir: Path, gpu: int | None) -> None:
        self._module, self._model_dir = module, model_dir
        properties = {"model_dir": str(model_dir), "gpu_id": gpu}
        self._context = SimpleNamespace(system_properties=properties)

    def warm_up(self) -> None:
        """Load the model."""
        self._model = self._run("model_fn", str(self._model_dir))

    def __call__(self, calls: Sequence[Call], _at_work: int) -> list[Any]:
        """The answers, one by one."""
        return [self._answer(call) for call in calls]

    def format(self, predictions: list[dict[str, Any]], accept: str) -> Any:
        """Call `output_fn` alone."""
        return self._run("output_fn", predictions, accept)

    def _answer(self, call: Call) -> Any:
        """The answer, or the exception if the request is at fault; raises the others."""
        try:
            data = self._run("input_fn", call.content(), call.content_type)
        except ValueError as error:
            return error if hasattr(error, "status_code") else RequestError(400, _line(error))
        try:
            return self._run("output_fn", self._run("predict_fn", data, self._model), call.accept)
        except Exception as error:
            if hasattr(error, "status_code"):
                return error
            raise

    def _run(self, name: str, *arguments: Any) -> Any:
        function = getattr(self._module, name, None) or getattr(inference, name)
        # As in the toolkit, a function with one more parameter also gets the context.
        wants_context = len(inspect.signature(function).parameters) > len(arguments)
        return function(*arguments, *([self._context] if wants_context else []))


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
