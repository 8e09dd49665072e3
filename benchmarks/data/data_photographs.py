"""Real photographs for the data benchmarks."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch

from custom_op import add_restart_markers, jpeg_headers
from tests.photographs import write_photo_folder


def photograph_files(folder: Path, per_class: int) -> list[Path]:
    """Crops of eight photographs as JPEG files of varied size, quality and subsampling."""
    write_photo_folder(folder, train=per_class, val=0)
    return sorted(folder.rglob("*.jpg"))


def indexed_photographs(per_class: int = 25, interval: int = 4) -> list[tuple[bytes, int, int]]:
    """Restart-indexed upright JPEGs with the height and width of their stored pixels."""
    with tempfile.TemporaryDirectory() as folder:
        photographs = []
        for file in photograph_files(Path(folder, "photographs"), per_class):
            original = torch.from_numpy(np.fromfile(file, dtype=np.uint8))
            jpeg = add_restart_markers(original, interval)
            ((height, width, orientation),) = jpeg_headers([jpeg]).tolist()
            if orientation == 1:
                photographs.append((jpeg.numpy().tobytes(), height, width))
        return photographs
