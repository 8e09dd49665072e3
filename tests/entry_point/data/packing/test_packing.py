"""The dataset that `make dataset` packs from photographs."""

import io
import logging
import tarfile
import tracemalloc
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import webdataset
from PIL import Image

from entry_point.check_dataset import main as check_dataset
from entry_point.config.data_config import DataConfig
from entry_point.contract import exit_codes
from entry_point.data.loader import open_source
from entry_point.data.packing import listing
from entry_point.data.packing.scan_source import scan_split
from tests.entry_point.data.packing.pack_command import contents, copy, pack, report


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
    index = pq.read_table(packed / "train/index.parquet")
    assert [sample["__key__"] for sample in samples] == index["key"].to_pylist()
    assert [sample["cls"] for sample in samples] == index["label"].to_pylist()
    with tarfile.open(shards[0]) as tar:
        assert tar.getnames()[0] == f"{index['key'][0]}.jpg"


def test_seed_shuffles_the_order(photo_folder: Path, packed: Path, tmp_path: Path) -> None:
    keys = pq.read_table(packed / "train/index.parquet")["key"].to_pylist()
    assert keys != sorted(keys)
    pack(photo_folder, tmp_path / "other", "seed=1")
    other = pq.read_table(tmp_path / "other/train/index.parquet")["key"].to_pylist()
    assert other != keys and sorted(other) == sorted(keys)


def test_report_has_sizes_before_and_after_and_class_balance(
    photo_folder: Path, packed: Path
) -> None:
    for split, images in {"train": 6, "val": 3}.items():
        split_report = report(packed)["splits"][split]
        files = (photo_folder / split).rglob("*.jpg")
        lengths = pq.read_table(packed / split / "index.parquet")["length"].to_pylist()
        assert split_report["bytes_before"] == sum(file.stat().st_size for file in files)
        assert split_report["bytes_after"] == sum(lengths)
        assert split_report["files"] == len(lengths) == sum(split_report["how"].values())
        assert split_report["side_index_bytes"] == (packed / split / "index.jix").stat().st_size
        assert set(split_report["classes"].values()) == {images}


def test_max_side_shrinks_only_larger_images(photo_folder: Path, tmp_path: Path) -> None:
    assert pack(photo_folder, tmp_path / "packed", "max_side=400") == 0
    index = pq.read_table(tmp_path / "packed/train/index.parquet")
    assert max(index["height"].to_pylist() + index["width"].to_pylist()) == 400
    counts = report(tmp_path / "packed")["splits"]["train"]["how"]
    assert counts["shrunk"] > 5 and counts["indexed"] > 5


def test_output_format_folder_writes_plain_files(photo_folder: Path, tmp_path: Path) -> None:
    assert pack(photo_folder, tmp_path / "packed", "output_format=folder") == 0
    source = open_source(DataConfig(root=str(tmp_path / "packed")), "train", tmp_path)
    assert len(source) == 48
    assert check_dataset([f"root={tmp_path / 'packed'}"]) == 0


def test_packing_again_changes_nothing_and_other_options_are_an_error(
    photo_folder: Path, packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(packed)
    assert pack(photo_folder, packed) == 0
    assert pack(photo_folder, packed, "quality=80") == exit_codes.USAGE
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
    assert pack(source, tmp_path / "packed") == exit_codes.USAGE
    assert "made from other files" in capsys.readouterr().err


def test_output_may_be_an_empty_folder_and_any_other_is_left_unchanged(
    photo_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert pack(photo_folder, tmp_path / "empty", "max_side=64") == 0
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    assert pack(photo_folder, tmp_path / "full") == exit_codes.USAGE
    assert "full holds other files" in capsys.readouterr().err
    assert contents(tmp_path / "full") == {"thesis.txt": b"mine"}


def test_listing_memory_does_not_grow_with_the_number_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "_ROWS_PER_INSERT", 64)
    for classes in (8, 32):
        for number in range(classes):
            folder = tmp_path / str(classes) / "train" / f"class{number:02d}"
            folder.mkdir(parents=True)
            for image in range(100):
                (folder / f"{image:04d}.jpg").touch()
    # Twice, because Python may just then enlarge its table of interned strings, by megabytes.
    few, many = (min(_listing_peak(tmp_path, classes) for _ in range(2)) for classes in (8, 32))
    assert many < 1.5 * few


def _listing_peak(folder: Path, classes: int) -> int:
    names = [f"class{number:02d}" for number in range(classes)]
    tracemalloc.start()
    with closing(listing.Listing(folder / "list", seed=0, shard_bytes=1e9)) as found:
        found.add("train", scan_split(folder / str(classes), "train", names, all_classes=True))
        peak = tracemalloc.get_traced_memory()[1]
        assert len(found) == 100 * classes and len(found.shards["train"]) == 1
        keys = {entry.key for entry in found.entries("train", 0)}
    tracemalloc.stop()
    assert len(keys) == 100 * classes
    return peak


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
    # Training rejects plain files without one of the class folders.
    assert pack(source, tmp_path / "folder", "output_format=folder") == exit_codes.USAGE
    assert "(cat)" in capsys.readouterr().err and not (tmp_path / "folder").exists()
    for file in (source / "val").rglob("*.jpg"):
        file.write_text("no image")
    assert pack(source, tmp_path / "none") == exit_codes.USAGE
    assert "8 of 8 classes have no usable image" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
