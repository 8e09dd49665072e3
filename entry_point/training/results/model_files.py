"""Writes `model/`: the weights, and a program that deploys without this code."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from entry_point import inference
from entry_point.config.data_config import DataConfig
from entry_point.contract.run_folder import RunFolder
from entry_point.contract.whole_file import replacing, write_text
from entry_point.training.device_transform import FromRgb
from entry_point.training.tensor_file import save_tensors

REQUIREMENTS = "pillow\n"
TRAINING_CONFIG = "training.yaml"
TOLERANCE = 1e-4
"""Largest difference between the probabilities of the model and of what is exported."""


class Probabilities(nn.Module):
    """uint8 RGB `(N, 3, S, S)` -> float32 probabilities `(N, classes)`, preprocessing included."""

    def __init__(self, model: nn.Module, from_rgb: FromRgb) -> None:
        super().__init__()
        self.from_rgb, self.model = from_rgb, model

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(self.from_rgb(images))
        return logits.float().softmax(1)


def save_model(run: RunFolder, model: nn.Module, classes: list[str], config_yaml: str) -> None:
    """Write model/model.pt (a state dict on the CPU), classes.json and training.yaml.

    AWS's newer inference containers read a config.yaml as their own settings.
    """
    state = {key: value.detach().cpu() for key, value in model.state_dict().items()}
    save_tensors(state, run.model / "model.pt")
    write_text(run.model / "classes.json", json.dumps(classes, ensure_ascii=False) + "\n")
    write_text(run.model / TRAINING_CONFIG, config_yaml)


def save_program(run: RunFolder, model: nn.Module, data: DataConfig) -> None:
    """Write model/model.pt2 and code/inference.py, which serve the model."""
    source = Path(inference.__file__).read_text(encoding="utf-8")
    # The torch version that exported a program can load it, and newer versions can.
    settings = {
        "image_size": data.image_size,
        "resize": data.resize,
        "torch": torch.__version__,
        # Tells this file from one that a person has changed.
        "code_sha256": hashlib.sha256(source.encode()).hexdigest(),
    }
    probabilities = on_cpu(model, data)
    program = io.BytesIO()  # torch's file writer ends the process if the disk is full
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about torch internals
        torch.export.save(export(probabilities, data), program)
    with replacing(run.model / inference.PROGRAM, needed=program.tell()) as temporary:
        temporary.write_bytes(program.getbuffer())
        loaded = inference.load_program(temporary, torch.device("cpu"), torch.__version__)
        check_same(probabilities, loaded, data)
    write_text(run.model / inference.SETTINGS, json.dumps(settings) + "\n")
    write_text(run.model / "code" / "inference.py", source)
    write_text(run.model / "code" / "requirements.txt", REQUIREMENTS)


def on_cpu(model: nn.Module, data: DataConfig) -> Probabilities:
    """A copy of the model on the CPU, for evaluation, with its preprocessing."""
    return Probabilities(copy.deepcopy(model).cpu(), FromRgb(data)).eval()


def export(probabilities: Probabilities, data: DataConfig) -> torch.export.ExportedProgram:
    """Export for batches of any size."""
    example = torch.zeros(2, 3, data.image_size, data.image_size, dtype=torch.uint8)
    shapes = {"images": {0: torch.export.Dim("batch")}}
    return torch.export.export(probabilities, (example,), dynamic_shapes=shapes)


@torch.inference_mode()
def check_same(
    probabilities: Probabilities, exported: Callable[[torch.Tensor], torch.Tensor], data: DataConfig
) -> None:
    """Raise ValueError unless `exported` computes the same, for batches of several sizes."""
    draw = torch.Generator().manual_seed(0)
    for size in (1, 3):
        shape = (size, 3, data.image_size, data.image_size)
        images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=draw)
        off = float((exported(images) - probabilities(images)).abs().max())
        if not off <= TOLERANCE:
            raise ValueError(
                f"it computes other probabilities than the model: {off:.2g} off in a batch of "
                f"{size}, {TOLERANCE} allowed"
            )
