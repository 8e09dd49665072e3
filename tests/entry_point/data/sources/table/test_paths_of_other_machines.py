"""Paths of another machine are found where the folder of the table surely takes its place."""

import logging
from pathlib import Path
from typing import Any

import pytest

from entry_point.config.data_config import DataConfig, TableConfig
from entry_point.data.errors import DataError
from entry_point.data.sources.dataset import open_dataset
from entry_point.data.sources.splits import WHOLE
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
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    rows = [{"path": path, "label": "xy"[i % 2]} for i, path in enumerate(paths)]
    file = write(root / "labels.csv", rows)
    settings = DataConfig(root=str(file), **data)
    source = open_dataset(settings, file, for_training=False, labeled=labeled).source(WHOLE)
    return [source.key(i).removeprefix(f"{root}/") for i in range(len(source))]


@pytest.mark.parametrize("labeled", [True, False])
@pytest.mark.parametrize("name", STARTS)
def test_paths_of_another_machine_are_found(
    tmp_path: Path, name: str, labeled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    paths = [STARTS[name] + file for file in FILES]
    if name.startswith("Windows") and "/" not in STARTS[name]:
        paths = [path.replace("/", "\\") for path in paths]
    assert keys(tmp_path, paths, labeled=labeled) == FILES
    assert f"are read as from {tmp_path}" in caplog.text


def test_they_are_found_where_one_of_the_first_is_missing(tmp_path: Path) -> None:
    paths = ["/home/me/gone.jpg", *(f"/home/me/{file}" for file in FILES)]
    assert keys(tmp_path, paths, max_bad_fraction=0.5) == ["gone.jpg", *FILES]


def test_each_table_may_be_of_another_machine(tmp_path: Path) -> None:
    for split, start in (("train", "/home/me/pets/"), ("val", "C:\\pets\\")):
        names = [f"{split}/{name}/{i}.jpg" for name in ("cat", "dog") for i in range(3)]
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        rows = [{"path": f"{start}{name}", "label": name.split("/")[1]} for name in names]
        write(tmp_path / f"{split}.csv", rows)
    dataset = open_dataset(
        DataConfig(format="manifest", root=str(tmp_path)), tmp_path, for_training=True
    )
    assert [len(dataset.source(split)) for split in ("train", "val")] == [6, 6]


def test_a_prefix_is_removed_once(tmp_path: Path) -> None:
    (tmp_path / "cat" / "cat").mkdir(parents=True)
    (tmp_path / "cat" / "cat" / "0.jpg").touch()
    table = TableConfig(prefix="cat/")
    assert keys(tmp_path, ["cat/cat/cat/0.jpg"], table=table) == ["cat/cat/0.jpg"]


def test_a_file_of_this_machine_is_not_another(tmp_path: Path) -> None:
    """A copy in the table's folder is not what the table names."""
    other = tmp_path / "other" / FILES[0]
    other.parent.mkdir(parents=True)
    other.touch()
    with pytest.raises(DataError, match=r"row 1: .* leads out of the folder .*set data.images"):
        keys(tmp_path / "set", [str(other)])


def test_two_starts_are_not_guessed(tmp_path: Path) -> None:
    paths = [f"/{'ab'[i % 2]}/{file}" for i, file in enumerate(FILES)]
    with pytest.raises(DataError, match=r"row 2: the path '/b/cat/1.jpg' leads out"):
        keys(tmp_path, paths)


@pytest.mark.parametrize("start", ["/home/me/pets/", "s3://bucket/", "C:\\pets\\"])
def test_paths_that_are_not_found_name_the_prefix(tmp_path: Path, start: str) -> None:
    with pytest.raises(DataError, match=r"data\.table\.prefix"):
        keys(tmp_path, [f"{start}nowhere-{i}.jpg" for i in range(4)])


def test_a_path_that_no_file_can_have_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"row 1: the path .* leads out"):
        keys(tmp_path, ["/x" * 1_000_000])
