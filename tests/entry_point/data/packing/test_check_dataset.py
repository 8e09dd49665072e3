"""`make check-dataset` finds damage, says where it is, and reads the rest."""

import json
import logging
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from entry_point.data import retries
from entry_point.data.errors import DataError
from entry_point.data.sources.dataset_description import read_dataset
from entry_point.job.program import ExitCode
from tests.commands import check_dataset
from tests.entry_point.data.loaders import source_of
from tests.entry_point.data.packing.pack_command import copy, damage_log, index
from tests.entry_point.data.sources.pipes import pipe_at

SPLITS = ("train", "val")


def _first_shard(root: Path, split: str) -> Path:
    return root / split / read_dataset(root).shards(split)[0].file


def _flip(file: Path, place: int) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


def test_one_flipped_bit_in_a_shard_is_found(
    shards: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = index(shards)
    _flip(_first_shard(shards, "train"), int(rows["offset"][0] + rows["length"][0] // 2))
    assert f"{rows['key'][0]}: checksum differs" in damage_log(shards, caplog)


def test_the_pixels_are_those_of_gray_bits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for name in ("a/0.png", "b/1.png"):
        (tmp_path / name).parent.mkdir()
        Image.fromarray(np.full((16, 16), 4095, np.uint16)).save(tmp_path / name)
    assert check_dataset([f"root={tmp_path}", "data.gray_bits=12"]) == ExitCode.FINISHED
    assert "data.mean=[1.0,1.0,1.0] data.std=[0.0,0.0,0.0]" in caplog.text


def test_sizes_are_of_upright_images(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    turned = Image.Exif()
    turned[0x0112] = 6
    for name in ("a/0.jpg", "a/1.png", "b/2.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (40, 16)).save(tmp_path / name, exif=turned)
    assert check_dataset([f"root={tmp_path}"]) == ExitCode.FINISHED
    assert "width x height: median 16x40, from 16x40 to 16x40" in caplog.text


@pytest.mark.parametrize("place", ["name", "label"])
def test_a_wrong_name_or_label_in_a_shard_is_found(
    shards: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    shard = _first_shard(shards, "val")
    with tarfile.open(shard) as tar:
        member = tar.getmembers()[1]
    _flip(shard, member.offset if place == "name" else member.offset_data)
    log = damage_log(shards, caplog)
    assert f"{shard}: checksum differs" in log and "problems: 1" in log


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_missing_or_truncated_shard_is_named_and_the_others_are_read(
    shards: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    shard = sorted((shards / "train").glob("*.tar"))[1]
    data = shard.read_bytes()
    shard.unlink()
    if damage == "short":
        shard.write_bytes(data[:-1000])
    says = f"has {len(data) - 1000} bytes instead of" if damage == "short" else "is missing"
    with pytest.raises(DataError, match=f"{shard} {says}.*copy it again"):
        source_of(shards)
    lost = read_dataset(shards).shards("train")[1].samples
    log = damage_log(shards, caplog)
    assert f"({lost} samples)" in log and shard.name in log
    assert f"{72 - lost} images checked, problems: 1" in log


def test_disk_read_error_is_listed_and_the_rest_is_read(
    shards: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/proc/self/mem stands in for a bad sector: reading an unmapped address is an I/O error."""
    monkeypatch.setattr(retries, "PAUSES", (0.0, 0.0, 0.0))
    shard = sorted((shards / "train").glob("*.tar"))[1]
    shard.unlink()
    shard.symlink_to("/proc/self/mem")
    description = json.loads((shards / "dataset.json").read_text())
    description["splits"]["train"]["shards"][1]["bytes"] = 0
    (shards / "dataset.json").write_text(json.dumps(description))
    log = damage_log(shards, caplog)
    assert "Input/output error" in log and "72 images checked" in log


def test_a_shard_that_is_not_in_the_index_is_named(
    shards: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (shards / "val/shard-000007.tar").write_bytes(b"left over")
    assert "shard-000007.tar: not in the index" in damage_log(shards, caplog)


def test_unpacked_images_of_every_format_are_checked(
    mixed_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = copy(mixed_folder, tmp_path / "mixed")
    jpeg, gone, *_ = sorted(root.glob("train/*/*.jpg"))
    png = sorted(root.glob("train/*/*.png"))[0]
    for file in (jpeg, png):
        file.write_bytes(file.read_bytes()[:-2000])
    gone.unlink()
    gone.symlink_to("gone.jpg")
    (root / "val/dog").mkdir()
    log = damage_log(root, caplog)
    assert f"{jpeg}: " in log and f"{png}: " in log
    assert f"{gone}: cannot be read: No such file" in log
    assert "72 images checked, problems: 3" in log


def test_description_that_is_a_pipe_is_named(shards: Path) -> None:
    with pipe_at(shards / "dataset.json") as pipe:
        with pytest.raises(OSError, match=f"is not a regular file: '{pipe}'"):
            source_of(shards)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["root={}/nowhere"], "check-dataset: data.root={}/nowhere: no such file or folder"),
        (["root=x", "data.table=y"], "data.table=y: is a group of settings: set table.KEY=VALUE"),
        (["data.root={}/file"], "data.root={}/file: must be a folder, or a file that ends in"),
        (["root={}"], "check-dataset: {} holds no images; their names end in one of .jpg"),
        (["root={}/class", "table.path=file"], ": data.table.path=file: needs data=manifest, "),
        ([], "check-dataset: root: has no value; add root=PATH"),
        (["root={}", "worker=2"], "check-dataset: worker=2: no such key"),
    ],
)
def test_missing_dataset_has_another_exit_code_than_damage(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "class/a").mkdir(parents=True)
    given = [argument.format(tmp_path) for argument in arguments]
    assert check_dataset(given) == ExitCode.USAGE
    assert message.format(tmp_path, tmp_path) in capsys.readouterr().err


def test_packed_dataset_takes_no_other_index(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_dataset([f"root={shards}", f"index_root={tmp_path}"]) == ExitCode.USAGE
    error = capsys.readouterr().err
    assert f"index_root={tmp_path}: needs images that are not packed; {shards} has its own" in error


def test_label_outside_the_class_list_is_named(
    shards: Path, caplog: pytest.LogCaptureFixture
) -> None:
    description = json.loads((shards / "dataset.json").read_text())
    description["classes"] = description["classes"][:3]
    (shards / "dataset.json").write_text(json.dumps(description))
    with pytest.raises(DataError, match=r"train: \w+/\d+\.jpg: label=\d in the index"):
        source_of(shards)
    assert "in the index: must be 0 to 2" in damage_log(shards, caplog)


def test_a_check_says_what_the_dataset_is_like(
    mixed_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        assert check_dataset([f"root={mixed_folder}"]) == 0
    lines = caplog.messages
    header = next(i for i, line in enumerate(lines) if line.startswith("images of"))
    assert lines[header].split() == ["images", "of", "train", "val"]
    table = dict(line.split(maxsplit=1) for line in lines[header + 1 : header + 9])
    files = [file for file in mixed_folder.rglob("*.*") if file.is_file()]
    for folder in (mixed_folder / "train").iterdir():
        counts = [len([*(mixed_folder / split / folder.name).iterdir()]) for split in SPLITS]
        assert [int(cell) for cell in table[folder.name].split()] == counts
    others, sides, pixels = 0, [], []
    for file in files:
        with Image.open(file) as image:
            others += image.format != "JPEG"
            sides.append(image.size)
            pixels.append(np.asarray(image.convert("RGB"), np.float64).reshape(-1, 3) / 255)
    assert f"not JPEGs: {others} of {len(files)} images" in caplog.text
    least, most = ("x".join(map(str, each)) for each in (np.min(sides, 0), np.max(sides, 0)))
    assert f", from {least} to {most}" in caplog.text
    told = re.search(r"data.mean=\[(.*)\] data.std=\[(.*)\]", caplog.text)
    assert told is not None
    mean = np.mean([each.mean(0) for each in pixels], 0)
    std = np.sqrt(np.mean([(each**2).mean(0) for each in pixels], 0) - mean**2)
    for text, expected in zip(told.groups(), (mean, std), strict=True):
        assert [float(each) for each in text.split(",")] == pytest.approx(expected, abs=0.01)
