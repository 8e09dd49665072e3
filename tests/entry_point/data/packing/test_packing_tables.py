"""`make dataset source=labels.csv`: the same labels in the index, in the shards and in training."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import webdataset
from PIL import Image

from entry_point.config.data_config import Access, DataConfig, TableConfig
from entry_point.data.loader import build_loader, open_source
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.sources.source import Source
from entry_point.job.program import ExitCode
from tests.commands import check_dataset
from tests.entry_point.data.engines.every_engine import Way, pipeline_of
from tests.entry_point.data.packing.pack_command import copy, index_bytes, pack, rejected, report
from tests.entry_point.data.sources.table.labeled_tables import config, opened, rows_of, write

CELLS: dict[str, list[Any]] = {
    "class": ["dog", "cat", "bird"],
    "labels": [["cat", "dog"], [], ["bird"]],
    "numbers": [0.1, 2.5, -3.25],
}
MEMBERS: dict[str, list[Any]] = {
    "class": ["dog", "cat", "bird"],
    "labels": [["cat", "dog"], [], ["bird"]],
    "numbers": [{"tags": pytest.approx(0.1)}, {"tags": 2.5}, {"tags": -3.25}],
}


@pytest.fixture(scope="module", params=list(CELLS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def table(kind: str, photo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [
        {"path": row["path"], "tags": CELLS[kind][i % 3], "split": row["split"]}
        for i, row in enumerate(rows_of(photo_folder))
    ]
    return write(tmp_path_factory.mktemp("tables") / "tags.jsonl", rows)


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
    data = DataConfig(format="shards", root=str(shards), access=access)
    packed = open_source(data, split, shards)
    train, val = opened(table, images=str(photo_folder), table=TableConfig(labels=["tags"]))
    assert packed.kind == kind and packed.classes == train.classes
    assert by_name(packed) == by_name(train if split == "train" else val)
    if kind != "class":
        assert packed.labels.dtype == torch.float32


@pytest.mark.parametrize("engine", ["threads", "workers"])
@pytest.mark.parametrize("access", ["map", "stream"])
def test_shards_of_any_kind_train_in_every_way_they_are_read(
    shards: Path, kind: str, access: Access, engine: Way
) -> None:
    data = DataConfig(format="shards", root=str(shards), access=access, image_size=48, resize=56)
    source = open_source(data, "train", shards)
    pipeline = pipeline_of(engine, num_workers=1)
    loader = build_loader(source, LoaderSpec(data, pipeline, "train", 12, seed=0))
    for batch in loader.epoch(0):
        expected = source.labels[batch.indices]
        assert torch.equal(batch.labels, expected.long() if kind == "class" else expected)
        assert batch.labels.dtype == (torch.int64 if kind == "class" else torch.float32)
    loader.close()


def test_the_webdataset_package_reads_the_labels(shards: Path, kind: str) -> None:
    files = sorted(str(file) for file in (shards / "train").glob("*.tar"))
    samples = webdataset.WebDataset(files, shardshuffle=False).decode()
    found = [sample["json"] for sample in samples]
    assert len(found) == 48 and all(label in MEMBERS[kind] for label in found)


def test_checking_a_packed_table_finds_nothing(
    shards: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert check_dataset([f"root={shards}"]) == ExitCode.FINISHED
    assert "72 images checked, problems: 0" in caplog.text


def test_the_report_counts_the_images_of_each_label(shards: Path, kind: str) -> None:
    counts = report(shards)["splits"]["train"]["classes"]
    assert counts == {} if kind == "numbers" else set(counts.values()) == {16}


def test_parts_of_a_table_have_its_labels(
    table: Path, photo_folder: Path, shards: Path, tmp_path: Path
) -> None:
    options = (f"images={photo_folder}", "table.labels=[tags]")
    for number in (1, 2, 3):
        assert pack(table, tmp_path / "parts", *options, f"part={number}/3") == 0
    for split in ("train", "val"):
        whole, parts = (
            open_source(DataConfig(format="shards", root=str(root)), split, root)
            for root in (shards, tmp_path / "parts")
        )
        assert parts.kind == whole.kind and by_name(parts) == by_name(whole)
        assert torch.equal(parts.labels, whole.labels)


def test_other_formats_are_packed_and_missing_files_rejected(
    photo_folder: Path, tmp_path: Path
) -> None:
    rows = rows_of(photo_folder)
    Image.open(photo_folder / rows[0]["path"]).save(tmp_path / "first.png")
    rows[0]["path"] = str(tmp_path / "first.png")
    rows[1]["path"] = "train/gone.jpg"
    rows[2:] = [{**row, "path": str(photo_folder / row["path"])} for row in rows[2:]]
    file = write(tmp_path / "labels.csv", rows)
    assert pack(file, tmp_path / "packed", "images=/") == 0
    assert report(tmp_path / "packed")["splits"]["train"]["how"]["kept"] == 1
    assert rejected(tmp_path / "packed") == {
        "train/gone.jpg": "unreadable: No such file or directory"
    }


def test_a_folder_without_val_is_packed_as_it_would_be_trained(
    photo_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "train").symlink_to(photo_folder / "train")
    assert pack(tmp_path / "source", tmp_path / "packed", "val_fraction=0.3") == 0
    folder = DataConfig(root=str(tmp_path / "source"), val_fraction=0.3)
    shards = DataConfig(format="shards", root=str(tmp_path / "packed"))
    for split in ("train", "val"):
        names = [
            {"/".join(name.split("/")[-2:]) for name in by_name(open_source(data, split, tmp_path))}
            for data in (folder, shards)
        ]
        assert names[0] == names[1] and len(names[0]) > 5


def test_a_folder_valid_is_packed_checked_and_indexed_as_val(
    photo_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root, packed = tmp_path / "source", tmp_path / "packed"
    copy(photo_folder / "train", root / "train")
    copy(photo_folder / "val", root / "valid")
    with caplog.at_level(logging.INFO):
        assert pack(root, packed) == pack(root, root, "output_format=index") == 0
        assert check_dataset([f"root={root}"]) == 0
    assert "72 images checked" in caplog.text and "ignored" not in caplog.text
    folder = open_source(DataConfig(root=str(root)), "val", root)
    shards = open_source(DataConfig(format="shards", root=str(packed)), "val", root)
    assert len(shards) == len(folder) == 24 and any(index_bytes(folder))


def test_a_folder_without_splits_is_packed_and_checked_as_it_would_be_trained(
    photo_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    root = tmp_path / "source"
    copy(photo_folder / "train", root)
    for output in (tmp_path / "packed", root):  # in shards, and with the indexes beside the files
        kind = "shards" if output != root else "index"
        assert pack(root, output, f"output_format={kind}") == 0
    assert "val by a hash of the paths, val_fraction=0.1" in caplog.text
    folder = DataConfig(root=str(root))
    shards = DataConfig(format="shards", root=str(tmp_path / "packed"))
    count = 0
    for split in ("train", "val"):
        names = [
            {"/".join(name.split("/")[-2:]) for name in by_name(open_source(data, split, tmp_path))}
            for data in (folder, shards)
        ]
        assert names[0] == names[1] and names[0]
        count += len(names[0])
    assert count == 48
    caplog.clear()
    assert check_dataset([f"root={root}"]) == 0
    assert "48 images" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["val_fraction=0.2"], "val_fraction=0.2: "),
        (["table.kind=numbers"], "row 1: the label 'astronaut' is not a finite number"),
    ],
)
def test_what_a_table_cannot_be_packed_into_is_one_line(
    photo_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    file = write(tmp_path / "labels.csv", rows_of(photo_folder))
    code = pack(file, tmp_path / "packed", f"images={photo_folder}", *options)
    error = capsys.readouterr().err
    assert code == ExitCode.USAGE and message in error and len(error.splitlines()) == 1


def test_a_table_of_train_and_test_is_packed_and_checked_as_it_would_be_trained(
    photo_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{**row, "split": row["split"].replace("val", "test")} for row in rows_of(photo_folder)]
    file = write(tmp_path / "labels.csv", rows)
    images, packed = f"images={photo_folder}", tmp_path / "packed"
    assert pack(file, packed, images, "val_fraction=0.3") == 0
    trained = opened(file, images=str(photo_folder), val_fraction=0.3)
    shards = DataConfig(format="shards", root=str(packed))
    for split, source in zip(("train", "val"), trained, strict=True):
        assert by_name(open_source(shards, split, packed)) == by_name(source)
    with caplog.at_level(logging.INFO):
        assert check_dataset([f"root={file}", images]) == 0
    assert "72 images checked" in caplog.text


def test_a_whole_table_is_checked(
    photo_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The command that training's messages name, with the settings of the table."""
    rows = [{**row, "path": f"x:/{row['path']}"} for row in rows_of(photo_folder)]
    rows[3]["path"] = "gone.jpg"
    file = write(tmp_path / "labels.csv", rows)
    with pytest.raises(RuntimeError) as raised:
        open_source(
            config(file, images=str(photo_folder), table=TableConfig(prefix="x:/")), "train", file
        )
    command = str(raised.value).split('ARGS="')[1].split('"')[0]
    assert check_dataset(command.split()) == ExitCode.FAILED
    assert f"row 4: {photo_folder}/gone.jpg: cannot be read" in caplog.text
