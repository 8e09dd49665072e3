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
from entry_point.training.normalize import Normalize
from entry_point.training.tasks.task import Export
from entry_point.training.tensor_file import save_tensors

REQUIREMENTS = "pillow\n"
TRAINING_CONFIG = "training.yaml"
TOLERANCE = 1e-4
"""Largest difference between the answers of the model and of what is exported: absolute, and for
answers above 1 relative to the largest."""


class Answers(nn.Module):
    """uint8 RGB `(N, 3, S, S)` -> float32 answers `(N, names)`, preprocessing included."""

    def __init__(self, model: nn.Module, normalize: Normalize, head: nn.Module) -> None:
        super().__init__()
        self.normalize, self.model, self.head = normalize, model, head

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.model(self.normalize(images))
        answers: torch.Tensor = self.head(outputs.float())
        return answers


def save_model(run: RunFolder, model: nn.Module, names: list[str], config_yaml: str) -> None:
    """Write model/model.pt (a state dict on the CPU), classes.json and training.yaml.

    AWS's newer inference containers read a config.yaml as their own settings.
    """
    state = {key: value.detach().cpu() for key, value in model.state_dict().items()}
    save_tensors(state, run.model / "model.pt")
    write_text(run.model / "classes.json", json.dumps(names, ensure_ascii=False) + "\n")
    write_text(run.model / TRAINING_CONFIG, config_yaml)


def save_program(run: RunFolder, model: nn.Module, data: DataConfig, export: Export) -> None:
    """Write model/model.pt2 and code/inference.py, which serve the model."""
    source = Path(inference.__file__).read_text(encoding="utf-8")
    # The torch version that exported a program can load it, and newer versions can.
    settings = {
        "image_size": data.image_size,
        "resize": data.resize,
        "kind": export.kind,
        **export.settings,
        "torch": torch.__version__,
        # Tells this file from one that a person has changed.
        "code_sha256": hashlib.sha256(source.encode()).hexdigest(),
    }
    answers = on_cpu(model, data, export.head)
    program = io.BytesIO()  # torch's file writer ends the process if the disk is full
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about torch internals
        torch.export.save(exported(answers, data), program)
    with replacing(run.model / inference.PROGRAM) as temporary:
        temporary.write_bytes(program.getbuffer())
        loaded = inference.load_program(temporary, torch.device("cpu"), torch.__version__)
        check_same(answers, loaded, data)
    write_text(run.model / inference.SETTINGS, json.dumps(settings) + "\n")
    write_text(run.model / "code" / "inference.py", source)
    write_text(run.model / "code" / "requirements.txt", REQUIREMENTS)


def on_cpu(model: nn.Module, data: DataConfig, head: nn.Module) -> Answers:
    """A copy of the model on the CPU, for evaluation, with its preprocessing and its head."""
    normalize = Normalize(data.mean, data.std)
    return Answers(copy.deepcopy(model).cpu(), normalize, copy.deepcopy(head).cpu()).eval()


def exported(answers: Answers, data: DataConfig) -> torch.export.ExportedProgram:
    """Export for batches of any size."""
    example = torch.zeros(2, 3, data.image_size, data.image_size, dtype=torch.uint8)
    shapes = {"images": {0: torch.export.Dim("batch")}}
    return torch.export.export(answers, (example,), dynamic_shapes=shapes)


@torch.inference_mode()
def check_same(
    answers: Answers, other: Callable[[torch.Tensor], torch.Tensor], data: DataConfig
) -> None:
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
