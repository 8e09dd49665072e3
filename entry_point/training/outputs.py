"""What a finished run leaves behind for others to use."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn

from entry_point.run_folder import RunFolder
from entry_point.training import atomic


def save_model(run: RunFolder, model: nn.Module, classes: list[str], config_yaml: str) -> Path:
    """Write model/model.pt (a state dict on the CPU), classes.json and config.yaml."""
    path = run.model / "model.pt"
    state = {key: value.detach().cpu() for key, value in model.state_dict().items()}
    with atomic.replacing(path) as temporary:
        torch.save(state, temporary)
    atomic.write_text(run.model / "classes.json", json.dumps(classes, ensure_ascii=False) + "\n")
    atomic.write_text(run.model / "config.yaml", config_yaml)
    return path
