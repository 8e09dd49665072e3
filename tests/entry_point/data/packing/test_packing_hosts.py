"""Packing on several hosts, as SageMaker Processing runs it, and merging their parts."""

import json
import shutil
from pathlib import Path

import pytest

from entry_point.check_dataset import main as check_dataset
from entry_point.contract import exit_codes
from entry_point.data.sources.dataset_description import read_description
from entry_point.optimize import main as optimize
from tests.entry_point.data.packing.pack_command import (
    contents,
    copy,
    pack,
    report,
    samples,
    side_indexes,
)
from tests.photographs import PHOTOGRAPHS


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of the platform's folders; `_prepare` fills it."""
    monkeypatch.setenv("ML_ROOT", str(tmp_path / "host"))
    return tmp_path / "host"


def _prepare(root: Path, number: int, hosts: int, photos: Path, output: Path) -> None:
    """Give the host its share of the files; it writes directly to where S3 would put its output."""
    shutil.rmtree(root, ignore_errors=True)
    (root / "processing").mkdir(parents=True)
    (root / "processing/output").symlink_to(output)
    names = [f"algo-{host + 1}" for host in range(hosts)]
    (root / "config").mkdir()
    contract = {"current_host": names[number], "hosts": names}
    (root / "config/resourceconfig.json").write_text(json.dumps(contract))
    for file in sorted(photos.rglob("*.jpg"))[number::hosts]:
        target = root / "processing/input" / file.relative_to(photos)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, target)


@pytest.fixture
def parts(photo_folder: Path, packed: Path, tmp_path: Path, host: Path) -> list[Path]:
    """The outputs of two hosts, which get one half of the files each."""
    classes = tmp_path / "classes.txt"
    classes.write_text("\n".join(read_description(packed).classes))
    (tmp_path / "s3").mkdir()
    for number in range(2):
        _prepare(host, number, 2, photo_folder, tmp_path / "s3")
        for _again in range(2):
            assert optimize([f"classes={classes}", "shard_mb=0.5"]) == 0
    return [tmp_path / f"s3/part-{number:02d}" for number in range(2)]


def _merge(parts: list[Path], output: Path) -> int:
    return optimize([f"merge=[{','.join(map(str, parts))}]", f"output={output}"])


def test_merged_parts_of_two_hosts_equal_the_dataset_of_one_host(
    parts: list[Path], packed: Path, tmp_path: Path
) -> None:
    assert _merge(parts, tmp_path / "all") == 0
    for split in ("train", "val"):
        assert samples(tmp_path / "all", split) == samples(packed, split)
        assert side_indexes(tmp_path / "all", split) == side_indexes(packed, split)
    assert check_dataset([f"root={tmp_path / 'all'}"]) == 0
    merged, whole = report(tmp_path / "all"), report(packed)
    for split in ("train", "val"):
        for counted in ("files", "how", "bytes_before", "bytes_after", "classes"):
            assert merged["splits"][split][counted] == whole["splits"][split][counted]
    assert _merge(parts, tmp_path / "all") == 0


