"""Sources of the tests, most of them wrong; a setting names them by dotted path."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn import functional

from entry_point.data.plan.crops import Geometry
from entry_point.data.plan.samples import Ints
from entry_point.data.sources.source import FileSource


def without_read(_root: Path, _split: str) -> Any:
    return SimpleNamespace(classes=["a"], labels=torch.zeros(1))


def empty(_root: Path, _split: str) -> FileSource:
    return FileSource([], [], ["a", "b"])


def out_of_range(_root: Path, _split: str) -> FileSource:
    return FileSource(["a.jpg"], [2], ["a", "b"])


def named_twice(_root: Path, _split: str) -> FileSource:
    return FileSource(["a.jpg"], [0], ["a", "a"])


def wrong_shape(_root: Path, _split: str) -> FileSource:
    return FileSource(["a.jpg"], [[1.0]], ["a", "b"], "labels")


def not_finite(_root: Path, _split: str) -> FileSource:
    numbers = [[1.0, 2.0], [3.0, float("nan")]]
    return FileSource(["a.jpg", "b.jpg"], numbers, ["x", "y"], "numbers")


def of_no_kind(_root: Path, _split: str) -> FileSource:
    return FileSource(["a.jpg"], [[1.0]], ["a"], "boxes")  # type: ignore[arg-type]


def without_targets(_root: Path, _split: str) -> FileSource:
    return FileSource(["a.jpg"], [0], ["a", "b"], "targets")


class Bytes(FileSource):
    """Returns the photographs as Python's bytes."""

    def __init__(self, root: Path, split: str) -> None:
        files = sorted((root / split).glob("*/*.jpg"))
        super().__init__(files, [i % 2 for i in range(len(files))], ["even", "odd"])

    def read(self, index: int) -> Any:
        return Path(self.file(index)).read_bytes()


def by_split(root: Path, split: str) -> FileSource:
    """Has the classes that its split happens to hold: a val without `bus` numbers the others from
    0, too."""
    files = sorted((root / split).glob("*/*.jpg"))
    names = sorted({file.parent.name for file in files})
    return FileSource(files, [names.index(file.parent.name) for file in files], names)


def of_any_split(root: Path, _split: str) -> FileSource:
    files = sorted(root.rglob("*.jpg"))
    return FileSource(files, [i % 2 for i in range(len(files))], ["even", "odd"])


class OfNumpy(FileSource):
    """Has the names that `np.unique` finds."""

    def __init__(self, root: Path, split: str) -> None:
        files = sorted((root / split).glob("*/*.jpg"))
        names, numbers = np.unique([("even", "odd")[i % 2] for i in range(len(files))], False, True)
        super().__init__(files, numbers, list(names))


class Pixels(Bytes):
    """Returns decoded photographs."""

    def read(self, index: int) -> Tensor:  # noqa: ARG002
        return torch.zeros(4, 5, 3, dtype=torch.uint8)


class Brightness(FileSource):
    """The photographs of a split, with a mask of the bright pixels of each."""

    def __init__(self, root: Path, split: str) -> None:
        files = sorted((root / split).glob("*/*.jpg"))
        super().__init__(files, [0] * len(files), ["dark", "bright"], "targets")

    def targets(self, indices: Ints, geometry: Geometry) -> Tensor:
        return torch.stack([self._mask(int(i), geometry, n) for n, i in enumerate(indices)])

    def _mask(self, index: int, geometry: Geometry, place: int) -> Tensor:
        with Image.open(self.file(index)) as image:
            pixels = torch.from_numpy(np.array(ImageOps.exif_transpose(image).convert("RGB")))
        top, left, height, width = geometry.boxes[place].tolist()
        mask = pixels[top : top + height, left : left + width].float().mean(2) > 127
        cut = functional.interpolate(mask[None, None].byte(), geometry.side)[0, 0]
        return (cut.flip(1) if geometry.flips[place] else cut).long()
