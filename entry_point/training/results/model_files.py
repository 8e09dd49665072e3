"""Writes `model/`: the weights, and a program that deploys without this code."""

from __future__ import annotations

import copy
import io
import json
import warnings
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


class Probabilities(nn.Module):
    """uint8 RGB `(N, 3, S, S)` -> float32 probabilities `(N, classes)`, preprocessing included."""

    def __init__(self, model: nn.Module, from_rgb: FromRgb) -> None:
        super().__init__()
        self.from_rgb, self.model = from_rgb, model

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(self.from_rgb(images))
        return logits.float().softmax(1)


def save_model(run: RunFolder, model: nn.Module, classes: list[str], config_yaml: str) -> None:
    """Write model/model.pt (a state dict on the CPU), classes.json and config.yaml."""
    state = {key: value.detach().cpu() for key, value in model.state_dict().items()}
    save_tensors(state, run.model / "model.pt")
    write_text(run.model / "classes.json", json.dumps(classes, ensure_ascii=False) + "\n")
    write_text(run.model / "config.yaml", config_yaml)


def save_program(run: RunFolder, model: nn.Module, data: DataConfig) -> None:
    """Write model/model.pt2 and code/inference.py: model.tar.gz then deploys unchanged."""
    # The torch version that exported a program can load it, and newer versions can.
    settings = {
        "image_size": data.image_size,
        "resize": data.resize,
        "torch": torch.__version__,
    }
    program = io.BytesIO()  # torch's file writer ends the process if the disk is full
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about torch internals
        torch.export.save(export(model, data), program)
    with replacing(run.model / inference.PROGRAM, needed=program.tell()) as temporary:
        temporary.write_bytes(program.getbuffer())
    write_text(run.model / inference.SETTINGS, json.dumps(settings) + "\n")
    source = Path(inference.__file__).read_text(encoding="utf-8")
    write_text(run.model / "code" / "inference.py", source)
    write_text(run.model / "code" / "requirements.txt", REQUIREMENTS)


def export(model: nn.Module, data: DataConfig) -> torch.export.ExportedProgram:
    """Export the model and its preprocessing on the CPU, for batches of any size."""
    probabilities = Probabilities(copy.deepcopy(model).cpu(), FromRgb(data))
    example = torch.zeros(2, 3, data.image_size, data.image_size, dtype=torch.uint8)
    return torch.export.export(
        probabilities.eval(),
        (example,),
        dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
    )