def test_missing_or_truncated_shard_of_a_part_is_named(
    parts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = sorted((tmp_path / "s3/train").glob("shard-01-*.tar"))[0]
    data = shard.read_bytes()
    shard.write_bytes(data[:-1])
    assert _merge(parts, tmp_path / "all") == exit_codes.USAGE
    assert f"{shard} has {len(data) - 1} bytes instead of {len(data)}" in capsys.readouterr().err
    shard.unlink()
    assert _merge(parts, tmp_path / "all") == exit_codes.USAGE
    assert f"{shard} is missing" in capsys.readouterr().err and not (tmp_path / "all").exists()


def test_single_host_makes_the_complete_dataset(
    photo_folder: Path, packed: Path, tmp_path: Path, host: Path
) -> None:
    (tmp_path / "s3").mkdir()
    _prepare(host, 0, 1, photo_folder, tmp_path / "s3")
    assert optimize(["shard_mb=0.5"]) == 0
    assert contents(tmp_path / "s3") == contents(packed)
    assert optimize(["shard_mb=0.5"]) == exit_codes.USAGE
    assert contents(tmp_path / "s3") == contents(packed)


def test_single_host_rejects_a_split_without_images_even_with_a_class_list(
    photo_folder: Path, tmp_path: Path, host: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s3").mkdir()
    _prepare(host, 0, 1, photo_folder, tmp_path / "s3")
    (tmp_path / "classes.txt").write_text("\n".join(PHOTOGRAPHS))
    for file in (host / "processing/input/val").rglob("*.jpg"):
        file.write_text("no image")
    assert optimize([f"classes={tmp_path / 'classes.txt'}"]) == exit_codes.USAGE
    assert "val: 8 of 8 classes have no usable image" in capsys.readouterr().err


def test_part_may_lack_images_of_a_class_or_a_split(
    photo_folder: Path, packed: Path, tmp_path: Path, host: Path
) -> None:
    classes = tmp_path / "classes.txt"
    classes.write_text("\n".join(read_description(packed).classes))
    (tmp_path / "s3").mkdir()
    _prepare(host, 1, 2, photo_folder, tmp_path / "s3")
    source = host / "processing/input"
    shutil.rmtree(source / "train/cat")
    (source / "train/cat").mkdir()
    shutil.rmtree(source / "train/china")
    for file in (source / "val").rglob("*.jpg"):
        file.unlink()
    assert optimize([f"classes={classes}", "shard_mb=0.5"]) == 0
    content = report(tmp_path / "s3/part-01")["splits"]
    assert content["train"]["classes"]["cat"] == content["val"]["files"] == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["output_format='folder'"], "output_format=folder: must be shards"),
        (["output_format=index"], "output_format=index: must be shards"),
        (["classes=none.txt"], "classes=none.txt cannot be read"),
        (["quality=101"], "quality=101"),
    ],
)
def test_failure_reason_is_written_where_the_platform_reads_it(
    photo_folder: Path, tmp_path: Path, host: Path, arguments: list[str], reason: str
) -> None:
    (tmp_path / "s3").mkdir()
    _prepare(host, 0, 2, photo_folder, tmp_path / "s3")
    assert optimize(arguments) == exit_codes.USAGE
    assert (host / "output/message").read_text().startswith(reason)
    assert contents(tmp_path / "s3") == {}


def test_current_host_outside_the_host_list_is_an_error(
    photo_folder: Path, tmp_path: Path, host: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s3").mkdir()
    _prepare(host, 0, 2, photo_folder, tmp_path / "s3")
    (host / "config/resourceconfig.json").write_text('{"current_host": "x", "hosts": ["y"]}')
    assert optimize([]) == exit_codes.USAGE
    assert "'x' is not among hosts ['y']" in capsys.readouterr().err


def test_same_files_in_two_parts_are_an_error(
    photo_folder: Path, packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pack(photo_folder, tmp_path / "again", "part=1") == 0
    assert _merge([packed, tmp_path / "again"], tmp_path / "all") == exit_codes.USAGE
    assert (
        "48 keys of train are in more than one part, for example astronaut/000"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "all").exists()


def test_same_bytes_in_two_parts_are_reported_as_duplicates(
    photo_folder: Path, packed: Path, tmp_path: Path
) -> None:
    source = copy(photo_folder, tmp_path / "source")
    for file in [*source.rglob("*.jpg")]:
        file.rename(file.with_stem(f"copy-{file.stem}"))
    assert pack(source, tmp_path / "copies", "part=1", "quality=90") == 0
    assert _merge([packed, tmp_path / "copies"], tmp_path / "all") == 0
    content = report(tmp_path / "all")
    assert content["duplicates"]["files"] == 72 and content["quality_of_converted"] == [90, 95]
    assert ["train/cat/000", "train/cat/copy-000"] in content["duplicates"]["examples"]
