"""The data set that the check trains on: photographs, packed with restart markers."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.gpu.gpu_plan import Check
from benchmarks.sample_photographs import photographs
from entry_point.config.packing_config import OptimizeConfig
from entry_point.data.packing.pack import pack


def packed_photographs(check: Check) -> Path:
    """Shards of 533x800 JPEGs of six photographs, made once."""
    root, count = check.folder / "data", check.size.images
    done = root / f"{count}-images"
    if done.exists():
        return root / "shards"
    shutil.rmtree(root, ignore_errors=True)
    files = photographs()
    originals = [root / f"{number}.jpg" for number in range(len(files))]
    root.mkdir(parents=True)
    for path, content in zip(originals, files, strict=True):
        path.write_bytes(content)
    for split, images in (("train", count), ("val", min(count, 512))):
        for number in range(images):
            folder = root / "folder" / split / str(number % len(files))
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number}.jpg").hardlink_to(originals[number % len(files)])
    pack(root / "folder", root / "shards", OptimizeConfig())
    shutil.rmtree(root / "folder")
    done.touch()
    return root / "shards"


def data_settings(check: Check) -> list[str]:
    """The overrides of every job of the check."""
    size = check.size
    return [
        "data=shards",
        f"data.root={packed_photographs(check)}",
        f"data.image_size={size.image_size}",
        f"data.resize={size.image_size}",
        f"trainer.precision={size.precision}",
        "trainer.report=false",
        "trainer.nproc_per_host=1",
    ]
