"""Reads a data set end to end: every file, every checksum, every pixel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path

from custom_op import JpegError, decode_and_crop_jpeg, jpeg_size
from entry_point.data.batch import Damage
from entry_point.data.engines.ahead import map_ahead
from entry_point.data.errors import DataError
from entry_point.data.packing.check_packed import Image, packed_images
from entry_point.data.progress_bar import track
from entry_point.data.sources.folder import SPLITS, FolderSource, require_folder
from entry_point.data.sources.index import DESCRIPTION, read_description

_AHEAD_PER_WORKER = 4


def check_dataset(root: Path, workers: int) -> tuple[int, list[Damage]]:
    """How many images were read, and all that is wrong. Raises DataError for no data set."""
    require_folder("root", root)
    damage: list[Damage] = []
    if (root / DESCRIPTION).is_file():
        description = read_description(root)
        total = sum(split.samples for split in description.splits.values())
        images: Iterable[Image] = chain.from_iterable(
            packed_images(root, description, split, damage) for split in description.splits
        )
    else:
        sources = _open_splits(root, damage)
        total = sum(len(source) for source in sources)
        images = chain.from_iterable(_plain_images(source) for source in sources)
    checked = 0
    with ThreadPoolExecutor(workers) as pool:
        results = map_ahead(pool, _check, images, workers * _AHEAD_PER_WORKER)
        for result in track(results, total, "checking"):
            checked += 1
            damage += [result] if result is not None else []
    return checked, damage


def _open_splits(root: Path, damage: list[Damage]) -> list[FolderSource]:
    """Those that can be opened; where none can, the first one's error is raised."""
    sources = []
    for split in [split for split in SPLITS if (root / split).is_dir()] or SPLITS[:1]:
        try:
            sources.append(FolderSource(root, split))
        except DataError as error:
            damage.append(Damage(str(root / split), str(error)))
    if not sources:
        raise DataError("\n".join(damaged.reason for damaged in damage))
    return sources


def _plain_images(source: FolderSource) -> Iterator[Image]:
    for index in range(len(source)):
        yield Image(source.key(index), partial(source.read, index))


def _check(image: Image) -> Damage | None:
    try:
        jpeg = image.read()
        decode_and_crop_jpeg(jpeg, 0, 0, *jpeg_size(jpeg))
    except OSError as error:
        return Damage(image.key, f"cannot be read: {error.strerror}")
    except (DataError, JpegError) as error:
        return Damage(image.key, str(error))
    return None
