"""Images with a mask each (data=masks), and what a sample of them shows.

A folder with `train/images/**`, `train/masks/**`, `val/images/**` and `val/masks/**`: the mask of
`images/a/1.jpg` is `masks/a/1.png`. Or a table whose rows name an image and its mask. The file
`classes.txt`, in the folder or beside the table, names the classes, one per line.

A mask is a PNG of its image's size, upright, with the number of the class of each pixel: the first
class is 0. Of a palette, the numbers count. Pixels of 255 belong to no class: nothing is learned
from them, and they do not count in an evaluation.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional

from entry_point.config.data_config import DataConfig
from entry_point.contract.printable import printable
from entry_point.data.errors import DataError
from entry_point.data.plan.crops import Geometry
from entry_point.data.plan.samples import Ints
from entry_point.data.sources.dataset_description import CLASS_NAME, is_class_name
from entry_point.data.sources.file_bytes import read_bytes
from entry_point.data.sources.folder import (
    CLASSES,
    IMAGE_SUFFIXES,
    IMAGES,
    MASKS,
    require_folder,
    visible_files,
)
from entry_point.data.sources.formats import is_table
from entry_point.data.sources.source import FileSource, joined

IGNORED, OUTSIDE = 255, 254
"""Values of pixels: of no class; and beyond the mask, where masks of several sizes lie in one
tensor."""
_MODES = ("1", "L", "P")
_SCALED = {"L;2": 85, "L;4": 17}
"""What Pillow multiplies gray values of 2 and 4 bits by."""
_LOOKED_AT = 256
"""Masks in which the second class of two is looked for."""


class MaskSource(FileSource):
    """The images of one split, sorted by path or in the order of the table.

    In training, a sample's target is its mask, cut, resized (nearest, by the centers of pixels, as
    images are) and flipped as the image was, uint8 `(side, side)`. In evaluation, it is what the
    box holds, in the image's pixels.
    """

    def __init__(
        self, images: Sequence[str], masks: Sequence[str], classes: list[str], folder: str
    ) -> None:
        """Paths of images and their masks, below `folder`."""
        super().__init__(images, [0] * len(images), classes, "targets")
        self._masks, self.folder = masks, folder
        self._numbers: NDArray[np.uint8] | None = None

    def renumber(self, classes: Sequence[str]) -> None:
        """Have masks hold positions in `classes`, which has all names of this dataset."""
        self._numbers = np.arange(256, dtype=np.uint8)
        self._numbers[: len(self.classes)] = [classes.index(name) for name in self.classes]

    def listing(self) -> Iterable[bytes]:
        """See ListedSource."""
        return joined([*map(str, self._files), *self._masks])

    def file(self, index: int) -> str:
        return f"{self.folder}/{self._files[index]}"

    def mask_file(self, index: int) -> str:
        return f"{self.folder}/{self._masks[index]}"

    def mask(self, index: int, height: int, width: int) -> NDArray[np.uint8]:
        """The class of each pixel of the upright image, which has this size. Raises DataError."""
        file = self.mask_file(index)
        mask = _read_mask(file)
        if mask.shape != (height, width):
            size = f"{mask.shape[1]}x{mask.shape[0]}"
            must = f"its image is {width}x{height} upright"
            raise DataError(f"{printable(file)}: is {size} pixels, but {must}")
        found = np.flatnonzero(np.bincount(mask.reshape(-1)))
        wrong = found[(found >= len(self.classes)) & (found != IGNORED)]
        if len(wrong):
            must = f"{CLASSES} names the classes 0 to {len(self.classes) - 1}; 255 is of none"
            raise DataError(f"{printable(file)}: has pixels of {wrong[0]}, but {must}")
        return mask if self._numbers is None else self._numbers[mask]

    def targets(self, indices: Ints, geometry: Geometry) -> Tensor:
        """uint8 `(N, side, side)`; in evaluation `(N, height, width)` of the largest mask, with
        OUTSIDE beyond the others."""
        cuts = [self._cut(int(index), geometry, i) for i, index in enumerate(indices)]
        if geometry.training or not cuts:
            return torch.stack(cuts) if cuts else torch.empty(0, 0, 0, dtype=torch.uint8)
        height, width = (max(cut.shape[axis] for cut in cuts) for axis in (0, 1))
        whole = torch.full((len(cuts), height, width), OUTSIDE, dtype=torch.uint8)
        for cut, place in zip(cuts, whole, strict=True):
            place[: cut.shape[0], : cut.shape[1]] = cut
        return whole

    def _cut(self, index: int, geometry: Geometry, i: int) -> Tensor:
        mask = self.mask(index, int(geometry.heights[i]), int(geometry.widths[i]))
        top, left, height, width = geometry.boxes[i].tolist()
        cut = torch.from_numpy(mask[top : top + height, left : left + width].copy())
        if not geometry.training:
            return cut
        cut = functional.interpolate(cut[None, None], geometry.side, mode="nearest-exact")[0, 0]
        return cut.flip(1) if geometry.flips[i] else cut


def open_masks(data: DataConfig, root: Path, split: str) -> MaskSource:
    """The split. Raises DataError."""
    if is_table(root):
        from entry_point.data.sources.table import read_masks  # it imports polars

        images = Path(data.images) if data.images else None
        files, masks, folder = read_masks(root, images, data.table, split)
        classes = _read_classes(root.parent / CLASSES)
    else:
        require_folder("data.root", root)
        folder, classes = str(root), _read_classes(root / CLASSES)
        files, masks = _pairs(root, split)
    source = MaskSource(files, masks, classes, folder)
    if len(classes) == 2:
        _require_second_class(source)
    return source


def _read_mask(file: str) -> NDArray[np.uint8]:
    """The numbers of a mask's pixels. Raises DataError and ReadError."""
    try:
        content = io.BytesIO(read_bytes(file).numpy().data)
        with Image.open(content, formats=["PNG"]) as image:
            mode, scale = image.mode, _SCALED.get(str(image.tile[0][3]), 1)
            mask = np.asarray(image, dtype=np.uint8)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{printable(file)}: cannot be read as a mask: {reason}") from error
    if mode not in _MODES:
        must = "must be a PNG with one number of at most 8 bits per pixel, the class"
        raise DataError(f"{printable(file)}: {must}; it has the mode {mode}")
    return mask if scale == 1 else mask // scale


