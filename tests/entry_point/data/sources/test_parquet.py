"""Hugging Face's Parquet files as a source."""

import json
import logging
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from entry_point.config.data_config import DataConfig, TableConfig
from entry_point.data.errors import DataError
from entry_point.data.sources import parquet
from entry_point.data.sources.source import Source
from entry_point.data.sources.splits import WHOLE
from tests import commands
from tests.entry_point.data.engines.every_engine import Way
from tests.entry_point.data.loaders import epoch_of, indices_of, loader_of, source_of
from tests.entry_point.data.sources import small_datasets
from tests.entry_point.data.sources.small_datasets import opened

FILES = {
    "train": "data/train-{:05d}-of-00002.parquet",
    "val": "plain_text/validation-{:05d}.parquet",
}
IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})
NAMES = ["cat", "dog"]
ROW = {"bytes": b"x", "path": "a.jpg"}
PAIRS = pa.array([[1, 1], [1, 0], [0, 0]], pa.list_(pa.int64(), 2))


def write(
    file: Path, images: Sequence[Any], labels: Sequence[Any], names: Sequence[str] = (), **form: Any
) -> None:
    """As the datasets package does, in row groups of 5 images."""
    feature = {"names": list(names), "_type": "ClassLabel"} if names else {"dtype": "int64"}
    described = {"info": {"features": {"image": {"_type": "Image"}, "label": feature}}}
    columns = {"image": pa.array(images, form.get("image", IMAGE)), "label": pa.array(labels)}
    table = pa.table(columns).replace_schema_metadata({"huggingface": json.dumps(described)})
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, file, row_group_size=5)


def write_dataset(photographs: Path, folder: Path) -> Path:
    """Each split in two files."""
    classes = sorted(path.name for path in (photographs / "train").iterdir())
    for split, name in FILES.items():
        files = sorted((photographs / split).glob("*/*"))
        for number in range(2):
            half = files[number * len(files) // 2 : (number + 1) * len(files) // 2]
            images = [{"bytes": file.read_bytes(), "path": file.name} for file in half]
            labels = [classes.index(file.parent.name) for file in half]
            write(folder / name.format(number), images, labels, classes)
    return folder


def open_parquet(root: Path, split: str = "train", **data: Any) -> Source:
    return source_of(root, split, format="parquet", **data)


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "SHARD_BYTES", 300_000)


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("engine", ["threads", "workers"])
def test_the_images_are_those_of_the_folder_and_each_is_taken_once(
    mixed_folder: Path, tmp_path: Path, engine: Way
) -> None:
    root = write_dataset(mixed_folder, tmp_path)
    for split in FILES:
        source, folder = open_parquet(root, split), source_of(mixed_folder, split)
        assert (source.classes, source.kind) == (folder.classes, "class")
        assert source.labels.tolist() == folder.labels.tolist()
        for i in range(len(folder)):
            assert torch.equal(source.read(i), folder.read(i))
        last = len(folder) // 2 - 1  # of the first file
        assert source.key(last) == f"{root / FILES[split].format(0)}, row {last}"
        numbers = indices_of(epoch_of(loader_of(source, engine, split, batch_size=4)))
        assert sorted(numbers) == list(range(len(folder)))
        assert (numbers == sorted(numbers)) == (split == "val")
    assert len(open_parquet(root).split_shards) > 3  # type: ignore[attr-defined]


