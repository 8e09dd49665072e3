"""The data set of the check: photographs as files, and packed with side indexes.

`python -m benchmarks.gpu.gpu_data FOLDER IMAGES` makes it, once.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import NamedTuple


class Folders(NamedTuple):
    plain: Path
    shards: Path
    done: Path
    """Exists once the others are complete."""


def folders(work: Path, images: int) -> Folders:
    root = work / f"data-{images}"
    return Folders(root / "folder", root / "shards", root / "done")


def make(work: Path, images: int) -> None:
    """48 JPEGs of 533x800 pixels, repeated, as plain files and in shards."""
    from benchmarks.sample_photographs import many_photographs
    from entry_point.config.packing_config import OptimizeConfig
    from entry_point.data.packing.pack import pack

    plain, shards, done = folders(work, images)
    if done.exists():
        return
    shutil.rmtree(done.parent, ignore_errors=True)
    done.parent.mkdir(parents=True)
    files = many_photographs()
    originals = [done.parent / f"{number}.jpg" for number in range(len(files))]
    for path, content in zip(originals, files, strict=True):
        path.write_bytes(content)
    for split, count in (("train", images), ("val", min(images, 512))):
        for number in range(count):
            folder = plain / split / str(number % len(files))
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number}.jpg").hardlink_to(originals[number % len(files)])
    pack(plain, shards, OptimizeConfig())
    done.touch()


if __name__ == "__main__":
    make(Path(sys.argv[1]), int(sys.argv[2]))
