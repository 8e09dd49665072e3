"""The images that the pipelines read: a part of a dataset, as files, indexed files and packed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path

from benchmarks.sample_photographs import phone_photographs
from entry_point.config.data_config import DemoConfig
from entry_point.config.packing_config import OptimizeConfig
from entry_point.data.errors import DataError
from entry_point.data.packing.index_folder import index_folder
from entry_point.data.packing.pack import pack
from entry_point.data.sources.dataset_description import is_packed, read_dataset
from entry_point.data.sources.demo import ensure_demo
from entry_point.data.sources.folder import visible_files
from entry_point.data.sources.source import JPEG_SUFFIXES

DEMO_ROOT = Path("data/demo")


@dataclass(frozen=True)
class Images:
    """Where the images are; all but `shards` are None if the dataset is already packed."""

    described: str
    count: int
    shards: Path
    files: Path | None = None
    """Untouched."""
    indexed: Path | None = None
    """Untouched, with side indexes beside them."""


def prepare(root: Path | None, most: int, work: Path) -> Images:
    """Use packed shards as they are; of a folder, pack up to `most` images in `work`."""
    if root is not None and is_packed(root):
        count = read_dataset(root).samples("train")
        return Images(f"{root} ({count} packed images)", count, root)
    if root is None:
        root = DEMO_ROOT
        ensure_demo(root, DemoConfig())
    files, indexed = work / "files", work / "indexed"
    count = _link(root, files, most)
    _link(root, indexed, most)
    index_folder(indexed, None, OptimizeConfig(output_format="index"))
    pack(files, work / "shards", OptimizeConfig())
    described = f"{count} images of {root}, packed"
    return Images(described, count, work / "shards", files, indexed)


def write_phone_photographs(root: Path) -> Path:
    """Write 36 JPEGs of 12 megapixels under root/train; returns root."""
    folder = root / "train" / "photograph"
    folder.mkdir(parents=True)
    for step in range(6):
        for number, jpeg in enumerate(phone_photographs(zoom=1 + 0.08 * step)):
            (folder / f"{step}{number}.jpg").write_bytes(jpeg)
    return root


def _link(root: Path, target: Path, most: int) -> int:
    """Link up to `most` images, taking the classes in turn; returns their number."""
    train = root / "train"
    names = sorted(folder.name for folder in train.iterdir() if folder.is_dir())
    by_class = [[f"{name}/{file}" for file in _jpegs(train / name)] for name in names]
    in_turn = (file for row in zip_longest(*by_class) for file in row if file is not None)
    chosen = list(islice(in_turn, most))
    if not chosen:
        raise DataError(f"{train}: contains no JPEG file")
    for file in chosen:
        link = target / "train" / file
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to((train / file).resolve())
    return len(chosen)


def _jpegs(folder: Path) -> list[str]:
    return [file for file in visible_files(folder) if file.lower().endswith(JPEG_SUFFIXES)]
