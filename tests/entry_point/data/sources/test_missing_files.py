"""Why files of a table are missing is said, and never mended but for ids without a suffix."""

from pathlib import Path

import polars as pl
import pytest

from entry_point.data.errors import DataError
from entry_point.data.sources.missing_files import cause, with_suffixes


def write(root: Path, *files: str) -> str:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    return str(root)


@pytest.mark.parametrize(
    ("path", "there", "reason"),
    [
        ("photos\\a.jpg", "photos/a.jpg", "the path has \\ for /"),
        ("photos/2024\\a.jpg", "photos/2024/a.jpg", "the path has \\ for /"),
        ("photos\\a.jpg", "photos/A.jpg", "the path has \\ for /, names differ in case"),
        ("caf\u00e9.jpg", "cafe\u0301.jpg", "names differ in their Unicode form (NFC, NFD)"),
        ("cafe\u0301/1.jpg", "caf\u00e9/1.jpg", "names differ in their Unicode form (NFC, NFD)"),
        ("photos/a.jpg", "photos/a.JPG", "names differ in case"),
        ("photos/IMG_1.jpg", "Photos/img_1.jpg", "names differ in case"),
        ("a.jpg", "a.jpeg", "names differ in the suffix"),
        ("photos/a.jpeg", "photos/a.JPG", "names differ in the suffix"),
        ("a.v1.gif", "a.v1.png", "names differ in the suffix"),
        ("photos/a", "photos/a.jpg", "names differ in the suffix"),
        ("photos/a.v1", "photos/a.v1.jpg", "names differ in the suffix"),
        ("a.jpg ", "a.jpg", "names differ in spaces around them"),
        (" photos/a.jpg", "photos/a.jpg", "names differ in spaces around them"),
        ("a.jpg", "a.jpg ", "names differ in spaces around them"),
        ("images/1.jpg", "1.jpg", "the path has an extra images/"),
        ("images/images/1.jpg", "images/1.jpg", "the path has an extra images/"),
        ("data/images/a/1.jpg", "a/1.jpg", "the path has an extra data/images/"),
        ("C:\\images\\1.jpg", "1.jpg", "the path has \\ for /, the path has an extra C:/images/"),
        ("1.jpg", "images/1.jpg", "the path lacks images/"),
        ("a/1", "images/a/1.jpg", "the path lacks images/, names differ in the suffix"),
    ],
)
def test_the_cause_names_what_is_there(tmp_path: Path, path: str, there: str, reason: str) -> None:
    folder = write(tmp_path / "images", "other.png", "photo/other.jpg", there)
    found = cause(folder, ["nowhere.jpg", path]).replace(folder, "FOLDER")
    assert found.startswith(f"{there} is there instead of {path}: {reason}")


@pytest.mark.parametrize("path", ["b.jpg", "photos/b.jpg", "x/y/z.jpg", "a.txt.jpg", "\\"])
def test_nothing_is_said_of_files_that_are_nowhere(tmp_path: Path, path: str) -> None:
    folder = write(tmp_path, "a.jpg", "b.txt", "photos/a.jpg", "photos/10.jpg")
    assert cause(folder, [path]) == ""


def test_the_closest_name_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path, "a.png", "A.jpg", "x/a.jpg")
    assert cause(folder, ["a.jpg"]).startswith("A.jpg is there")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    assert cause(f"{tmp_path}/images", ["a.jpg"]) == f"there is no folder {tmp_path}/images"


def test_control_characters_are_escaped(tmp_path: Path) -> None:
    folder = write(tmp_path, "a\n\x1b.JPG")
    assert "a\\n\\x1b.JPG is there instead of a\\n\\x1b.jpg" in cause(folder, ["a\n\x1b.jpg"])


def completed(folder: str, *paths: str) -> list[str]:
    found = with_suffixes(folder, pl.Series("id", paths))
    assert found.name == "id" and found.dtype == pl.String
    return found.to_list()


def test_ids_without_suffix_find_their_images(tmp_path: Path) -> None:
    folder = write(tmp_path, "1.jpg", "2.JPG", "a/1.png", "a/10.1016.jpeg", "a/caf\u00e9.jpg")
    paths = ["1", "a/10.1016", "2", "a/1", "a/caf\u00e9"]
    expected = ["1.jpg", "a/10.1016.jpeg", "2.JPG", "a/1.png", "a/caf\u00e9.jpg"]
    assert completed(folder, *paths) == expected


def test_ids_that_are_nowhere_stay(tmp_path: Path) -> None:
    folder = write(tmp_path, "1.jpg", "3", "3.jpg", "4.txt", "A.jpg")
    assert completed(folder, "1", "2", "3", "4", "a") == ["1.jpg", "2", "3", "4", "a"]


def test_paths_with_suffixes_are_not_completed(tmp_path: Path) -> None:
    folder = write(tmp_path, "1.jpg", "1.jpg.jpg", "2.jpg", "3")
    for paths in (["1.jpg"], ["1.PNG"], ["2", "1.jpg"], ["3"], ["4"], ["x/1"]):
        assert completed(folder, *paths) == paths


def test_an_id_of_two_images_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, "a/1.jpg", "a/1.png", "a/2.jpg")
    assert completed(folder, "a/2") == ["a/2.jpg"]
    with pytest.raises(DataError, match=r"a: 1.jpg and 1.png are there, and the table names 1: "):
        completed(folder, "a/2", "a/1")


def test_names_that_are_not_utf8_do_not_matter(tmp_path: Path) -> None:
    folder = write(tmp_path, "1.jpg", b"\xff.jpg".decode(errors="surrogateescape"))
    assert completed(folder, "1") == ["1.jpg"]
    assert "names differ in the suffix" in cause(folder, ["1.png"])
