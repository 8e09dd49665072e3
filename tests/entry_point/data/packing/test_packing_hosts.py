"""Packing in parts: by hand, and by the hosts of a SageMaker Processing job."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from entry_point.data.errors import DataError
from entry_point.data.sources.dataset_description import read_dataset
from entry_point.job.program import ExitCode
from tests.commands import check_dataset, optimize
from tests.entry_point.data.loaders import epoch_of, loader_of, source_of
from tests.entry_point.data.packing.pack_command import (
    contents,
    copy,
    pack,
    samples,
    side_indexes,
)


@pytest.fixture(scope="module")
def halves(photo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The photographs in two parts, packed by hand. Tests must not change it."""
    output = tmp_path_factory.mktemp("halves") / "data"
    for number in (2, 1):
        assert pack(photo_folder, output, f"part={number}/2") == 0
    return output


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of the platform's folders; `_prepare` fills it."""
    monkeypatch.setenv("ML_ROOT", str(tmp_path / "host"))
    (tmp_path / "s3").mkdir()
    return tmp_path / "host"


def _prepare(
    root: Path, number: int, hosts: int, photos: Path, output: Path, *, sharded: bool = True
) -> None:
    """Give the host its share of the files; it writes directly to where S3 would put its output."""
    shutil.rmtree(root, ignore_errors=True)
    (root / "processing").mkdir(parents=True)
    (root / "processing/output").symlink_to(output)
    names = [f"algo-{host + 1}" for host in range(hosts)]
    contract = {"current_host": names[number], "hosts": names}
    _write_json(root / "config/resourceconfig.json", contract)
    source = {
        "LocalPath": str(root / "processing/input"),
        "S3DataDistributionType": "ShardedByS3Key" if sharded else "FullyReplicated",
    }
    inputs = {"ProcessingInputs": [{"S3Input": source}]}
    _write_json(root / "config/processingjobconfig.json", inputs)
    files = sorted(photos.rglob("*.jpg"))
    for file in files[number::hosts] if sharded else files:
        target = root / "processing/input" / file.relative_to(photos)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)  # with another modification time on each host


def _write_json(file: Path, content: object) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content))


def _files(folder: Path) -> dict[str, bytes]:
    """Without the descriptions, indexes and reports, which are of a part."""
    return {name: data for name, data in contents(folder).items() if name.endswith(".tar")}


def test_parts_hold_the_shards_of_the_whole_and_train_alike(halves: Path, packed: Path) -> None:
    assert _files(halves) == _files(packed)
    assert {name for name in contents(halves) if "/" not in name} == {
        *("dataset-1-of-2.json", "dataset-2-of-2.json"),
        *("report-1-of-2.json", "report-2-of-2.json"),
    }
    for split in ("train", "val"):
        assert samples(halves, split) == samples(packed, split)
        assert side_indexes(halves, split) == side_indexes(packed, split)
    for access in ("map", "stream"):
        for a, b in zip(
            epoch_of(loader_of(packed, access=access)),
            epoch_of(loader_of(halves, access=access)),
            strict=True,
        ):
            assert torch.equal(a.images, b.images) and torch.equal(a.labels, b.labels)
    assert check_dataset([f"root={halves}"]) == 0


