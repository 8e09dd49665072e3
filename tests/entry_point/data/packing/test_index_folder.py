"""`make dataset output_format=index`: side indexes beside files that stay as they are."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from custom_op import index_jpeg
from entry_point.config.data_config import DataConfig, PipelineConfig
from entry_point.data.errors import DataError
from entry_point.data.loader import build_loader, open_source
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.sources.index_file import FOLDER_INDEX, HEADER_BYTES
from entry_point.data.sources.source import Source
from entry_point.job.program import ExitCode
from tests.commands import check_dataset, optimize
from tests.entry_point.data.packing.pack_command import contents, copy, index_bytes
from tests.entry_point.data.sources.packed_loaders import epoch_of
from tests.entry_point.data.sources.test_webdataset import write_tar


@pytest.fixture
def photos(photo_folder: Path, tmp_path: Path) -> Path:
    return copy(photo_folder, tmp_path / "photos")


def _index(source: Path, *options: str) -> int:
    return optimize([f"source={source}", "output_format=index", *options])


def _open(root: Path, **data: Any) -> Source:
    return open_source(DataConfig(root=str(root), **data), "train", root)


def _expected(source: Source) -> list[bytes]:
    return [index_jpeg(source.read(i)).numpy().tobytes() for i in range(len(source))]


def _images(root: Path, **data: Any) -> Tensor:
    config = DataConfig(root=str(root), image_size=48, resize=56, **data)
    spec = LoaderSpec(config, PipelineConfig("threads", num_workers=1), "train", 8, seed=9)
    loader = build_loader(open_source(config, "train", root), spec)
    return torch.cat([batch.images for batch in epoch_of(loader)])


def test_an_indexed_folder_keeps_its_files_and_every_jpeg_finds_its_index(photos: Path) -> None:
    before, plain = contents(photos), _images(photos)
    for _again in range(2):
        assert _index(photos) == ExitCode.FINISHED
    after = contents(photos)
    added = set(after) - set(before)
    assert added == {FOLDER_INDEX}
    assert {name: after[name] for name in before} == before
    source = _open(photos)
    assert index_bytes(source) == _expected(source) and sum(map(bool, index_bytes(source))) > 30
    assert torch.equal(_images(photos), plain)


def test_a_split_by_fraction_and_a_table_find_the_same_index(photos: Path) -> None:
    shutil.rmtree(photos / "val")
    assert _index(photos) == 0
    source = _open(photos, val_fraction=0.25)
    assert index_bytes(source) == _expected(source)
    files = sorted(file.relative_to(photos).as_posix() for file in photos.rglob("*.jpg"))
    rows = [
        f"{file},{file.split('/')[1]},{'val' if i % 3 else 'train'}" for i, file in enumerate(files)
    ]
    (photos / "labels.csv").write_text("\n".join(["path,label,split", *rows]) + "\n")
    source = _open(photos / "labels.csv", format="manifest")
    assert any(index_bytes(source)) and index_bytes(source) == _expected(source)
    (photos / FOLDER_INDEX).unlink()
    assert _index(photos / "labels.csv") == 0
    assert index_bytes(_open(photos / "labels.csv", format="manifest")) == _expected(source)


def test_an_index_in_another_folder_serves_images_that_cannot_be_written(
    photos: Path, tmp_path: Path
) -> None:
    before = contents(photos)
    assert _index(photos, f"output={tmp_path / 'indexes'}") == 0
    assert contents(photos) == before
    source = _open(photos, index_root=str(tmp_path / "indexes"))
    assert index_bytes(source) == _expected(source)
    with pytest.raises(DataError, match=r"holds no jpeg-index\.safetensors; make it with"):
        _open(photos, index_root=str(tmp_path))


@pytest.mark.skipif(not Path("/proc/1").is_dir(), reason="needs Linux")
def test_a_folder_that_cannot_be_written_is_named_with_the_way_out(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _index(photos, "output=/proc/self") == ExitCode.USAGE
    error = capsys.readouterr().err
    assert "output=/proc/self cannot be written" in error
    assert "train with data.index_root=FOLDER" in error


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Without other lines, which programs that ran in this process before have turned on."""
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_changed_and_new_files_decode_without_an_index_to_the_same_pixels(
    photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The operator notices the changed ones, also where the size is the same."""
    assert _index(photos, f"output={tmp_path}") == 0
    cat = photos / "train/cat"
    photo = Image.open(cat / "000.jpg").convert("RGB")
    photo.save(cat / "001.jpg", quality=50)
    photo.save(cat / "new.jpg")
    _replace_by_same_size(cat / "002.jpg", photo)
    with caplog.at_level(logging.WARNING):
        images = _images(photos, index_root=str(tmp_path))
    (opened,) = warnings_in(caplog)
    assert "lacks 1 of 49 images: they decode" in opened
    assert torch.equal(_images(photos), images)


def _replace_by_same_size(file: Path, photo: Image.Image) -> None:
    content, size = io.BytesIO(), file.stat().st_size
    photo.save(content, "JPEG", quality=10)
    data = content.getvalue()
    comment = b"\xff\xfe" + (size - len(data) - 2).to_bytes(2, "big")
    file.write_bytes(data[:2] + comment + bytes(size - len(data) - 4) + data[2:])
    assert file.stat().st_size == size


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-7])


def _make_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("damage", [_make_folder, _cut])
def test_a_damaged_folder_index_is_one_warning_and_no_error(
    photos: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    assert _index(photos) == 0
    damage(photos / FOLDER_INDEX)
    with caplog.at_level(logging.WARNING):
        assert not any(index_bytes(_open(photos)))
    (line,) = warnings_in(caplog)
    assert FOLDER_INDEX in line and "48 images decode without a side index" in line


@pytest.mark.parametrize(
    "lengths", [[-1] * 72, [-(2**31)] + [2**31 - 1] * 71, [2**31 - 1] * 72, [0] * 71 + [10**7]]
)
def test_false_lengths_in_a_folder_index_are_one_warning_and_no_error(
    photos: Path, lengths: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    assert _index(photos) == 0
    file = photos / FOLDER_INDEX
    start, end = json.loads(file.read_bytes()[8:HEADER_BYTES])["side_length"]["data_offsets"]
    data = np.fromfile(file, np.uint8)
    data[HEADER_BYTES + start : HEADER_BYTES + end] = np.array(lengths, np.int32).view(np.uint8)
    data.tofile(file)
    with caplog.at_level(logging.WARNING):
        assert not any(index_bytes(_open(photos)))
    (line,) = warnings_in(caplog)
    assert FOLDER_INDEX in line and "48 images" in line


def _check_dataset(caplog: pytest.LogCaptureFixture, *arguments: str) -> tuple[int, str]:
    caplog.clear()
    with caplog.at_level("INFO"):
        code = check_dataset(arguments)
    return code, caplog.text


def test_check_dataset_finds_the_indexes_of_files_that_have_changed(
    photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output, table = tmp_path / "elsewhere", photos / "labels.csv"
    assert _index(photos, f"output={output}") == 0
    files = sorted(photos.rglob("*.jpg"))
    rows = [f"{file.relative_to(photos)},{file.parent.name}" for file in files]
    table.write_text("\n".join(["path,label", *rows]))
    for root in (photos, table):
        assert _check_dataset(caplog, f"root={root}", f"index_root={output}")[0] == 0
    small, large = sorted(files, key=lambda file: file.stat().st_size)[:2]
    large.write_bytes(small.read_bytes().ljust(large.stat().st_size, b"\0"))
    for root in (photos, table):
        code, log = _check_dataset(caplog, f"root={root}", f"index_root={output}")
        assert code == ExitCode.FAILED
        assert f"{large}: its side index does not match the file" in log
        assert log.count("its side index") == 1
        assert _check_dataset(caplog, f"root={root}")[0] == 0


def test_check_dataset_compares_the_indexes_of_images_in_tar_files(
    photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = sorted(photos.rglob("*.jpg"), key=lambda file: file.stat().st_size)
    names = [f"{i}.{suffix}" for i in range(len(files)) for suffix in ("jpg", "cls")]
    contents = [part for file in files for part in (file.read_bytes(), b"cat")]
    tar = tmp_path / "tars/images.tar"
    write_tar(tar, *zip(names, contents, strict=True))
    assert _index(tar.parent) == 0
    assert _check_dataset(caplog, f"root={tar.parent}")[0] == 0
    contents[-2] = contents[0].ljust(len(contents[-2]), b"\0")
    write_tar(tar, *zip(names, contents, strict=True))
    code, log = _check_dataset(caplog, f"root={tar.parent}")
    assert code == ExitCode.FAILED and "problems: 1" in log
    assert f"images.tar/{names[-2]}: its side index does not match" in log


def test_check_dataset_lists_a_damaged_folder_index_and_reads_the_rest(
    photos: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _index(photos) == 0
    file = photos / FOLDER_INDEX
    file.write_bytes(file.read_bytes()[:-1])
    code, log = _check_dataset(caplog, f"root={photos}")
    assert (
        code == ExitCode.FAILED
        and "jpeg-index.safetensors is damaged" in log
        and "problems: 1" in log
    )
    assert check_dataset([f"root={photos}", f"index_root={tmp_path / 'none'}"]) == ExitCode.USAGE
    assert "none: holds no jpeg-index.safetensors" in capsys.readouterr().err


def test_an_interrupted_run_leaves_no_index_and_the_next_one_cleans_up(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "index.jix")

    before = contents(photos)
    with monkeypatch.context() as patched:
        patched.setattr("entry_point.data.packing.index_folder.index_image", stop)
        assert _index(photos) != ExitCode.FINISHED
    assert not (photos / FOLDER_INDEX).exists() and not any(index_bytes(_open(photos)))
    assert _index(photos) == ExitCode.FINISHED
    assert {name.split("/")[0] for name in set(contents(photos)) - set(before)} == {FOLDER_INDEX}


def test_an_option_of_packed_files_is_refused(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _index(photos, "max_side=64") == ExitCode.USAGE
    message = "max_side=64: needs output_format=shards"
    assert message in capsys.readouterr().err
