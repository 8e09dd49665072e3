"""`make dataset source=labels.csv`: the same labels in the index, in the shards and in training."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import webdataset

from entry_point.config.data_config import Access, TableConfig
from entry_point.data.sources.source import Source
from entry_point.job.program import ExitCode
from tests.commands import check_dataset
from tests.entry_point.data.loaders import source_of
from tests.entry_point.data.packing.pack_command import copy, index_bytes, pack, rejected, report
from tests.entry_point.data.sources.table.labeled_tables import (
    CELLS,
    opened,
    rows_of,
    write,
    write_tags,
)

MEMBERS = {**CELLS, "numbers": [{"tags": pytest.approx(cell)} for cell in CELLS["numbers"]]}


@pytest.fixture(scope="module", params=list(CELLS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def table(kind: str, photo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tags(tmp_path_factory.mktemp("tables") / "tags.jsonl", photo_folder, kind)


@pytest.fixture(scope="module")
def shards(table: Path, photo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("tables") / "shards"
    assert pack(table, output, f"images={photo_folder}", "table.labels=[tags]") == 0
    return output


def by_name(source: Source) -> dict[str, list[float]]:
    """Labels by the end of the path, without its suffix."""
    names = ["/".join(source.key(i).split(": ")[-1].split("/")[-3:]) for i in range(len(source))]
    labels: list[list[float]] = source.labels.tolist()
    return dict(zip((name.rsplit(".", 1)[0] for name in names), labels, strict=True))


@pytest.mark.parametrize("access", ["map", "stream"])
@pytest.mark.parametrize("split", ["train", "val"])
def test_packed_labels_are_those_of_the_table(
    table: Path, photo_folder: Path, shards: Path, kind: str, access: Access, split: str
) -> None:
    packed = source_of(shards, split, access=access)
    train, val = opened(table, images=str(photo_folder), table=TableConfig(labels=["tags"]))
    assert packed.kind == kind and packed.classes == train.classes
    assert by_name(packed) == by_name(train if split == "train" else val)
    if kind != "class":
        assert packed.labels.dtype == torch.float32


def test_the_webdataset_package_reads_the_labels(shards: Path, kind: str) -> None:
    files = sorted(str(file) for file in (shards / "train").glob("*.tar"))
    samples = webdataset.WebDataset(files, shardshuffle=False).decode()
    found = [sample["json"] for sample in samples]
    assert len(found) == 48 and all(label in MEMBERS[kind] for label in found)


def test_a_check_finds_nothing_and_the_report_counts_the_images_of_each_label(
    shards: Path, kind: str
) -> None:
    assert check_dataset([f"root={shards}"]) == ExitCode.FINISHED
    counts = report(shards)["splits"]["train"]["classes"]
    assert counts == {} if kind == "numbers" else set(counts.values()) == {16}


def test_parts_of_a_table_have_its_labels(
    table: Path, photo_folder: Path, shards: Path, tmp_path: Path
) -> None:
    options = (f"images={photo_folder}", "table.labels=[tags]")
    for number in (1, 2):
        assert pack(table, tmp_path / "parts", *options, f"part={number}/2") == 0
    for split in ("train", "val"):
        whole, parts = (source_of(root, split) for root in (shards, tmp_path / "parts"))
        assert parts.kind == whole.kind and by_name(parts) == by_name(whole)
        assert torch.equal(parts.labels, whole.labels)


def test_a_missing_file_of_a_table_is_rejected(photo_folder: Path, tmp_path: Path) -> None:
    rows = rows_of(photo_folder)
    rows[1]["path"] = "train/gone.jpg"
    file = write(tmp_path / "labels.csv", rows)
    assert pack(file, tmp_path / "packed", f"images={photo_folder}") == 0
    assert rejected(tmp_path / "packed") == {
        "train/gone.jpg": "unreadable: No such file or directory"
    }


def _source(form: str, photos: Path, root: Path) -> tuple[Path, dict[str, Any], int]:
    """A source, the settings that read it, and the number of its images."""
    if form == "a table of train and test":
        rows = [{**row, "split": row["split"].replace("val", "test")} for row in rows_of(photos)]
        settings = {"format": "manifest", "images": str(photos), "val_fraction": 0.3}
        return write(root / "labels.csv", rows), settings, 72
    copy(photos / "train", root / "source" / ("" if form == "no splits" else "train"))
    if form == "a folder valid":
        copy(photos / "val", root / "source/valid")
        return root / "source", {}, 72
    return root / "source", {} if form == "no splits" else {"val_fraction": 0.3}, 48


@pytest.mark.parametrize(
    "form", ["only train", "a folder valid", "no splits", "a table of train and test"]
)
def test_a_source_is_packed_indexed_and_checked_as_it_would_be_trained(
    photo_folder: Path, tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    source, settings, count = _source(form, photo_folder, tmp_path)
    options = [f"{name}={value}" for name, value in settings.items() if name != "format"]
    assert pack(source, tmp_path / "packed", *options) == 0
    for split in ("train", "val"):
        trained, packed = (
            {"/".join(name.split("/")[-2:]): label for name, label in by_name(images).items()}
            for images in (
                source_of(source, split, **settings),
                source_of(tmp_path / "packed", split),
            )
        )
        assert packed == trained and len(trained) > 3
    if source.is_dir():
        assert pack(source, source, "output_format=index") == 0
        assert any(index_bytes(source_of(source, "val", **settings)))
    images = [option for option in options if option.startswith("images=")]
    assert check_dataset([f"root={source}", *images]) == 0
    assert f"{count} images checked" in caplog.text and "ignored" not in caplog.text