@pytest.mark.usefixtures("small_shards")
def test_rows_are_packed_and_checked(
    mixed_folder: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root, packed = write_dataset(mixed_folder, tmp_path / "root"), tmp_path / "packed"
    caplog.set_level(logging.INFO)
    assert commands.optimize([f"source={root}", f"output={packed}"]) == 0
    source, rows = source_of(packed), open_parquet(root)
    assert source.classes == rows.classes and len(source) == len(rows)
    assert sorted(source.labels.tolist()) == sorted(rows.labels.tolist())
    assert commands.check_dataset([f"root={packed}"]) == 0
    assert commands.check_dataset([f"root={root}"]) == 0
    assert caplog.text.count("72 images checked, problems: 0") == 2
    assert commands.optimize([f"source={root}", "output_format=index"]) == 2
    assert "output_format=index: needs files or tar files" in capsys.readouterr().err


def test_a_file_of_images_is_read_and_one_of_paths_is_a_table(tmp_path: Path) -> None:
    write(tmp_path / "images.parquet", [ROW] * 20, [0, 1] * 10, NAMES)
    assert opened(tmp_path / "images.parquet").data.format == "parquet"
    files = [f"{i}.jpg" for i in range(20)]
    paths = {"path": files, "md5": [b"x"] * 20, "label": NAMES * 10}
    pq.write_table(pa.table(paths), tmp_path / "paths.parquet")
    small_datasets.write(tmp_path, *files)
    table = TableConfig(path="path")
    dataset = opened(tmp_path / "paths.parquet", table=table, for_training=False)
    assert dataset.data.format == "manifest" and len(dataset.source(WHOLE)) == 20


@pytest.mark.usefixtures("small_shards")
def test_threads_read_a_shard_once_although_nothing_reads_ahead(
    photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in prediction, checks and packing."""
    source: Any = open_parquet(write_dataset(photo_folder, tmp_path))
    reads, read, together = list[int](), source._read_shard, threading.Barrier(4)

    def slow(number: int) -> Any:
        reads.append(number)
        time.sleep(0.05)
        return read(number)

    def first_of_each(_: int) -> None:
        for shard in source.split_shards:
            together.wait()
            source.read(int(np.flatnonzero(source.shard_of == shard)[0]))

    monkeypatch.setattr(source, "_read_shard", slow)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(first_of_each, range(4)))
    assert reads == source.split_shards and len(reads) > 2


@pytest.mark.parametrize(
    ("cells", "names", "expected"),
    [
        ([["b", "a"], [], ["b"]], (), ("labels", ["a", "b"], [[1, 1], [0, 0], [0, 1]])),
        ([[1], [0, 1], []], NAMES, ("labels", NAMES, [[0, 1], [1, 1], [0, 0]])),
        (PAIRS, NAMES, ("labels", NAMES, [[0, 1], [1, 1], [1, 0]])),
        ([0.5, 2.0, -1.0], (), ("numbers", ["label"], [[0.5], [2.0], [-1.0]])),
        ([10, 9, 10], (), ("class", ["9", "10"], [1, 0, 1])),
    ],
)
def test_the_type_of_the_labels_says_what_they_are(
    tmp_path: Path, cells: list[Any], names: Sequence[str], expected: tuple[Any, ...]
) -> None:
    for split in ("train", "val"):
        write(tmp_path / f"{split}.parquet", [{"bytes": b"x", "path": ""}] * 3, cells, names)
    source = open_parquet(tmp_path)
    assert (source.kind, source.classes, source.labels.tolist()) == expected
    assert source.labels.dtype == (torch.int64 if source.kind == "class" else torch.float32)


@pytest.mark.parametrize("wrap", [lambda of: [of], lambda of: {"feature": of}])
def test_the_names_of_the_classes_in_lists_are_found(tmp_path: Path, wrap: Any) -> None:
    """Versions of the datasets package describe lists in several ways."""
    for split in ("train", "val"):
        write(file := tmp_path / f"{split}.parquet", [ROW] * 2, [[1], [0, 1]])
        feature = wrap({"names": NAMES, "_type": "ClassLabel"})
        described = json.dumps({"info": {"features": {"label": feature}}})
        table = pq.read_table(file, partitioning=None)
        pq.write_table(table.replace_schema_metadata({"huggingface": described}), file)
    assert open_parquet(tmp_path).classes == NAMES


def test_lists_that_polars_writes_are_several_labels(tmp_path: Path) -> None:
    """Its files say that they hold another type of lists."""
    for split in ("train", "val"):
        rows = {"image": [b"x", b"y"], "labels": [["a", "b"], ["b"]]}
        polars.DataFrame(rows).write_parquet(tmp_path / f"{split}.parquet")
    source = open_parquet(tmp_path)
    assert (source.kind, source.labels.tolist()) == ("labels", [[1, 1], [0, 1]])


def test_files_with_labels_of_different_types_are_named(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", [ROW] * 2, ["a", "b"])
    write(tmp_path / "val.parquet", [ROW] * 2, [["a"], ["b"]])
    with pytest.raises(DataError, match=r"val\.parquet: its labels are of another type"):
        open_parquet(tmp_path)


@pytest.mark.parametrize(
    ("labels", "table", "message"),
    [
        ([0, -1], {}, "train.parquet, row 1: the label -1 is not a class of the schema"),
        ([[0], [1, 2]], {}, "train.parquet, row 1: the label 2 is not a class of the schema"),
        ([0, None], {}, "train.parquet, row 1: has no 'label'"),
        ([[0], None], {}, "train.parquet, row 1: has no 'label'"),
        ([{"x": 1}, {"x": 2}], {}, "the column 'label' is of type Struct.*: must be text"),
        ([0.5, float("nan")], {}, "row 1: the label is NaN"),
        ([0, 1], {"labels": ["labl"]}, "no column 'labl'; did you mean label?"),
        ([0, 1], {"path": "label"}, "'label' is of type int64: must be bytes"),
    ],
)
def test_what_cannot_be_used_is_named(
    tmp_path: Path, labels: list[Any], table: dict[str, Any], message: str
) -> None:
    for split in ("train", "val"):
        write(tmp_path / f"{split}.parquet", [ROW] * 2, labels, NAMES)
    with pytest.raises(DataError, match=message):
        open_parquet(tmp_path, table=table)


def test_a_column_tells_splits_where_no_file_name_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    write(file := tmp_path / "photos.parquet", [ROW] * 5, [0, 1, 0, 1, 0])
    words = ["train", "Validation", "test", "extra", None]
    cells = pq.read_table(file).append_column("split", [words])
    pq.write_table(cells, file)
    found = {split: open_parquet(tmp_path, split) for split in ("train", "val", "test")}
    assert {split: source.key(0)[-5:] for split, source in found.items()} == {
        **{"train": "row 0", "val": "row 1", "test": "row 2"}
    }
    assert "(by the column 'split'); not used: 1 of split 'extra', 1 of no split" in caplog.text
    write(tmp_path / "train.parquet", [ROW], [0])  # names of files come first
    assert len(open_parquet(tmp_path)) == 1


def test_a_class_in_the_metadata_that_no_log_can_hold_is_refused(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write(tmp_path / f"{split}.parquet", [ROW] * 2, [0, 1], ["cat", "do\ng"])
    with pytest.raises(DataError, match="the class 'do\\\\ng' in the schema's metadata"):
        open_parquet(tmp_path)


def test_damage_is_named(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write(tmp_path / f"{split}.parquet", [ROW, {"bytes": None, "path": "b"}], [0, 1], NAMES)
    source = open_parquet(tmp_path)
    with pytest.raises(DataError, match="the row has no image"):
        source.read(1)
    (tmp_path / "val.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"val\.parquet is damaged"):
        open_parquet(tmp_path)


def test_files_with_wrong_bytes_are_read_or_named(photo_folder: Path, tmp_path: Path) -> None:
    root = write_dataset(photo_folder, tmp_path / "root")
    file = root / FILES["train"].format(0)
    intact, named = file.read_bytes(), 0
    for seed in range(50):
        draw, content = random.Random(seed), bytearray(intact)
        for _ in range(draw.randint(1, 9)):
            content[draw.randrange(len(content) - 3000, len(content))] = draw.randrange(256)
        file.write_bytes(content)
        try:
            source = open_parquet(root)
            for i in range(len(source)):
                source.read(i)
        except DataError as error:
            assert "\n" not in str(error)
            named += 1
    assert named > 15


def test_what_needs_any_order_is_refused() -> None:
    with pytest.raises(ValueError, match=r"data\.repeats=2: needs the output of `make dataset`"):
        DataConfig(format="parquet", repeats=2)
    with pytest.raises(ValueError, match=r"data\.table\.split=x: needs data=manifest"):
        DataConfig(format="parquet", table=TableConfig(split="x"))
