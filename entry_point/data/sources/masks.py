"""Images with a mask each (data=masks).

They are in a folder, see mask_folders.py, or a table names each image and its mask. The file
`classes.txt`, in the folder or beside the table, names the classes, one per line.

A mask is a PNG of its image's size, upright, with the number of the class of each pixel: the first
class is 0. In a PNG with a palette, the numbers of the colors count. Pixels of 255 belong to no
class: they are ignored in training and evaluation.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.nn import functional

from entry_point.config.data_config import DataConfig
from entry_point.data.errors import DataError
from entry_point.data.metadata import strip
from entry_point.data.plan.crops import Geometry
from entry_point.data.plan.samples import Ints
from entry_point.data.sources.dataset_description import CLASS_NAME, is_class_name
from entry_point.data.sources.file_bytes import read_bytes
from entry_point.data.sources.folder import Tree
from entry_point.data.sources.mask_folders import LAYOUTS, list_pairs, read_lines
from entry_point.data.sources.rows import Files, Labels, PathList, Rows, Words
from entry_point.data.sources.source import RangeSource, joined
from entry_point.job.text import printable

CLASSES = "classes.txt"
"""The file of class names, in the folder or beside the table."""
IGNORED, OUTSIDE = 255, 254
"""Pixel values: no class; and padding outside of the mask, where masks of several sizes are in one
tensor."""
_MODES = ("1", "L", "P")
_SCALED = {"L;2": 85, "L;4": 17}
"""Factors by which Pillow multiplies gray values of 2 and 4 bits."""
_LOOKED_AT = 256
"""Number of masks that are searched for a class other than the first."""


class MaskSource(RangeSource):
    """The images of one split, sorted by path or in the order of the table.

    In training, a sample's target is its mask, cropped, resized (nearest neighbor, by pixel
    centers) and flipped like the image, uint8 `(side, side)`. In evaluation, it is the mask in the
    sample's box, in the pixels of the image.
    """

    def __init__(self, rows: Rows) -> None:
        assert isinstance(rows.where, Files) and isinstance(rows.labels, Labels)
        super().__init__(rows.where, rows.names, rows.labels, rows.places)
        assert rows.masks is not None
        self._masks = rows.masks
        self._numbers: NDArray[np.uint8] | None = None
        _require_second_class(self)

    def renumber(self, classes: Sequence[str]) -> None:
        self._numbers = np.arange(256, dtype=np.uint8)
        self._numbers[: len(self.classes)] = [classes.index(name) for name in self.classes]

    def listing(self) -> Iterable[bytes]:
        return joined([*self._names, *self._masks])

    def mask_file(self, index: int) -> str:
        return f"{self.folder}/{self._masks[index]}"

    def mask(self, index: int, height: int, width: int) -> NDArray[np.uint8]:
        """Returns the class of each pixel of the upright image of this size. Raises DataError."""
        file = self.mask_file(index)
        mask = _read_mask(file)
        if mask.shape != (height, width):
            size = f"{mask.shape[1]}x{mask.shape[0]}"
            message = f"its image is {width}x{height} upright"
            raise DataError(f"{printable(file)}: is {size} pixels, but {message}")
        found = np.flatnonzero(np.bincount(mask.reshape(-1)))
        wrong = found[(found >= len(self.classes)) & (found != IGNORED)]
        if len(wrong):
            message = f"{CLASSES} names the classes 0 to {len(self.classes) - 1}; 255 means ignore"
            raise DataError(f"{printable(file)}: has pixels of {wrong[0]}, but {message}")
        return mask if self._numbers is None else self._numbers[mask]

    def targets(self, indices: Ints, geometry: Geometry) -> Tensor:
        """Returns uint8 `(N, side, side)`; in evaluation `(N, height, width)` of the largest mask,
        with others padded by OUTSIDE."""
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


def list_masks(tree: Tree, data: DataConfig, *_: object) -> Rows:
    """Returns the images in a folder or table, with their masks. Raises DataError."""
    root = tree.root
    if not root.is_dir():
        from entry_point.data.sources.table import list_masked  # it imports polars

        return list_masked(tree, data, _read_classes(root.parent / CLASSES))
    images, masks, words, what = _of_folder(tree)
    labels = Labels("targets", _read_classes(root / CLASSES), np.zeros(len(images)))
    return Rows(what, images, Files(str(root), images), labels, words, masks=masks)


def _of_folder(tree: Tree) -> tuple[PathList, PathList, Words, str]:
    """Returns the paths of images and masks, the words of their splits, and the layout."""
    found = list_pairs(tree)
    if found is None:
        raise DataError(f"{tree.root} holds no images with masks: it must hold {LAYOUTS}")
    what, pairs = found
    splits = [*dict.fromkeys(pair.split for pair in pairs)]
    of = np.array([splits.index(pair.split) for pair in pairs], np.int8)
    words = Words("the lists" if "VOC" in what else "the folders", splits, of)
    images = PathList.of_names(pair.image for pair in pairs)
    return images, PathList.of_names(pair.mask for pair in pairs), words, what


def _read_mask(file: str) -> NDArray[np.uint8]:
    """Returns the numbers of a mask's pixels. Raises DataError and ReadError."""
    must = "must be a PNG with one number of at most 8 bits per pixel, the class"
    try:
        content = strip(read_bytes(file).numpy().data).content
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            mode, scale = image.mode, _SCALED.get(str(image.tile[0][3]), 1)
            mask = np.asarray(image, dtype=np.uint8)
    except UnidentifiedImageError as error:
        raise DataError(f"{printable(file)}: {must}; it is no PNG") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{printable(file)}: cannot be read as a mask: {reason}") from error
    if mode not in _MODES:
        raise DataError(f"{printable(file)}: {must}; it has the mode {mode}")
    return mask if scale == 1 else mask // scale


def _require_second_class(source: MaskSource) -> None:
    """Refuse masks of only 0 and 255, which some programs write for two classes: 255 is no class.

    A model that always predicts the first class would be right everywhere.
    """
    found = np.zeros(256, bool)
    for index in np.linspace(0, len(source) - 1, min(len(source), _LOOKED_AT), dtype=int):
        with suppress(DataError):  # raised again when the sample is drawn
            found[_read_mask(source.mask_file(index))] = True
        if found[1:IGNORED].any():
            return
    if found[0] and found[IGNORED]:
        raise DataError(
            f"{source.folder}: the masks hold only 0 and 255, and 255 means ignore; store the "
            f"second class of {CLASSES} as 1"
        )


def _read_classes(file: Path) -> list[str]:
    names = read_lines(file, "name the classes of the masks, one per line, from number 0 on")
    while names and not names[-1]:
        names.pop()
    for number, name in enumerate(names, 1):
        if not name or not is_class_name(name):
            wrong = CLASS_NAME if name else "is empty; remove it"
            raise DataError(f"{file}, line {number}: {wrong}")
    if not 1 <= len(names) <= OUTSIDE or len({*names}) < len(names):
        raise DataError(f"{file}: must hold 1 to {OUTSIDE} different names, one per line")
    return names
