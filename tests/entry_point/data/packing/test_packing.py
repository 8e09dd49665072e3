"""The dataset that `make dataset` packs from photographs."""

import io
import logging
import tarfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import webdataset
from PIL import Image

from entry_point.config.data_config import DataConfig
from entry_point.data.loader import open_source
from entry_point.data.packing.scan import Listing
from entry_point.data.sources.dataset_description import read_dataset
from entry_point.job.program import ExitCode
from tests.commands import check_dataset
from tests.entry_point.data.packing.pack_command import contents, copy, index, pack, report
from tests.entry_point.data.sources.class_folders import class_folder


def _decoded(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)))


def test_packed_photographs_keep_their_pixels_and_orientation(
    photo_folder: Path, packed: Path
) -> None:
    seen = 0
    for split in ("train", "val"):
        source = open_source(DataConfig(format="shards", root=str(packed)), split, packed)
        for i in range(len(source)):
            name = source.key(i).split(": ")[1]
            data = bytes(source.read(i).numpy())
            original = (photo_folder / split / name).read_bytes()
            np.testing.assert_array_equal(_decoded(data), _decoded(original))
            exif = [Image.open(io.BytesIO(b)).getexif().get(0x0112) for b in (data, original)]
            assert exif[0] == exif[1]
            assert source.classes[source.labels[i]] == name.split("/")[0]
            seen += 1
    assert seen == 72


def test_shards_are_tar_files_for_webdataset(packed: Path) -> None:
    shards = sorted(str(file) for file in (packed / "train").glob("*.tar"))
    assert len(shards) > 2
    samples = list(webdataset.WebDataset(shards, shardshuffle=False).decode("rgb8"))
    rows, classes = index(packed), read_dataset(packed).classes
    assert [f"{sample['__key__']}.jpg" for sample in samples] == rows["key"]
    assert [sample["json"] for sample in samples] == [classes[label] for label in rows["label"]]
    with tarfile.open(shards[0]) as tar:
        assert tar.getnames()[0] == rows["key"][0]


def test_packing_shuffles_the_images(packed: Path) -> None:
    keys = index(packed)["key"]
    assert keys != sorted(keys)


def test_report_has_sizes_before_and_after_and_class_balance(
    photo_folder: Path, packed: Path
) -> None:
    for split, images in {"train": 6, "val": 3}.items():
        split_report = report(packed)["splits"][split]
        files = (photo_folder / split).rglob("*.jpg")
        rows = index(packed, split)
        lengths = rows["length"].tolist()
        assert split_report["bytes_before"] == sum(file.stat().st_size for file in files)
        assert split_report["bytes_after"] == sum(lengths)
        assert len(lengths) == sum(split_report["how"].values())
        assert set(split_report["classes"].values()) == {images}


def test_max_side_shrinks_only_larger_images(photo_folder: Path, tmp_path: Path) -> None:
    assert pack(photo_folder, tmp_path / "packed", "max_side=200") == 0
    rows = index(tmp_path / "packed")
    assert max(*rows["height"], *rows["width"]) == 200
    counts = report(tmp_path / "packed")["splits"]["train"]["how"]
    assert counts["shrunk"] > 5 and counts["indexed"] > 5


def test_packing_again_changes_nothing_and_other_options_are_an_error(
    photo_folder: Path, packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(packed)
    assert pack(photo_folder, packed) == 0
    assert pack(photo_folder, packed, "quality=80") == ExitCode.USAGE
    assert "made from other files or with other options" in capsys.readouterr().err
    assert contents(packed) == before
    assert [file.name for file in packed.parent.iterdir()] == [packed.name]


def test_packing_again_after_a_file_changed_in_place_is_an_error(
    photo_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = copy(photo_folder, tmp_path / "source")
    assert pack(source, tmp_path / "packed") == 0
    file = source / "train/cat/000.jpg"
    data = bytearray(file.read_bytes())
    data[-100] ^= 1
    file.write_bytes(data)
    assert pack(source, tmp_path / "packed") == ExitCode.USAGE
    assert "made from other files" in capsys.readouterr().err


def test_output_may_be_an_empty_folder_and_any_other_is_left_unchanged(
    photo_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert pack(photo_folder, tmp_path / "empty", "max_side=64") == 0
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    assert pack(photo_folder, tmp_path / "full") == ExitCode.USAGE
    assert "full holds other files" in capsys.readouterr().err
    assert contents(tmp_path / "full") == {"thesis.txt": b"mine"}


def test_listing_takes_little_memory_for_each_file(tmp_path: Path) -> None:
    count = 4000
    folder = tmp_path / "train" / "class"
    folder.mkdir(parents=True)
    for image in range(count):
        (folder / f"{image:06d}.jpg").touch()
    # Twice, because Python may just then enlarge its table of interned strings, by megabytes.
    assert min(_listing_bytes(tmp_path) for _ in range(2)) < 200 * count


def _listing_bytes(folder: Path) -> int:
    tracemalloc.start()
    listing = Listing(class_folder(folder, "train"), shard_bytes=1e9)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    (shard,) = listing.shards
    assert len({listing.key(i) for i in shard}) == len(shard)
    return held


def test_split_without_usable_images_is_an_error_and_such_a_class_a_warning(
    photo_folder: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = copy(photo_folder, tmp_path / "source")
    for file in (source / "val/cat").iterdir():
        file.write_text("no image")
    with caplog.at_level(logging.WARNING):
        assert pack(source, tmp_path / "packed") == 0
    assert (
        "val: 1 of 8 classes have no usable image (cat); the first rejected file is" in caplog.text
    )
    assert report(tmp_path / "packed")["splits"]["val"]["classes"]["cat"] == 0
    assert check_dataset([f"root={tmp_path / 'packed'}"]) == 0
    for file in (source / "val").rglob("*.jpg"):
        file.write_text("no image")
    assert pack(source, tmp_path / "none") == ExitCode.USAGE
    assert "8 of 8 classes have no usable image" in capsys.readouterr().err
    assert not _visible(tmp_path / "none")


def _visible(folder: Path) -> list[Path]:
    """Without what the next run resumes from."""
    return list(folder.glob("[!.]*"))
