"""The images that the pipelines read: a part of a dataset, as files, indexed files and packed."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from entry_point.config.data_config import DataConfig
from entry_point.config.packing_config import OptimizeConfig
from entry_point.data.decode.decode import is_jpeg
from entry_point.data.errors import DataError
from entry_point.data.packing.index_folder import index_folder
from entry_point.data.packing.pack import pack
from entry_point.data.sources.dataset import open_dataset
from entry_point.data.sources.source import Source, read_image
from entry_point.data.sources.splits import WHOLE

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
    """Use packed shards as they are; of any other dataset, pack up to `most` images in `work`."""
    data = DataConfig(format="auto" if root else "demo", root=str(root or DEMO_ROOT))
    dataset = open_dataset(data, Path(str(data.root)), for_training=False)
    split = "train" if "train" in dataset.splits else WHOLE
    source = dataset.source(split)
    if dataset.data.format == "shards":
        return Images(f"{data.root} ({len(source)} packed images)", len(source), dataset.root)
    files, indexed = work / "files", work / "indexed"
    count = _write_jpegs(source, most, files)
    shutil.copytree(files, indexed, copy_function=os.link)
    index_folder(indexed, None, OptimizeConfig(output_format="index"))
    pack(files, work / "shards", OptimizeConfig())
    described = f"{count} images of {data.root}, packed"
    return Images(described, count, work / "shards", files, indexed)


def write_phone_photographs(root: Path) -> Path:
    """Write 36 JPEGs of 12 megapixels under root/train; returns root."""
    # They need the tests' packages.
    from benchmarks.sample_photographs import phone_photographs, write_classes

    jpegs = [jpeg for step in range(6) for jpeg in phone_photographs(zoom=1 + 0.08 * step)]
    write_classes(root / "train", jpegs, len(jpegs), classes=1)
    return root


def _write_jpegs(source: Source, most: int, folder: Path) -> int:
    """Write up to `most` JPEGs from everywhere in the source as train/<class>/<number>.jpg; returns
    their number."""
    count = 0
    for i in np.linspace(0, len(source) - 1, min(most, len(source))).astype(int).tolist():
        image = read_image(source, i)
        if is_jpeg(image):
            kind = int(source.labels[i]) if source.kind == "class" else 0
            file = folder / "train" / f"{kind:04d}" / f"{count:06d}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(image.numpy().tobytes())
            count += 1
    if not count:
        raise DataError(f"{source.key(0)} and the images after it: none is a JPEG")
    return count
