"""Writes model/model.onnx, for runtimes without torch (`trainer.onnx=true`)."""

from __future__ import annotations

import warnings
from importlib.util import find_spec

import torch
from torch import nn

from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import DataConfig
from entry_point.contract.run_folder import RunFolder
from entry_point.contract.whole_file import replacing
from entry_point.training.results.model_files import check_same, exported, on_cpu
from entry_point.training.tasks.task import Export

NAME = "model.onnx"
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


def save_onnx(run: RunFolder, model: nn.Module, data: DataConfig, export: Export) -> None:
    """Export the model with its preprocessing, for batches of any size, and compare it with torch.

    Input `images`: uint8 RGB (N, 3, S, S). Output: float32 answers (N, names).
    """
    import onnxruntime

    answers = on_cpu(model, data, export.head)
    with warnings.catch_warnings(), replacing(run.model / NAME) as temporary:
        warnings.simplefilter("ignore")  # about the exporter's internals
        program = torch.onnx.export(
            exported(answers, data), dynamo=True, verbose=False, input_names=["images"]
        )
        assert program is not None
        program.save(temporary, external_data=False)
        session = onnxruntime.InferenceSession(temporary, providers=["CPUExecutionProvider"])

        def run_session(images: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(session.run(None, {"images": images.numpy()})[0])

        check_same(answers, run_session, data)
