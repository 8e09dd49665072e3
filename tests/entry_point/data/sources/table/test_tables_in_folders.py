"""Tables beside each other, and beside other data, are read or named, and never dropped."""

import logging
from pathlib import Path
from typing import Any

import pytest

from entry_point.config.data_config import DataConfig
from entry_point.data.errors import DataError
from entry_point.data.sources.dataset import Dataset, open_dataset
from tests.entry_point.data.sources.table.labeled_tables import write
from tests.entry_point.data.sources.test_webdataset import jpeg, write_tar


def rows(root: Path, split: str, below: str = "") -> list[dict[str, Any]]:
    """Six images in root/SPLIT/CLASS, and their rows with paths from `below`."""
    names = [f"{split}/{name}/{i}.jpg" for name in ("cat", "dog") for i in range(3)]
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(jpeg())
    return [{"path": name.removeprefix(below), "label": name.split("/")[1]} for name in names]


def opened(root: Path, **data: Any) -> Dataset:
    settings = DataConfig(format="manifest", root=str(root), **data)
    return open_dataset(settings, root, for_training=True)


def counts(dataset: Dataset) -> dict[str, int]:
    return {split: len(dataset.source(split)) for split in dataset.splits}


@pytest.mark.parametrize(
    ("first", "second"),
    [("val.csv", "valid.csv"), ("val.csv", "val.jsonl"), ("dev.tsv", "validation.csv")],
)
def test_two_tables_of_one_split_are_refused(tmp_path: Path, first: str, second: str) -> None:
    write(tmp_path / "train.csv", rows(tmp_path, "train"))
    for place, name in enumerate((first, second)):
        write(tmp_path / name, rows(tmp_path, "val")[place::2])
    with pytest.raises(DataError, match=r"are both tables for val: remove or rename one") as raised:
        opened(tmp_path)
    assert first in str(raised.value) and second in str(raised.value)


def test_two_tables_in_the_folder_of_a_split_are_refused(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write(tmp_path / split / "metadata.csv", rows(tmp_path, split, f"{split}/"))
    write(tmp_path / "val/metadata.jsonl", rows(tmp_path, "val", "val/"))
    with pytest.raises(DataError, match=r"metadata.csv and .*metadata.jsonl are both tables for"):
        opened(tmp_path)


def test_a_table_beside_those_of_splits_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for split in ("train", "val"):
        write(tmp_path / f"{split}.csv", rows(tmp_path, split))
    write(tmp_path / "labels.csv", rows(tmp_path, "val"))
    assert counts(opened(tmp_path)) == {"train": 6, "val": 6}
    assert "only train.csv, val.csv are read, the tables of splits; not read: labels.csv" in (
        caplog.text
    )


def test_a_table_beside_those_in_folders_of_splits_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for split in ("train", "val"):
        write(tmp_path / split / "metadata.csv", rows(tmp_path, split, f"{split}/"))
    write(tmp_path / "train.csv", rows(tmp_path, "train"))
    assert counts(opened(tmp_path)) == {"train": 6, "val": 6}
    assert "not read: train.csv" in caplog.text


def test_a_test_table_without_labels_is_named_and_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for split in ("train", "val"):
        write(tmp_path / f"{split}.csv", rows(tmp_path, split))
    write(tmp_path / "test.csv", [{"path": "1.jpg"}])
    assert counts(opened(tmp_path)) == {"train": 6, "val": 6}
    assert f"{tmp_path}/test.csv has no column 'label': it is not read" in caplog.text


def test_lists_of_splits_are_tables_and_other_text_is_not(tmp_path: Path) -> None:
    for split in ("train", "val"):
        lines = (f"{row['path']} {row['label']}\n" for row in rows(tmp_path / "x", split))
        (tmp_path / f"{split}.txt").write_text("".join(f"x/{line}" for line in lines))
    (tmp_path / "readme.txt").write_text("An image, such as a.jpg\n")
    (tmp_path / "test.txt").write_text("none\n")
    dataset = open_dataset(DataConfig(root=str(tmp_path)), tmp_path, for_training=True)
    assert counts(dataset) == {"train": 6, "val": 6}


def test_sagemakers_lists_of_channels_are_read(tmp_path: Path) -> None:
    for split in ("train", "validation"):
        (tmp_path / split).mkdir()
        (tmp_path / f"{split}_lst").mkdir()
        for i in range(6):
            (tmp_path / split / f"{i}.jpg").write_bytes(jpeg())
        lines = "".join(f"{i}\t{i % 2}\t{i}.jpg\n" for i in range(6))
        (tmp_path / f"{split}_lst" / "a.lst").write_text(lines)
    dataset = open_dataset(DataConfig(root=str(tmp_path)), tmp_path, for_training=True)
    assert counts(dataset) == {"train": 6, "val": 6}
    source = dataset.source("val")
    assert source.key(5) == f"{tmp_path}/validation/5.jpg" and source.labels.tolist() == [0, 1] * 3


def test_tables_beside_tar_files_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    members = [(f"{i}.{kind}", content) for i in range(8) for kind, content in
               (("jpg", jpeg()), ("cls", b"%d" % (i % 2)))]  # fmt: skip
    write_tar(tmp_path / "train.tar", *members)
    (tmp_path / "labels.csv").write_text("path,label\n0.jpg,cat\n")
    open_dataset(DataConfig(root=str(tmp_path)), tmp_path, for_training=False)
    assert f"{tmp_path} is read as tar files; not read: labels.csv" in caplog.text
