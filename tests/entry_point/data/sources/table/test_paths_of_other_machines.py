"""Paths of another machine are found where the folder of the table surely takes its place."""

import logging
from pathlib import Path
from typing import Any

import pytest

from entry_point.config.data_config import DataConfig, TableConfig
from entry_point.data.errors import DataError
from entry_point.data.sources.dataset import open_dataset
from entry_point.data.sources.splits import WHOLE
from tests.entry_point.data.sources import small_datasets
from tests.entry_point.data.sources.small_datasets import counts, opened
from tests.entry_point.data.sources.table.labeled_tables import write

FILES = [f"{name}/{number}.jpg" for name in ("cat", "dog") for number in range(6)]
STARTS = {
    "Linux": "/home/me/pets/",
    "Colab": "/content/drive/My Drive/pets/",
    "Windows": "C:\\Users\\me\\pets\\",
    "Windows, by programs of Unix": "D:/pets/",
    "Windows' network": "\\\\server\\pets\\",
    "Windows, relative": "",
    "S3": "s3://bucket/pets/",
    "file": "file:///home/me/pets/",
}


def keys(root: Path, paths: list[str], *, labeled: bool = True, **data: Any) -> list[str]:
    """The files that a table of these paths, in the folder of FILES, names."""
    small_datasets.write(root, *FILES)
    rows = [{"path": path, "label": "xy"[i % 2]} for i, path in enumerate(paths)]
    file = write(root / "labels.csv", rows)
    settings = DataConfig(root=str(file), **data)
    source = open_dataset(settings, file, for_training=False, labeled=labeled).source(WHOLE)
    return [source.key(i).removeprefix(f"{root}/") for i in range(len(source))]


@pytest.mark.parametrize("name", STARTS)
def test_paths_of_another_machine_are_found(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    paths = [STARTS[name] + file for file in FILES]
    if name.startswith("Windows") and "/" not in STARTS[name]:
        paths = [path.replace("/", "\\") for path in paths]
    for labeled in (True, False):
        assert keys(tmp_path, paths, labeled=labeled) == FILES
    assert caplog.text.count(f"are read as from {tmp_path}") == 2


def test_they_are_found_where_one_of_the_first_is_missing(tmp_path: Path) -> None:
    paths = ["/home/me/gone.jpg", *(f"/home/me/{file}" for file in FILES)]
    assert keys(tmp_path, paths, max_bad_fraction=0.5) == ["gone.jpg", *FILES]


def test_each_table_may_be_of_another_machine(tmp_path: Path) -> None:
    for split, start in (("train", "/home/me/pets/"), ("val", "C:\\pets\\")):
        names = [f"{split}/{name}" for name in FILES]
        small_datasets.write(tmp_path, *names)
        rows = [{"path": f"{start}{name}", "label": name.split("/")[1]} for name in names]
        write(tmp_path / f"{split}.csv", rows)
    assert counts(opened(tmp_path, format="manifest")) == {"train": 12, "val": 12}


def test_a_prefix_is_removed_once(tmp_path: Path) -> None:
    small_datasets.write(tmp_path, "cat/cat/0.jpg")
    table = TableConfig(prefix="cat/")
    assert keys(tmp_path, ["cat/cat/cat/0.jpg"], table=table) == ["cat/cat/0.jpg"]


def test_a_file_of_this_machine_is_not_another(tmp_path: Path) -> None:
    """A copy in the table's folder is not what the table names."""
    other = small_datasets.write(tmp_path / "other", FILES[0]) / FILES[0]
    with pytest.raises(DataError, match=r"row 1: .* leads out of the folder .*set data.images"):
        keys(tmp_path / "set", [str(other)])


def test_two_starts_are_not_guessed(tmp_path: Path) -> None:
    paths = [f"/{'ab'[i % 2]}/{file}" for i, file in enumerate(FILES)]
    with pytest.raises(DataError, match=r"row 2: the path '/b/cat/1.jpg' leads out"):
        keys(tmp_path, paths)
