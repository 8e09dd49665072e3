"""The data set that the check trains on: photographs, packed with side indexes."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.gpu.gpu_plan import Check
from benchmarks.sample_photographs import many_photographs
from entry_point.config.packing_config import OptimizeConfig
from entry_point.data.packing.pack import pack


def photograph_folders(check: Check) -> tuple[Path, Path]:
    """48 JPEGs of 533x800 pixels, repeated, as plain files and in shards; made once."""
    root, count = check.folder / "data", check.size.images
    plain, shards, done = root / "folder", root / "shards", root / f"{count}-images"
    if done.exists():
        return plain, shards
    shutil.rmtree(root, ignore_errors=True)
    files = many_photographs()
    originals = [root / f"{number}.jpg" for number in range(len(files))]
    root.mkdir(parents=True)
    for path, content in zip(originals, files, strict=True):
        path.write_bytes(content)
    for split, images in (("train", count), ("val", min(count, 512))):
        for number in range(images):
            folder = plain / split / str(number % len(files))
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number}.jpg").hardlink_to(originals[number % len(files)])
    pack(plain, shards, OptimizeConfig())
    done.touch()
    return plain, shards


def data_settings(check: Check, *, packed: bool = True) -> list[str]:
    """The overrides of every job of the check."""
    size = check.size
    plain, shards = photograph_folders(check)
    return [
        f"data={'shards' if packed else 'folder'}",
        f"data.root={shards if packed else plain}",
        f"data.image_size={size.image_size}",
        f"data.resize={size.image_size}",
        f"trainer.precision={size.precision}",
        "trainer.report=false",
        "trainer.nproc_per_host=1",
    ]
