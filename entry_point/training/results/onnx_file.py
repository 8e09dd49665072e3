"""Writes model/model.onnx, for runtimes without torch (`trainer.onnx=true`)."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import DataConfig
from entry_point.contract.whole_file import replacing
from entry_point.model_folder import Answers, exported
from entry_point.training.models import Normalize
from entry_point.training.tasks.task import Export

NAME = "model.onnx"
TOLERANCE = 1e-4
"""Largest difference between the answers of the model and of the file: absolute, and for answers
above 1 relative to the largest."""
_PACKAGES = ("onnx", "onnxruntime", "onnxscript")


def require_onnx() -> None:
    """Raise ConfigError, before any work is done, if a package is missing."""
    if missing := [name for name in _PACKAGES if find_spec(name) is None]:
        raise ConfigError(
            "trainer.onnx",
            True,
            f"needs {', '.join(missing)}: run `make setup EXTRAS=onnx`, or build the "
            "image with `make image EXTRAS=onnx`",
        )


def save_onnx(folder: Path, model: nn.Module, data: DataConfig, export: Export) -> None:
    """Export the model with its preprocessing, for batches of any size, and compare it with torch.

    Input `images`: uint8 RGB (N, 3, S, S). Output: float32 answers (N, names).
    """
    import onnxruntime

    answers = on_cpu(model, data, export.head)
    with warnings.catch_warnings(), replacing(folder / NAME) as temporary:
        warnings.simplefilter("ignore")  # about the exporter's internals
        graph = exported(answers, data.image_size)
        program = torch.onnx.export(graph, dynamo=True, verbose=False, input_names=["images"])
        assert program is not None
        program.save(temporary, external_data=False)
        session = onnxruntime.InferenceSession(temporary, providers=["CPUExecutionProvider"])

        def run_session(images: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(session.run(None, {"images": images.numpy()})[0])

        check_same(answers, run_session, data)


def on_cpu(model: nn.Module, data: DataConfig, head: nn.Module) -> Answers:
    """A copy of the model on the CPU, for evaluation, with its preprocessing and its head."""
    normalize = Normalize(data.mean, data.std)
    return Answers(copy.deepcopy(model).cpu(), normalize, copy.deepcopy(head).cpu()).eval()


@torch.inference_mode()
def check_same(answers: Answers, other: Callable[[Tensor], Tensor], data: DataConfig) -> None:
    """Raise ValueError unless `other` computes the same, for batches of several sizes."""
    draw = torch.Generator().manual_seed(0)
    for size in (1, 3):
        shape = (size, 3, data.image_size, data.image_size)
        images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=draw)
        expected = answers(images)
        off = float((other(images) - expected).abs().max())
        allowed = TOLERANCE * max(1.0, float(expected.abs().max()))
        if not off <= allowed:
            raise ValueError(
                f"it computes other answers than the model: {off:.2g} off in a batch of {size}, "
                f"{allowed:g} allowed"
            )
