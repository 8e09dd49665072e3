"""The tar files of others as a source."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import webdataset

from entry_point.data.batch import Batch
from entry_point.data.errors import DataError
from entry_point.data.sources.source import Source
from entry_point.data.sources.webdataset import expanded
from tests import commands
from tests.entry_point.data.engines.every_engine import Way
from tests.entry_point.data.loaders import epoch_of, loader_of, source_of
from tests.entry_point.data.sources.small_datasets import keys, members, refusal, write_tar

SPLITS = ("train", "val")


def write_tars(photographs: Path, folder: Path, suffix: str = "cls", per_tar: int = 10) -> Path:
    """By the `webdataset` package: folder/<split>-NNN.tar, images of several formats."""
    classes = sorted(path.name for path in (photographs / "train").iterdir())
    folder.mkdir()
    for split in SPLITS:
        pattern = str(folder / f"{split}-%03d.tar")
        with webdataset.ShardWriter(pattern, maxcount=per_tar, verbose=0) as writer:
            for number, file in enumerate(sorted((photographs / split).glob("*/*"))):
                name = file.parent.name
                labels: dict[str, Any] = {
                    "cls": classes.index(name),
                    "txt": name,
                    "json": {"label": name, "size": [1, 2]},
                }
                image = {file.suffix.removeprefix("."): file.read_bytes()}
                writer.write({"__key__": f"{number:04d}", **image, suffix: labels[suffix]})
    return folder


def open_tars(root: Path | str, split: str = "train") -> Source:
    return source_of(Path(root), split, format="webdataset")


def assert_same(found: list[Batch], expected: list[Batch]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.images, other.images) and torch.equal(one.labels, other.labels)


@pytest.mark.parametrize(
    ("suffix", "engine"), [("cls", "threads"), ("txt", "workers"), ("json", "threads")]
)
def test_tars_give_the_samples_of_the_folder_that_they_were_made_of(
    mixed_folder: Path, tmp_path: Path, suffix: str, engine: Way
) -> None:
    tars = write_tars(mixed_folder, tmp_path / "tars", suffix)
    for split in SPLITS:
        folder, source = source_of(mixed_folder, split), open_tars(tars, split)
        assert len(source) == len(folder)
        names = [str(n) for n in range(8)] if suffix == "cls" else folder.classes
        assert source.classes == names and source.labels.tolist() == folder.labels.tolist()
        assert all(torch.equal(source.read(i), folder.read(i)) for i in range(len(folder)))
        if split == "train":
            assert_same(*(epoch_of(loader_of(each, engine)) for each in (source, folder)))


def test_side_indexes_are_made_for_the_jpegs_in_tars(photo_folder: Path, tmp_path: Path) -> None:
    tars = write_tars(photo_folder, tmp_path / "tars")
    before, again = epoch_of(loader_of(open_tars(tars))), open_tars(tars)
    indexes = again.indexes(torch.arange(len(again)).numpy()) or []
    assert sum(bool(len(index)) for index in indexes) > 25
    assert_same(epoch_of(loader_of(again)), before)


def test_tars_are_packed_indexed_and_checked(
    mixed_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tars, packed = write_tars(mixed_folder, tmp_path / "tars", "txt"), tmp_path / "packed"
    caplog.set_level(logging.INFO)
    assert commands.optimize([f"source={tars}", f"output={packed}"]) == 0
    folder, source = source_of(mixed_folder), source_of(packed)
    assert source.classes == folder.classes and len(source) == len(folder)
    assert commands.check_dataset([f"root={packed}"]) == 0
    assert commands.check_dataset([f"root={tars}"]) == 0
    assert caplog.text.count("72 images checked, problems: 0") == 2
    assert commands.optimize([f"source={tars}", "output_format=index"]) == 0
    indexed: Any = open_tars(tars)
    assert indexed.index_store is not None and not indexed.index_store.grows
    assert indexed.indexes(torch.arange(48).numpy()) is not None
    tar = tars / "train-000.tar"
    content = bytearray(tar.read_bytes())
    content[2000:4000] = bytes(2000)  # in the first image
    tar.write_bytes(content)
    assert commands.check_dataset([f"root={tars}"]) == 1
    assert f"{tar}/0000" in caplog.text


def test_braces_of_a_pattern_count_and_choose(tmp_path: Path) -> None:
    found = ["a-08-x.tar", "a-08-y.tar", "a-09-x.tar", "a-09-y.tar", "a-10-x.tar", "a-10-y.tar"]
    assert expanded("a-{08..10}-{x,y}.tar") == found
    write_tar(tmp_path / "a-1.tar", *members([0, 0]))
    with pytest.raises(DataError, match=r"no such file: .*/a-2\.tar"):
        open_tars(f"{tmp_path}/a-{{1..2}}.tar")
    assert len(open_tars(f"{tmp_path}/a-{{1..1}}.tar")) == 1
    write_tar(tmp_path / "a-1.tar", ("notes.md", b"words"))
    assert "holds no images" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([("1.jpg", b"x")], r"the sample 1 has no label: none of \.cls, \.txt, \.json"),
        ([("1.jpg", b"x"), ("1.png", b"x"), ("1.cls", b"0")], "the sample 1 has 2 images"),
        ([("1.jpg", b"x"), ("1.json", b"{")], r"1\.json: cannot be read"),
        ([("1.jpg", b"x"), ("1.json", b"[" * 100_000)], r"1\.json: cannot be read"),
        ([("1.jpg", b"x"), ("1.txt", bytes(2 << 20))], r"1\.txt: has 2097152 bytes: a label may"),
        ([("1.jpg", b"x"), ("1.json", b'{"a": 1}')], r"1\.json: holds a: must hold one of label"),
        ([("1.jpg", b"x"), ("1.json", b"true")], "must be a text, a number"),
        ([("1.jpg", b"x"), ("1.txt", b"a\0b")], r"{}/train\.tar/1\.jpg: the label"),
    ],
)
def test_what_cannot_be_used_is_named(
    tmp_path: Path, found: list[tuple[str, bytes]], message: str
) -> None:
    for split in SPLITS:
        write_tar(tmp_path / f"{split}.tar", *found)
    with pytest.raises(DataError, match=message.format(tmp_path)):
        open_tars(tmp_path)


def test_the_words_of_paths_tell_splits_and_tars_of_no_split_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a/train/0.tar", "a/valid/1.tar", "extra.tar"):
        write_tar(tmp_path / name, *members([0, 1]))
    with caplog.at_level(logging.INFO):
        found = [keys(open_tars(tmp_path, split)) for split in SPLITS]
    assert [*map(len, found)] == [2, 2] and found[1][1] == f"{tmp_path}/a/valid/1.tar/001.jpg"
    assert "not used: 1 of no split" in caplog.text
