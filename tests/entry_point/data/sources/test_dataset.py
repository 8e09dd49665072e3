"""A dataset is opened once: what lies there, its splits and its labels, for every program."""

from __future__ import annotations

import inspect
import logging
import os
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from entry_point.config.data_config import FORMATS, OF_FORMATS, DataConfig
from entry_point.config.resolve import resolve
from entry_point.config.train_config import load_train_config
from entry_point.data.errors import DataError
from entry_point.data.loader import open_source
from entry_point.data.sources.dataset import open_dataset
from entry_point.data.sources.splits import WHOLE
from tests.entry_point.data.packing.pack_command import pack
from tests.entry_point.data.sources.pipes import pipe_at
from tests.entry_point.data.sources.small_datasets import (
    NAMES,
    counts,
    jpeg,
    keys,
    labeled,
    members,
    opened,
    refusal,
    splits,
    table,
    write,
    write_tar,
)
from tests.entry_point.data.sources.table import labeled_tables


def _tars(root: Path) -> Path:
    for split in ("train", "val"):
        write_tar(root / f"{split}.tar", *members([0, 1] * 10))
    return root


def _parquet(root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    images = [{"bytes": jpeg(), "path": None}] * 20
    rows = pa.table({"image": images, "label": ["cat", "dog"] * 10})
    for split in ("train", "validation"):
        pq.write_table(rows, root / f"{split}-00000-of-00001.parquet")
    return root


def _packed(root: Path) -> Path:
    assert pack(splits(root / "photos", "train", "val"), root / "packed") == 0
    return root / "packed"


def _tables(root: Path) -> Path:
    splits(root / "images", "one", "two")
    table(root / "train.csv", labeled(*(f"images/one/{name}" for name in NAMES)))
    table(root / "val.csv", labeled(*(f"images/two/{name}" for name in NAMES)))
    return root


def _masks(root: Path) -> Path:
    for split in ("train", "val"):
        write(root, *(f"{split}/{kind}/{i}.png" for kind in ("images", "masks") for i in range(20)))
    (root / "classes.txt").write_text("ground\ndisc\n")
    return root


FORMS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "class folders": (lambda root: splits(root, "train", "val"), "folder"),
    "class folders called otherwise": (lambda root: splits(root, "Training", "dev"), "folder"),
    "class folders in a folder": (lambda root: splits(root / "a", "train", "val").parent, "folder"),
    "tables of splits": (_tables, "manifest"),
    "tars": (_tars, "webdataset"),
    "parquet": (_parquet, "parquet"),
    "masks": (_masks, "masks"),
    "packed": (_packed, "shards"),
}


