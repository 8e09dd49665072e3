"""Sound photographs with headers that libjpeg warns about, in every engine and in packing."""

import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.entry_point.data.engines.every_engine import DECODERS, Way
from tests.entry_point.data.loaders import epoch_of, images_of, loader_of
from tests.entry_point.data.packing.pack_command import pack, report, samples


def _like_some_phones(jpeg: bytes) -> bytes:
    """Zeros in place of the scan's spectral selection."""
    scan = jpeg.rindex(b"\xff\xda")
    end = scan + 2 + int.from_bytes(jpeg[scan + 2 : scan + 4], "big")
    return jpeg[: end - 3] + b"\0\0\0" + jpeg[end:]


def _with_extraneous_bytes(jpeg: bytes) -> bytes:
    tables = jpeg.index(b"\xff\xdb")
    return jpeg[:tables] + b"\x12\x34\x56" + jpeg[tables:]


@pytest.fixture
def camera_folder(photos: Path) -> Path:
    """The photographs with such headers; progressive ones cannot have the first kind."""
    for number, file in enumerate(sorted(photos.glob("*/*/*.jpg"))):
        extraneous = number % 2 or _is_progressive(file)
        change = _with_extraneous_bytes if extraneous else _like_some_phones
        file.write_bytes(change(file.read_bytes()))
    return photos


def _is_progressive(file: Path) -> bool:
    with Image.open(file) as image:
        return "progressive" in image.info


@pytest.mark.parametrize("engine", DECODERS)
def test_camera_header_changes_no_pixel_in_any_engine(
    photo_folder: Path, camera_folder: Path, engine: Way
) -> None:
    if engine == "dali":  # its own parser knows no extraneous bytes
        for file in camera_folder.glob("*/*/*.jpg"):
            original = photo_folder / file.relative_to(camera_folder)
            if file.stat().st_size != original.stat().st_size:
                shutil.copy(original, file)
    expected, found = (
        images_of(epoch_of(loader_of(root, engine, workers=0)))
        for root in (photo_folder, camera_folder)
    )
    assert torch.equal(found, expected)


def test_packing_keeps_such_files(camera_folder: Path, tmp_path: Path) -> None:
    assert pack(camera_folder, tmp_path / "packed") == 0
    for split in ("train", "val"):
        packed = report(tmp_path / "packed")["splits"][split]
        assert packed["rejected"] == {} and packed["notes"] == {}
        assert packed["how"]["indexed"] > packed["how"]["rewritten"]
        kept = [
            (camera_folder / split / name).read_bytes() == data
            for name, (_, data) in samples(tmp_path / "packed", split).items()
        ]
        assert sum(kept) == packed["how"]["indexed"]
