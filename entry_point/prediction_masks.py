"""The masks that `entry_point.predict` writes: a PNG for each image, of its size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from torch import Tensor

from entry_point.class_masks import as_png, class_mask, shares_of_classes
from entry_point.data.plan.crops import Geometry
from entry_point.job.whole_file import replacing

_FOLDER = "masks"


def mask_file(name: str) -> str:
    """Where an image's mask is, below the predictions' folder: `masks/a/1.jpg.png`."""
    name = name.encode(errors="backslashreplace").decode()  # the table's texts are UTF-8
    parts = ["_" if part == ".." else part for part in PurePosixPath(f"/{name}").parts[1:]]
    return f"{_FOLDER}/{'/'.join(parts)}.png"


def write_masks(
    folder: Path, names: Sequence[str], answers: Tensor, geometry: Geometry | None
) -> Tensor:
    """Write the masks below the folder; returns each one's shares of classes, float32 `(N,
    classes)`.

    Args:
        answers: Probabilities of whole images, float32 `(N, classes, h, w)`.
        geometry: Has the images' sizes.
    """
    assert geometry is not None
    shares = []
    for i, (name, answer) in enumerate(zip(names, answers, strict=True)):
        mask = class_mask(answer, int(geometry.heights[i]), int(geometry.widths[i]))
        file = folder / mask_file(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as unfinished:
            unfinished.write_bytes(as_png(mask))
        shares.append(shares_of_classes(mask, answers.shape[1]))
    return torch.from_numpy(np.stack(shares))
