"""Of a file that a table lists and that is missing, the line says what lies there; ids without a
suffix find their images."""

import json
from pathlib import Path

import pytest

from entry_point.config.data_config import DataConfig, TableConfig
from entry_point.data.errors import DataError
from entry_point.data.sources.dataset import open_dataset
from entry_point.data.sources.splits import WHOLE
from tests.entry_point.data.sources.small_datasets import write


def listed(root: Path, *paths: str, max_bad_fraction: float = 1) -> list[str]:
    """The files that a table of these paths below `root` names; by default, they may be missing."""
    rows = [{"path": path, "label": "ab"[i % 2]} for i, path in enumerate(paths)]
    table = root.parent / "rows.jsonl"
    table.write_text("\n".join(map(json.dumps, rows)))
    data = DataConfig(
        format="manifest",
        root=str(table),
        images=str(root),
        table=TableConfig(kind="class"),
        max_bad_fraction=max_bad_fraction,
    )
    source = open_dataset(data, table, for_training=False).source(WHOLE)
    return [source.name(i) for i in range(len(source))]


def refusal(root: Path, *paths: str) -> str:
    with pytest.raises(DataError) as error:
        listed(root, *paths, max_bad_fraction=0)
    message = str(error.value)
    assert "\n" not in message and "correct the table" in message
    assert "data.table.prefix" in message
    return message


@pytest.mark.parametrize(
    ("path", "there", "said"),
    [
        ("photos/a.jpg", "photos/a.JPG", "FOLDER/photos holds a.JPG;"),
        ("photos/a.jpg", "Photos/a.jpg", "FOLDER holds other, photo, Photos;"),
        ("caf\u00e9.jpg", "cafe\u0301.jpg", "FOLDER holds cafe\u0301.jpg, other, photo;"),
        ("a.jpg ", "a.jpg", "FOLDER holds a.jpg, other, photo;"),
        ("photo/a.jpg", "1.jpg", "FOLDER/photo holds nothing;"),
        (f"{300 * 'x'}/a.jpg", "1.jpg", "FOLDER holds 1.jpg, other, photo;"),
        ("D:\\set\\a.jpg", "b\n\x1b.jpg", "FOLDER holds b\\n\\x1b.jpg, other, photo;"),
    ],
)
def test_what_lies_in_the_folder_is_named(tmp_path: Path, path: str, there: str, said: str) -> None:
    root = write(tmp_path / "images", there, "other/x.jpg")
    (root / "photo").mkdir()
    message = refusal(root, path, "nowhere.jpg").replace(str(root), "FOLDER")
    assert message.startswith("2 of 2 files are missing: ") and said in message


def test_of_many_names_the_nearest_are_shown(tmp_path: Path) -> None:
    root = write(tmp_path / "images", *(f"{i:03}.PNG" for i in range(300)))
    holds = f"; {root} holds 099.PNG, 100.PNG, 101.PNG and 297 more; "
    assert holds in refusal(root, "100.jpg", "299.PNG")
    assert f"; {root} holds 297.PNG, 298.PNG, 299.PNG and 297 more; " in refusal(root, "x.png", "y")


def test_a_missing_folder_of_images_is_named(tmp_path: Path) -> None:
    missing = f"; there is no folder {tmp_path}/images; "
    assert missing in refusal(tmp_path / "images", "a/1.jpg", "a/2.jpg")


def test_ids_without_suffix_find_their_images(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    files = ["1.jpg", "a/10.1016.jpeg", "2.JPG", "a/1.png", "a/caf\u00e9.jpg"]
    root = write(tmp_path / "images", *files, b"\xff.jpg".decode(errors="surrogateescape"))
    assert listed(root, *(file.rpartition(".")[0] for file in files)) == files
    assert "5 of 5 paths have no suffix, and are completed by that of their image" in caplog.text


def test_ids_that_are_nowhere_stay(tmp_path: Path) -> None:
    root = write(tmp_path / "images", "1.jpg", "3", "3.jpg", "4.txt", "A.jpg")
    assert listed(root, "1", "2", "3", "4", "a") == ["1.jpg", "2", "3", "4", "a"]


def test_paths_with_suffixes_are_not_completed(tmp_path: Path) -> None:
    root = write(tmp_path / "images", "1.jpg", "1.jpg.jpg", "2.jpg", "3")
    for paths in (["1.jpg"], ["1.PNG"], ["2", "1.jpg"], ["3"], ["4"], ["x/1"]):
        assert listed(root, *paths) == paths


def test_an_id_of_two_images_is_refused(tmp_path: Path) -> None:
    root = write(tmp_path / "images", "a/1.jpg", "a/1.png", "a/2.jpg")
    assert listed(root, "a/2") == ["a/2.jpg"]
    two = "a/1.jpg and a/1.png are there, and the table names a/1: "
    with pytest.raises(DataError, match=two):
        listed(root, "a/2", "a/1")
