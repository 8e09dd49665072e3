"""The tar files of others as a source."""

import io
import json
import logging
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
import webdataset
from PIL import Image

from entry_point.config.data_config import DataConfig
from entry_point.data.errors import DataError
from entry_point.data.loader import build_loader, open_source
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.sources.source import Source
from entry_point.data.sources.webdataset import expanded
from entry_point.job.program import ExitCode
from tests import commands
from tests.entry_point.data.engines.every_engine import Way, pipeline_of
from tests.entry_point.data.sources.small_datasets import jpeg, write_tar

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


def open_tars(root: Path | str, split: str = "train", **data: Any) -> Source:
    return open_source(DataConfig(format="webdataset", root=str(root), **data), split, Path())


def samples(source: Source, engine: Way) -> list[tuple[torch.Tensor, torch.Tensor]]:
    data = DataConfig(image_size=32, resize=36)
    spec = LoaderSpec(data, pipeline_of(engine, num_workers=1), "train", 10, seed=2)
    loader = build_loader(source, spec)
    found = [(batch.images.clone(), batch.labels) for batch in loader.epoch(1)]
    loader.close()
    return found


@pytest.mark.parametrize("engine", ["threads", "workers"])
@pytest.mark.parametrize("suffix", ["cls", "txt", "json"])
def test_tars_give_the_samples_of_the_folder_that_they_were_made_of(
    mixed_folder: Path, tmp_path: Path, engine: Way, suffix: str
) -> None:
    tars = write_tars(mixed_folder, tmp_path / "tars", suffix)
    for split in SPLITS:
        folder = open_source(DataConfig(root=str(mixed_folder)), split, Path())
        source = open_tars(tars, split)
        assert len(source) == len(folder)
        names = [str(n) for n in range(8)] if suffix == "cls" else folder.classes
        assert source.classes == names and source.labels.tolist() == folder.labels.tolist()
        if split == "train":
            for ours, theirs in zip(samples(source, engine), samples(folder, engine), strict=True):
                assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])


def test_side_indexes_are_made_for_the_jpegs_in_tars(photo_folder: Path, tmp_path: Path) -> None:
    tars = write_tars(photo_folder, tmp_path / "tars")
    source = open_tars(tars)
    before = samples(source, "threads")
    again = open_tars(tars)
    indexes = again.indexes(torch.arange(len(again)).numpy()) or []
    assert sum(bool(len(index)) for index in indexes) > 25
    for one, other in zip(before, samples(again, "threads"), strict=True):
        assert torch.equal(one[0], other[0])


