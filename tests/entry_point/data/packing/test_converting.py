"""A packed dataset of version 1: one line says how to convert it, and that loses nothing."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from entry_point.data.errors import DataError
from entry_point.data.sources.dataset_description import read_dataset
from entry_point.data.sources.stream import PackedStream
from entry_point.job.program import ExitCode
from tests.commands import check_dataset, optimize
from tests.entry_point.data.loaders import source_of
from tests.entry_point.data.packing.pack_command import contents, pack, side_indexes
from tests.entry_point.data.packing.version_1 import version_1
from tests.entry_point.data.sources.table.labeled_tables import write_tags

Image = tuple[bytes, list[float]]


def _images(root: Path, split: str) -> dict[str, Image]:
    """Bytes and labels by key."""
    source = PackedStream(root, split)
    labels = source.labels.reshape(len(source), -1).tolist()
    files = [source.read(i).numpy().tobytes() for i in range(len(source))]
    return dict(zip(source.index, zip(files, labels, strict=True), strict=True))


def _converted(old: Path) -> Path:
    """The output of the command that opening the dataset names."""
    with pytest.raises(DataError, match="a packed dataset of version 1") as raised:
        source_of(old)
    (arguments,) = re.findall('`make dataset ARGS="(.*)"`', str(raised.value))
    assert optimize(shlex.split(arguments)) == ExitCode.FINISHED
    return old.with_name(f"{old.name}-2")


def _require_same(old: Path, new: Path) -> None:
    """Of every image: its key, its bytes and its label."""
    before, after = read_dataset(old), read_dataset(new)
    assert (before.version, after.version) == (1, 2)
    assert (after.kind, after.classes) == (before.kind, before.classes)
    assert after.splits == before.splits
    for split in before.splits:
        assert _images(new, split) == _images(old, split) != {}
    assert check_dataset([f"root={new}"]) == ExitCode.FINISHED


def test_a_converted_dataset_has_the_same_images_and_side_indexes(
    packed: Path, tmp_path: Path
) -> None:
    old = version_1(packed, tmp_path / "old")
    before = contents(old)
    new = _converted(old)
    _require_same(old, new)
    assert contents(old) == before
    for split in ("train", "val"):
        assert side_indexes(new, split) == side_indexes(packed, split)


def test_images_that_were_shrunk_or_converted_are_not_encoded_again(
    mixed_folder: Path, tmp_path: Path
) -> None:
    options = ("max_side=200", "convert=jpeg", "quality=70")
    assert pack(mixed_folder, tmp_path / "new", *options) == ExitCode.FINISHED
    old = version_1(tmp_path / "new", tmp_path / "old")
    _require_same(old, _converted(old))


@pytest.mark.parametrize("kind", ["labels", "numbers"])
def test_labels_and_numbers_are_the_same_after_converting(
    kind: str, photo_folder: Path, tmp_path: Path
) -> None:
    table = write_tags(tmp_path / "tags.jsonl", photo_folder, kind)
    options = (f"images={photo_folder}", "table.labels=[tags]")
    assert pack(table, tmp_path / "new", *options) == ExitCode.FINISHED
    old = version_1(tmp_path / "new", tmp_path / "old")
    assert read_dataset(old).kind == kind
    _require_same(old, _converted(old))


def test_parts_and_classes_without_images_are_converted(photos: Path, tmp_path: Path) -> None:
    for file in photos.glob("*/cat/*"):
        file.write_text("no image")
    for number in (1, 2):
        assert pack(photos, tmp_path / "new", f"part={number}/2") == ExitCode.FINISHED
    old = version_1(tmp_path / "new", tmp_path / "old")
    _require_same(old, _converted(old))


def test_no_program_reads_version_1_and_no_part_joins_it(
    packed: Path, tmp_path: Path, photo_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = version_1(packed, tmp_path / "old")
    commands = (
        lambda: check_dataset([f"root={old}"]),
        lambda: check_dataset([f"root={old / 'train'}"]),
        lambda: optimize([f"source={old}", "output_format=index"]),
    )
    for command in commands:
        assert command() == ExitCode.USAGE
        line = f'convert it with `make dataset ARGS="source={old} output={old}-2"`'
        assert line in capsys.readouterr().err
    assert pack(photo_folder, old, "part=1/2") == ExitCode.USAGE
    assert "differ in the number of parts" in capsys.readouterr().err
    assert pack(photo_folder, old) == ExitCode.USAGE
    line = f"output={old} holds a dataset made from other files or with other options: remove it"
    assert line in capsys.readouterr().err


def test_a_dataset_of_this_version_is_not_packed_again(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for source in (packed, packed / "train"):
        assert pack(source, tmp_path / "new") == ExitCode.USAGE
        assert "is packed already: train on it as it is" in capsys.readouterr().err


def test_damage_of_an_index_of_version_1_is_named(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = version_1(packed, tmp_path / "old")
    index = old / "train/index.safetensors"
    data = bytearray(index.read_bytes())
    data[-5] ^= 1
    index.write_bytes(data)
    assert pack(old, tmp_path / "new") == ExitCode.USAGE
    assert "index.safetensors is damaged (its checksum differs)" in capsys.readouterr().err


@pytest.mark.parametrize("packs", ["version 1", "this version"])
def test_shards_are_read_as_a_webdataset_without_their_side_indexes(
    packs: str, packed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = version_1(packed, tmp_path / "old") if packs == "version 1" else packed
    source = source_of(root, format="webdataset")
    shards = PackedStream(packed, "train")
    assert source.classes == shards.classes and source.labels.tolist() == shards.labels.tolist()
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
