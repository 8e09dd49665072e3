"""Photographs as files and packed, for the check on a GPU: `... gpu_data FOLDER IMAGES`, once."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from benchmarks.sample_photographs import many_photographs
from entry_point.config.packing_config import OptimizeConfig
from entry_point.data.packing.pack import pack


def make(root: Path, images: int) -> None:
    """48 JPEGs of 533x800 pixels, repeated, in root/folder and, with side indexes, root/shards."""
    plain, done = root / "folder", root / f"complete-{images}"
    if done.exists():
        return
    shutil.rmtree(root, ignore_errors=True)
    files = many_photographs()
    originals = [root / f"{number}.jpg" for number in range(len(files))]
    root.mkdir(parents=True)
    for path, content in zip(originals, files, strict=True):
        path.write_bytes(content)
    for split, count in (("train", images), ("val", min(images, 512))):
        for number in range(count):
            folder = plain / split / str(number % len(files))
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number}.jpg").hardlink_to(originals[number % len(files)])
    pack(plain, root / "shards", OptimizeConfig())
    done.touch()


if __name__ == "__main__":
    make(Path(sys.argv[1]), int(sys.argv[2]))