def test_tars_are_packed_indexed_and_checked(
    mixed_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tars, packed = write_tars(mixed_folder, tmp_path / "tars", "txt"), tmp_path / "packed"
    caplog.set_level(logging.INFO)
    assert commands.optimize([f"source={tars}", f"output={packed}"]) == 0
    folder = open_source(DataConfig(root=str(mixed_folder)), "train", Path())
    source: Any = open_source(DataConfig(format="shards", root=str(packed)), "train", Path())
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


def test_tars_without_the_name_of_a_split_are_divided_by_a_hash(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    members = [
        (f"{i:03d}.{kind}", content)
        for i in range(200)
        for kind, content in (("jpg", jpeg()), ("cls", b"%d" % (i % 2)))
    ]
    write_tar(tmp_path / "photos.tar", *members)
    with caplog.at_level(logging.INFO):
        sizes = [len(open_tars(tmp_path / "photos.tar", split)) for split in SPLITS]
    assert sum(sizes) == 200 and 5 < sizes[1] < 40
    assert "by a hash of the paths, val_fraction=0.1" in caplog.text
    assert 60 < len(open_tars(tmp_path, "val", val_fraction=0.5)) < 140


def test_tars_of_train_and_test_are_divided_packed_and_checked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As those of CIFAR-10."""
    for split in ("train", "test"):
        members = [(f"{i:03d}.{kind}", content) for i in range(100) for kind, content in
                   (("jpg", jpeg()), ("cls", b"%d" % (i % 2)))]  # fmt: skip
        write_tar(tmp_path / "tars" / f"{split}.tar", *members)
    tars, packed = tmp_path / "tars", tmp_path / "packed"
    with pytest.raises(DataError, match=r"no images for val, .* data\.val_fraction=0\.1 takes a"):
        open_tars(tars, "val")
    train, val = (open_tars(tars, split, val_fraction=0.3) for split in SPLITS)
    assert len(train) + len(val) == 100 and 15 < len(val) < 45
    assert commands.optimize([f"source={tars}", f"output={packed}", "val_fraction=0.3"]) == 0
    with caplog.at_level(logging.INFO):
        assert (
            commands.check_dataset([f"root={packed}"])
            == commands.check_dataset([f"root={tars}"])
            == 0
        )
    assert caplog.text.count("200 images checked") == 2
    write_tar(tmp_path / "none" / "train.tar", ("notes.md", b"words"))
    assert commands.check_dataset([f"root={tmp_path / 'none'}"]) == ExitCode.USAGE


def test_tars_below_folders_of_any_name_are_checked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for split in ("train", "valid"):
        write_tar(tmp_path / "photos" / split / "0.tar", ("0.jpg", jpeg()), ("0.cls", b"0"))
    with caplog.at_level(logging.INFO):
        assert commands.check_dataset([f"root={tmp_path}"]) == 0
    assert "2 images checked" in caplog.text


def test_a_pattern_with_braces_names_the_tars(photo_folder: Path, tmp_path: Path) -> None:
    tars = write_tars(photo_folder, tmp_path / "tars")
    pattern = f"{tars}/{{train,val}}-{{000..001}}.tar"
    assert [len(open_tars(pattern, split)) for split in SPLITS] == [20, 20]
    assert expanded("a-{08..10}.tar") == ["a-08.tar", "a-09.tar", "a-10.tar"]
    with pytest.raises(DataError, match=r"no such file: .*train-005\.tar"):
        open_tars(f"{tars}/train-{{000..009}}.tar")


def test_lists_in_json_are_several_labels(tmp_path: Path) -> None:
    rows = [["cat"], ["cat", "dog"], [], ["dog"]] * 2
    for split in SPLITS:
        members = [
            each
            for i, row in enumerate(rows)
            for each in ((f"{i}.jpg", jpeg()), (f"{i}.json", json.dumps({"labels": row}).encode()))
        ]
        write_tar(tmp_path / f"{split}.tar", *members)
    source = open_tars(tmp_path)
    assert (source.kind, source.classes) == ("labels", ["cat", "dog"])
    assert source.labels[:4].tolist() == [[1, 0], [1, 1], [0, 0], [0, 1]]


@pytest.mark.parametrize(
    ("members", "message"),
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
    tmp_path: Path, members: list[tuple[str, bytes]], message: str
) -> None:
    for split in SPLITS:
        write_tar(tmp_path / f"{split}.tar", *members)
    with pytest.raises(DataError, match=message.format(tmp_path)):
        open_tars(tmp_path)


def test_a_tar_that_is_cut_off_is_named(photo_folder: Path, tmp_path: Path) -> None:
    tars = write_tars(photo_folder, tmp_path / "tars")
    (tars / "val-000.tar").write_bytes((tars / "val-000.tar").read_bytes()[:5000])
    with pytest.raises(DataError, match=r"val-000\.tar is not a sound tar file from byte"):
        open_tars(tars)


def test_hidden_members_of_macos_are_left_out(tmp_path: Path) -> None:
    for split in SPLITS:
        members = [(f"./{hidden}{i}.{kind}", content) for i in range(2) for kind, content in
                   (("jpg", jpeg()), ("cls", b"%d" % i)) for hidden in ("._", "")]  # fmt: skip
        write_tar(tmp_path / f"{split}.tar", *members)
    source = open_tars(tmp_path)
    assert [source.key(i) for i in range(len(source))] == [
        f"{tmp_path}/train.tar/./{i}.jpg" for i in range(2)
    ]


def test_members_without_an_image_and_other_splits_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for split in (*SPLITS, "extra"):
        members = [(f"{i}.{kind}", content) for i in range(2) for kind, content in
                   (("jpg", jpeg()), ("cls", b"%d" % i))]  # fmt: skip
        write_tar(tmp_path / f"{split}.tar", *members, ("notes.md", b"words"))
    with caplog.at_level(logging.INFO):
        assert len(open_tars(tmp_path)) == 2
    assert "members without an image are ignored: 1 .md" in caplog.text
    assert "not used: 1 of no split" in caplog.text