def test_packed_images_are_streamed_from_a_file_system_that_a_program_shows(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = packed.stat().st_dev
    mounts = tmp_path / "mounts"
    monkeypatch.setattr("entry_point.data.sources.dataset.MOUNTS", mounts)
    for kind, access in (("fuse.s3", "stream"), ("fuse", "stream"), ("ext4", "map")):
        number = f"{os.major(device)}:{os.minor(device)}"
        other = "23 28 0:1 / /proc rw shared:14 - fuse proc rw"
        mounts.write_text(f"{other}\n36 35 {number} / /mnt rw,noatime - {kind} source rw\n")
        for word in ("auto", "shards"):
            assert opened(packed, format=word).data.access == access
        for chosen in ("map", "stream"):
            assert opened(packed, access=chosen).data.access == chosen
    mounts.unlink()  # as on macOS
    assert opened(packed).data.access == "map"


@pytest.mark.parametrize("form", FORMS)
def test_what_lies_there_is_found_and_said_and_each_folder_listed_once(
    tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where folders are on S3, each listing is a request."""
    write_form, expected = FORMS[form]
    root, listed, scandir = write_form(tmp_path / "data"), Counter[str](), os.scandir

    def counted(folder: Path) -> Any:
        listed[str(folder)] += 1
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", counted)
    with caplog.at_level(logging.INFO):
        dataset = opened(root)
    found = {split: keys(dataset.source(split)) for split in ("train", "val")}
    assert {*listed.values()} == {1}
    assert dataset.data.format == expected and [*dataset.splits] == ["train", "val"]
    assert [*map(len, found.values())] in ([40, 40], [20, 20])
    said = [line for line in caplog.messages if line.startswith(str(root))]
    assert any(" for train, " in line and line.endswith("2 classes") for line in said)
    named = opened(root, format=expected)
    assert found == {split: keys(named.source(split)) for split in found}


def test_the_demos_pixels_never_meet_the_users_photographs(tmp_path: Path) -> None:
    assert load_train_config([])[0].data.format == "demo"
    assert load_train_config(["trainer.epochs=1"])[0].data.image_size == 64
    for override in (f"data.root={tmp_path}", "data=auto", "experiment=finetune"):
        data = load_train_config([override])[0].data
        assert (data.format, data.image_size, data.scale) == ("auto", 224, [0.08, 1.0])
    assert load_train_config([], has_channels=True)[0].data.image_size == 224


@pytest.mark.parametrize("place", ["labels.csv", "train/metadata.csv"])
def test_two_readings_are_said_with_the_setting_that_chooses(
    tmp_path: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    root = splits(tmp_path, "train", "val")
    rows = [f"train/{name}" if place == "labels.csv" else name for name in NAMES]
    table(root / place, labeled(*rows))
    with caplog.at_level(logging.INFO):
        assert opened(root).data.format == "folder"
    assert "may also be read as a table (data.format=manifest)" in caplog.text
    assert opened(root, format="manifest", for_training=False).data.format == "manifest"


def test_a_set_of_no_split_is_whole_except_for_training(tmp_path: Path) -> None:
    root = write(tmp_path / "flat", *NAMES)
    assert counts(opened(root, for_training=False)) == {WHOLE: 40}
    divided = counts(opened(root))
    assert divided.keys() == {"train", "val"} and sum(divided.values()) == 40


def test_the_split_test_is_kept_apart(tmp_path: Path) -> None:
    root = splits(tmp_path, "train", "val", "test")
    assert counts(opened(root)) == {"train": 40, "val": 40, "test": 40}
    assert len(opened(root).source(WHOLE)) == 120
    alone = opened(splits(tmp_path / "other", "test"), for_training=False)
    assert counts(alone) == {"test": 40}


def test_what_is_missing_for_training_names_the_way_out(tmp_path: Path) -> None:
    root = splits(tmp_path, "train", "test")
    with pytest.raises(DataError, match=r"no images for val, only 40 images for train, 40 for"):
        opened(root).source("val")
    with pytest.raises(DataError, match=r"no images for test, only .* \(no splits\); leave split"):
        opened(root / "train", for_training=False).source("test")
    found = counts(opened(root, val_fraction=0.2))
    assert found["train"] + found["val"] == 40 and found["test"] == 40


@pytest.mark.parametrize(
    "folders", [("train", "val"), ("train2017", "val2017"), ("seg_train", "seg_valid")]
)
def test_folders_in_the_paths_of_a_table_tell_splits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, folders: tuple[str, str]
) -> None:
    splits(tmp_path, *folders)
    names = [f"{folder}/{name}" for folder in folders for name in NAMES]
    file = table(tmp_path / "labels.csv", labeled(*names))
    with caplog.at_level(logging.INFO):
        assert counts(opened(file)) == {"train": 40, "val": 40}
    assert "by the folders in their paths" in caplog.text
    assert counts(opened(file, val_fraction=0.4))["train"] not in (0, 40)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize(("name", "val"), [("set", "valid"), ("Usage", "PrivateTest")])
def test_a_column_that_may_tell_splits_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, suffix: str, name: str, val: str
) -> None:
    write(tmp_path, *NAMES)
    cells = ("Training", val)
    rows = [{"path": n, "label": n[:3], name: cells["1" in n]} for n in NAMES]
    file = labeled_tables.write(tmp_path / f"labels{suffix}", rows)
    opened(file)
    line = f"{file}: its column '{name}' has 'Training' in the first row: set data.table.split="
    assert f"{line}{name} if it tells splits" in caplog.text
    caplog.clear()
    assert counts(opened(file, table={"split": name}, for_training=False))["train"] == 18
    assert line not in caplog.text


def test_predictions_read_no_column_of_splits_and_name_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = table(tmp_path / "a.csv", [f"{name},train,val" for name in NAMES], "path,split,set")
    found = open_dataset(DataConfig(), file, for_training=False, labeled=False)
    assert found.data.format == "manifest" and counts(found) == {WHOLE: 40}
    assert "tells splits" not in caplog.text


def test_a_class_called_as_a_split_is_no_split_of_a_table(tmp_path: Path) -> None:
    names = [name.replace("dog", "valid") for name in NAMES]
    paths = [f"{split}/{name}" for split in ("train", "val") for name in names]
    file = table(write(tmp_path, *paths) / "labels.csv", labeled(*paths))
    assert counts(opened(file)) == {"train": 40, "val": 40}
    only_train = table(tmp_path / "train.csv", labeled(*paths[:40]))
    assert counts(opened(only_train, for_training=False)) == {"train": 40}


def test_a_folder_above_the_splits_of_a_table_may_be_called_as_one(tmp_path: Path) -> None:
    root = tmp_path / "dev" / "photos"
    paths = [f"{root}/{split}/{name}" for split in ("train", "val") for name in NAMES]
    write(root, *(f"{split}/{name}" for split in ("train", "val") for name in NAMES))
    file = table(tmp_path / "labels.csv", labeled(*paths))
    assert counts(opened(file)) == {"train": 40, "val": 40}


@pytest.mark.parametrize("form", sorted({"auto", *FORMATS} - {"demo"}))
def test_a_root_that_is_not_there_is_named_by_its_setting(tmp_path: Path, form: str) -> None:
    root = tmp_path / "nowhere"
    assert refusal(root, format=form) == f"data.root={root}: no such file or folder"


def test_channels_called_as_splits_are_the_dataset(tmp_path: Path) -> None:
    splits(tmp_path, "train", "validation")
    (tmp_path / "weights").mkdir()
    assert len(open_source(DataConfig(), "val", tmp_path)) == 40


def test_classes_of_all_splits_are_the_classes_of_each(tmp_path: Path) -> None:
    root = write(splits(tmp_path, "train", "val"), "train/emu/1.jpg", "test/cat/1.jpg")
    (root / "val/fox").mkdir()
    for split in ("train", "val", "test"):
        assert opened(root).source(split).classes == ["cat", "dog", "emu", "fox"]


def test_parquet_of_paths_and_saved_arrow_files_name_the_call_that_mends_them(
    tmp_path: Path,
) -> None:
    paths = [{"bytes": None, "path": f"{i}.jpg"} for i in range(20)]
    (tmp_path / "rows").mkdir()
    form = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = pa.table({"image": pa.array(paths, form), "label": ["cat", "dog"] * 10})
    pq.write_table(rows, tmp_path / "rows/train.parquet")
    message = refusal(tmp_path / "rows")
    assert "has paths, not the images' bytes" in message and "embed_table_storage" in message
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "state.json").write_text("{}")
    (saved / "data-00000-of-00001.arrow").write_bytes(b"ARROW1")
    for form in ("auto", "folder", "parquet", "manifest"):
        message = refusal(saved, format=form)
        assert "Arrow files" in message and f"load_from_disk('{saved}').to_parquet" in message
    cache = tmp_path / "cache"  # as in ~/.cache/huggingface/datasets
    cache.mkdir()
    (cache / "dataset_info.json").write_text('{"builder_name": "cats"}')
    (cache / "cats-train.arrow").write_bytes(b"ARROW1")
    for form in ("auto", "folder", "parquet", "manifest"):
        message = refusal(cache, format=form)
        assert f"Dataset.from_file('{cache}/cats-train.arrow').to_parquet" in message


@pytest.mark.parametrize("write_form", [_tars, _parquet])
def test_a_file_that_is_replaced_while_it_is_read_is_named(
    tmp_path: Path, write_form: Callable[[Path], Path]
) -> None:
    source = opened(write_form(tmp_path / "data")).source("train")
    for file in (tmp_path / "data").iterdir():
        status = file.stat()
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(DataError, match="was replaced while it was in use"):
        source.read(0)


def test_a_pipe_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    pipe = pipe_at(_parquet(tmp_path) / "train-00000-of-00001.parquet")
    with pipe, pytest.raises(OSError, match="is not a regular file"):
        opened(tmp_path)


def test_links_to_themselves_and_to_nothing_do_not_hide_a_dataset(tmp_path: Path) -> None:
    root = splits(tmp_path, "train", "val")
    for place in (root, root / "train", root / "train/cat"):
        (place / "loop.jpg").symlink_to("loop.jpg")
        (place / "gone").symlink_to("nowhere")
    assert opened(root).data.format == "folder"


def test_an_own_source_has_train_and_val_and_no_test_that_is_kept_out(tmp_path: Path) -> None:
    write(tmp_path, *(name.replace("/", "_") for name in NAMES))
    dataset = opened(tmp_path, format="project.sources.by_file_name")
    assert [*dataset.splits] == ["train", "val"]
    with pytest.raises(DataError, match="no images for test, only those of train and val"):
        dataset.source("test")


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_has_all_that_a_format_needs(name: str) -> None:
    found = FORMATS[name]
    assert {*found.settings} <= {*OF_FORMATS}
    assert not found.package or find_spec(found.package)
    if name != "shards":  # which has no rows
        reader = resolve("data.format", f"entry_point.data.sources.{found.reader}", {})
        taken = inspect.signature(reader)
        assert taken.bind("tree", "data", "labeled") and taken.return_annotation == "Rows"
