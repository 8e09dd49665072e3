"""Tables beside each other, and beside other data, are read or named, and never dropped."""

import logging
from pathlib import Path

import pytest

from entry_point.config.data_config import DataConfig
from entry_point.data.loader import open_source
from tests.entry_point.data.sources.small_datasets import (
    counts,
    keys,
    members,
    opened,
    refusal,
    table,
    write,
    write_tar,
)
from tests.entry_point.data.sources.table import labeled_tables


def write_tables(root: Path, *files: str) -> Path:
    """Each has rows of six images; those of `val/metadata.csv` lie in `val`."""
    for file in files:
        folder, start = (root / file).parent, "" if "/" in file else "images/"
        names = [f"{start}{Path(file).stem}/{name}/{i}.jpg" for name in "ab" for i in range(3)]
        write(folder, *names)
        rows = [{"path": name, "label": name.split("/")[-2]} for name in names]
        labeled_tables.write(root / file, rows)
    return root


@pytest.mark.parametrize(
    ("train", "first", "second"),
    [
        ("train.csv", "val.csv", "valid.csv"),
        ("train.csv", "val.csv", "val.jsonl"),
        ("train/metadata.csv", "val/metadata.csv", "val/metadata.jsonl"),
    ],
)
def test_two_tables_of_one_split_are_refused(
    tmp_path: Path, train: str, first: str, second: str
) -> None:
    message = refusal(write_tables(tmp_path, train, first, second), format="manifest")
    assert f"{first} and {tmp_path}/{second} are both tables for val: remove or rename" in message


@pytest.mark.parametrize(
    "tables",
    [
        ("train.csv", "val.csv"),
        ("train_labels.csv", "val_labels.csv"),
        ("labels_train.jsonl", "labels_valid.jsonl"),
        ("train2017.csv", "val2017.csv"),
    ],
)
def test_a_table_for_each_split_tells_it_by_a_word_of_its_name(
    tmp_path: Path, tables: tuple[str, str]
) -> None:
    dataset = opened(write_tables(tmp_path, *tables), format="manifest")
    assert counts(dataset) == {"train": 6, "val": 6}
    assert "by the names of the tables" in dataset.found


@pytest.mark.parametrize("folders", [("train", "val"), ("train", "validation")])
@pytest.mark.parametrize("images", ["", "images/"])
@pytest.mark.parametrize("name", ["labels.csv", "list.jsonl", "{split}.parquet"])
def test_the_only_table_in_the_folder_of_a_split_may_have_any_name(
    tmp_path: Path, folders: tuple[str, ...], images: str, name: str
) -> None:
    """As SageMaker's channels train and validation have."""
    for folder in folders:
        names = [f"{images}{folder}{i}.jpg" for i in range(6)]
        write(tmp_path / folder, *names)
        rows = [{"path": each, "label": "ab"[i % 2]} for i, each in enumerate(names)]
        labeled_tables.write(tmp_path / folder / name.format(split=folder), rows)
    assert counts(opened(tmp_path)) == {"train": 6, "val": 6}
    source = open_source(DataConfig(), "val", tmp_path)
    assert Path(source.key(0)) == tmp_path / folders[1] / f"{images}{folders[1]}0.jpg"
    for folder in folders:
        for label in "ab":
            write(tmp_path / folder / label, "0.jpg")
    assert opened(tmp_path).data.format == "folder"


def test_one_table_of_a_split_beside_others_tells_it(tmp_path: Path) -> None:
    root = write_tables(tmp_path, "train.csv", "sample_submission.csv")
    found = opened(root, format="manifest", val_fraction=0.4).found
    assert "(by the names of the tables; val by a hash" in found


@pytest.mark.parametrize(
    ("tables", "other"),
    [
        (("train.csv", "val.csv"), "labels.csv"),
        (("train/metadata.csv", "val/metadata.csv"), "train.csv"),
    ],
)
def test_a_table_beside_those_of_splits_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, tables: tuple[str, ...], other: str
) -> None:
    write_tables(tmp_path, *tables, other)
    assert counts(opened(tmp_path, format="manifest")) == {"train": 6, "val": 6}
    line = f"only {', '.join(tables)} are read, the tables of splits; not read: {other}"
    assert line in caplog.text


def test_a_test_table_without_labels_is_named_and_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table(write_tables(tmp_path, "train.csv", "val.csv") / "test.csv", ["1.jpg"], "path")
    assert counts(opened(tmp_path)) == {"train": 6, "val": 6}
    assert f"{tmp_path}/test.csv has no column 'label': it is not read" in caplog.text


def test_lists_of_splits_are_tables_and_other_text_is_not(tmp_path: Path) -> None:
    for split in ("train", "val"):
        names = [f"x/{split}/{name}/{i}.jpg" for name in "ab" for i in range(3)]
        lines = (f"{name} {name.split('/')[2]}\n" for name in names)
        (write(tmp_path, *names) / f"{split}.txt").write_text("".join(lines))
    (tmp_path / "readme.txt").write_text("An image, such as a.jpg\n")
    (tmp_path / "test.txt").write_text("none\n")
    assert counts(opened(tmp_path)) == {"train": 6, "val": 6}


def test_sagemakers_lists_of_channels_are_read(tmp_path: Path) -> None:
    for split in ("train", "validation"):
        write(tmp_path / split, *(f"{i}.jpg" for i in range(6)))
        (tmp_path / f"{split}_lst").mkdir()
        lines = "".join(f"{i}\t{i % 2}\t{i}.jpg\n" for i in range(6))
        (tmp_path / f"{split}_lst" / "a.lst").write_text(lines)
    dataset = opened(tmp_path)
    assert counts(dataset) == {"train": 6, "val": 6}
    source = dataset.source("val")
    assert keys(source) == [f"{tmp_path}/validation/{i}.jpg" for i in range(6)]
    assert source.labels.tolist() == [0, 1] * 3


def test_tables_beside_tar_files_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    write_tar(tmp_path / "train.tar", *members([0, 1] * 4))
    table(tmp_path / "labels.csv", ["0.jpg,cat"])
    opened(tmp_path, for_training=False)
    assert f"{tmp_path} is read as tar files; not read: labels.csv" in caplog.text
