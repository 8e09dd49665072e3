"""The dataset that `make dataset` packs from photographs."""

import io
import logging
import os
import tarfile
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import webdataset
from PIL import Image

from custom_op import index_jpeg
from entry_point.data.packing.scan import Listing
from entry_point.data.sources.dataset_description import read_dataset
from entry_point.job.program import ExitCode
from tests.commands import check_dataset
from tests.entry_point.data.packing.pack_command import (
    contents,
    copy,
    index,
    pack,
    report,
    samples,
    side_indexes,
)
from tests.entry_point.data.sources.class_folders import class_folder


def test_baseline_jpegs_keep_their_bytes_and_progressive_ones_pixels_and_orientation(
    photo_folder: Path, packed: Path
) -> None:
    how = Counter[str]()
    for split in ("train", "val"):
        classes, indexes = read_dataset(packed).classes, side_indexes(packed, split)
        found, files = samples(packed, split), (photo_folder / split).rglob("*.jpg")
        assert found.keys() == {str(file.relative_to(photo_folder / split)) for file in files}
        for name, (label, data) in found.items():
            original = (photo_folder / split / name).read_bytes()
            before, after = Image.open(io.BytesIO(original)), Image.open(io.BytesIO(data))
            rewritten = "progression" in before.info
            assert "progression" not in after.info and (rewritten or data == original)
            np.testing.assert_array_equal(np.asarray(after), np.asarray(before))
            assert after.getexif().get(0x0112) == before.getexif().get(0x0112)
            assert classes[label] == name.split("/")[0]
            jpeg = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            assert indexes[name] == index_jpeg(jpeg).numpy().tobytes() != b""
            how["rewritten" if rewritten else "indexed"] += 1
        assert report(packed)["splits"][split]["how"] == how
        how.clear()


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
    assert index(packed)["key"] != sorted(index(packed)["key"])


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


def test_packing_again_changes_nothing_and_other_options_or_files_are_an_error(
    photo_folder: Path, packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = copy(photo_folder, tmp_path / "source"), copy(packed, tmp_path / "packed")
    assert pack(source, output) == 0
    assert pack(source, output, "quality=80") == ExitCode.USAGE
    assert "made from other files or with other options" in capsys.readouterr().err
    file = source / "train/cat/000.jpg"
    file.write_bytes(file.read_bytes())  # of the same size, but at another time
    assert pack(source, output) == ExitCode.USAGE
    assert "made from other files or with other options" in capsys.readouterr().err
    assert contents(output) == contents(packed)
    assert {path.name for path in tmp_path.iterdir()} == {"source", "packed"}


@pytest.mark.parametrize("part", ["1/1", "2/2"])
def test_a_file_that_was_removed_as_damaged_is_packed_again(
    photo_folder: Path, tmp_path: Path, part: str
) -> None:
    output = tmp_path / "packed"
    assert pack(photo_folder, output, f"part={part}") == 0
    before = contents(output)
    shard, index = next(output.glob("train/*.tar")), next(output.glob("*/index*"))
    for damage in (shard.unlink, index.unlink, lambda: os.truncate(shard, 512)):
        damage()
        assert contents(output) != before
        assert pack(photo_folder, output, f"part={part}") == 0
        assert contents(output) == before


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
    assert not [*(tmp_path / "none").glob("[!.]*")]  # but for what the next run resumes from