def test_missing_part_is_named_with_the_command_that_packs_it(halves: Path, tmp_path: Path) -> None:
    root = copy(halves, tmp_path / "copy")
    (root / "dataset-1-of-2.json").unlink()
    with pytest.raises(DataError, match=r"1 of 2 parts, without 1: .* pack them with part=1/2"):
        source_of(root)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"made_from": "x"}, "part 1 of 2 and part 2 of 2 differ in source files"),
        ({"classes": ["cat", "dog"]}, "differ in classes"),
        ({"settings": {"quality": 90}}, "differ in quality"),
        ({"kind": "numbers"}, "differ in kind"),
        ({"part": {"number": 1, "count": 2}}, "dataset-2-of-2.json is damaged .* part 1 of 2"),
        ({"part": {"number": 3, "count": 2}}, "part 3 of 2: must be from 1"),
    ],
)
def test_parts_that_disagree_are_named(
    halves: Path, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    root = copy(halves, tmp_path / "copy")
    description = root / "dataset-2-of-2.json"
    description.write_text(json.dumps(json.loads(description.read_text()) | changes))
    with pytest.raises(DataError, match=message):
        source_of(root)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["part=1/2", "quality=80"], "part 2 of 2 and part 1 of 2 differ in quality"),
        (["part=1/3"], "differ in the number of parts"),
        ([], "differ in the number of parts"),
        (["part=3/2"], "part=3/2: must be N/M with N from 1 to M"),
        (["part=1/2", "output_format=index"], "part=1/2: needs output_format=shards"),
        (["max_side=64", "output_format=index"], "max_side=64: needs output_format=shards"),
        (["convert=jpeg", "output_format=index"], "convert=jpeg: needs output_format=shards"),
    ],
)
def test_a_part_that_does_not_belong_to_the_others_is_refused_before_it_is_packed(
    photo_folder: Path,
    halves: Path,
    tmp_path: Path,
    options: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = copy(halves, tmp_path / "copy")
    (root / "dataset-1-of-2.json").unlink()
    before = contents(root)
    assert pack(photo_folder, root, *options) == ExitCode.USAGE
    assert message in capsys.readouterr().err
    assert contents(root) == before


@pytest.mark.parametrize("sharded", [True, False])
def test_hosts_of_a_job_make_the_dataset_of_one_host(
    photo_folder: Path, packed: Path, tmp_path: Path, host: Path, sharded: bool
) -> None:
    output = tmp_path / "s3"
    for number in range(2):
        _prepare(host, number, 2, photo_folder, output, sharded=sharded)
        for _again in range(2):
            assert optimize(["shard_mb=0.125"]) == 0
    if not sharded:
        assert _files(output) == _files(packed)
    for split in ("train", "val"):
        assert samples(output, split) == samples(packed, split)
        assert side_indexes(output, split) == side_indexes(packed, split)
    assert check_dataset([f"root={output}"]) == 0


def test_hosts_that_see_different_classes_make_a_dataset_of_all(
    photo_folder: Path, packed: Path, tmp_path: Path, host: Path
) -> None:
    output = tmp_path / "s3"
    for number, missing in enumerate(["cat", "china"]):
        _prepare(host, number, 2, photo_folder, output)
        shutil.rmtree(host / "processing/input/train" / missing)
        for file in (host / "processing/input/val").rglob("*.jpg") if number else ():
            file.unlink()
        shutil.rmtree(host / "processing/input/val" / missing)
        assert optimize(["shard_mb=0.125"]) == 0
    assert read_dataset(output).classes == read_dataset(packed).classes
    assert len(read_dataset(output).parts[0].classes) == 7
    whole = samples(packed, "train")
    found = samples(output, "train")
    assert {label for label, _ in found.values()} == set(range(8))
    assert found.items() <= whole.items() and len(found) == 42
    assert check_dataset([f"root={output}"]) == 0


def test_hosts_divide_a_source_without_splits_by_the_hash_alone(
    photo_folder: Path, tmp_path: Path, host: Path
) -> None:
    """No host has all images of a class, and some have none for val."""
    source, output = photo_folder / "train", tmp_path / "s3"
    for number in range(8):
        _prepare(host, number, 8, source, output)
        assert optimize(["shard_mb=0.125"]) == 0
    found = {split: samples(output, split).keys() for split in ("train", "val")}
    assert [len(names) for names in found.values()] == [44, 4]
    for split, names in found.items():
        images = source_of(source, split, val_top_up=None)
        assert names == {images.key(i).removeprefix(f"{source}/") for i in range(len(images))}
    assert check_dataset([f"root={output}"]) == 0


def test_single_host_makes_the_complete_dataset(
    photo_folder: Path, packed: Path, tmp_path: Path, host: Path
) -> None:
    _prepare(host, 0, 1, photo_folder, tmp_path / "s3")
    for _again in range(2):
        assert optimize(["shard_mb=0.125"]) == 0
        made, expected = contents(tmp_path / "s3"), contents(packed)
        assert made.pop("dataset.json") != expected.pop("dataset.json")  # modification times differ
        assert made == expected


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["output_format=index"], "output_format=index: must be shards"),
        (["quality=101"], "quality=101"),
    ],
)
def test_failure_reason_is_written_where_the_platform_reads_it(
    photo_folder: Path, tmp_path: Path, host: Path, arguments: list[str], reason: str
) -> None:
    _prepare(host, 0, 2, photo_folder, tmp_path / "s3")
    assert optimize(arguments) == ExitCode.USAGE
    assert (host / "output/message").read_text().startswith(reason)
    assert contents(tmp_path / "s3") == {}