def _require_second_class(source: MaskSource) -> None:
    """Refuse masks of 0 and 255, as programs for two classes write them: 255 is of no class.

    A model that always answers the first class would be right everywhere.
    """
    found = np.zeros(256, bool)
    for index in np.linspace(0, len(source) - 1, min(len(source), _LOOKED_AT), dtype=int):
        with suppress(DataError):  # told when it is drawn
            found[_read_mask(source.mask_file(index))] = True
        if found[1]:
            return
    if found[0] and found[IGNORED]:
        raise DataError(
            f"{source.folder}: the masks hold only 0 and 255, and 255 is of no class: write the "
            f"second class of {CLASSES} as 1"
        )


def _read_classes(file: Path) -> list[str]:
    try:
        names = read_bytes(file).numpy().tobytes().decode("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not UTF-8"
        must = "must name the classes of the masks, one per line, from number 0 on"
        raise DataError(f"{file}: {reason}; it {must}") from error
    names = [name.strip() for name in names]
    while names and not names[-1]:
        names.pop()
    for number, name in enumerate(names):
        if not name:
            raise DataError(f"{file}, line {number + 1}: is empty; remove it")
        if not is_class_name(name):
            raise DataError(f"{file}, line {number + 1}: {CLASS_NAME}")
    if not 1 <= len(names) <= OUTSIDE or len({*names}) < len(names):
        raise DataError(f"{file}: must hold 1 to {OUTSIDE} different names, one per line")
    return names


def _pairs(root: Path, split: str) -> tuple[list[str], list[str]]:
    """The paths of images and their masks below `root`."""
    images, masks = (root / split / name for name in (IMAGES, MASKS))
    for folder in (images, masks):
        if not folder.is_dir():
            raise DataError(f"{folder} is missing: {root} must hold {split}/{folder.name}")
    there, pairs = {*visible_files(masks)}, dict[str, str]()
    for name in visible_files(images):
        if not name.lower().endswith(IMAGE_SUFFIXES):
            continue
        mask = f"{name[: name.rindex('.')]}.png"
        if mask not in there:
            raise DataError(f"{printable(str(masks / mask))} is missing: each image needs a mask")
        if mask in pairs:
            same = f"is of two images, {printable(pairs[mask])} and {printable(name)}: rename one"
            raise DataError(f"{printable(str(masks / mask))} {same}")
        pairs[mask] = name
    if not pairs:
        raise DataError(f"{images} holds no images; they end in {', '.join(IMAGE_SUFFIXES)}")
    return (
        [f"{split}/{IMAGES}/{name}" for name in pairs.values()],
        [f"{split}/{MASKS}/{mask}" for mask in pairs],
    )
