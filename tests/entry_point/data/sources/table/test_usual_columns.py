"""Columns of paths and labels are known by their usual names, or asked for in one line."""

import re
from pathlib import Path
from typing import Any

import pytest

from entry_point.data.errors import DataError
from entry_point.data.sources.rows import LABEL_NAMES
from entry_point.data.sources.table import PATHS
from tests import commands
from tests.entry_point.data.sources.table.labeled_tables import opened, rows_of, write

ASKED = ("data.table.path=COLUMN", "data.table.labels=[COLUMN]")


def rows(photo_folder: Path, /, **columns: str) -> list[dict[str, Any]]:
    """Rows of the columns, each of which holds `path`, `label` or `split` of the photos, the path
    without its suffix (`stem`), or a number."""
    return [
        {
            name: {**row, "number": n, "stem": row["path"][:-4]}[cell]
            for name, cell in columns.items()
        }
        for n, row in enumerate(rows_of(photo_folder))
    ]


def read(photo_folder: Path, table: Path, /, **columns: str) -> tuple[str, list[str]]:
    """The first image and the classes of such a table."""
    source, _ = opened(write(table, rows(photo_folder, **columns)), images=str(photo_folder))
    return source.key(0).removeprefix(f"{photo_folder}/"), source.classes


@pytest.mark.parametrize("path", ["id", "image_id", "id_code", "file", "filename"])
@pytest.mark.parametrize("label", ["target", "class_id", "class", "label"])
@pytest.mark.parametrize("cell", ["path", "stem"])
def test_columns_of_usual_names_need_no_setting(
    photo_folder: Path, tmp_path: Path, path: str, label: str, cell: str
) -> None:
    columns = {path: cell, label: "label", "split": "split"}
    first, classes = read(photo_folder, tmp_path / "train.csv", **columns)
    assert first == "train/astronaut/000.jpg" and len(classes) == 8


@pytest.mark.parametrize("path", ["path", "file_name", "filename", "image", "image_id"])
def test_an_id_is_the_path_only_where_no_other_column_is(
    photo_folder: Path, tmp_path: Path, path: str
) -> None:
    columns = {"id": "number", path: "path", "label": "label", "split": "split"}
    first, _ = read(photo_folder, tmp_path / "train.csv", **columns)
    assert first == "train/astronaut/000.jpg"


def test_a_name_of_a_class_is_taken_before_its_number(photo_folder: Path, tmp_path: Path) -> None:
    columns = {"class_id": "number", "target": "number", "id": "path", "class": "label"}
    _, classes = read(photo_folder, tmp_path / "train.csv", **columns)
    assert len(classes) == 8


def test_documents_name_the_usual_columns_in_their_order() -> None:
    for page in ("docs/data.md", "docs/settings.md"):
        text = " ".join(Path(page).read_text().replace(" or `", " `").replace(",", "").split())
        for names in (PATHS, LABEL_NAMES):
            assert " ".join(f"`{name}`" for name in names) in text, page


@pytest.mark.parametrize(
    ("columns", "asked", "known"),
    [
        ({"foto": "path", "animal": "label"}, f"{ASKED[0]} {ASKED[1]}", "data.table.kind"),
        ({"foto": "path", "label": "label"}, ASKED[0], ASKED[1]),
        ({"path": "path", "animal": "label"}, ASKED[1], ASKED[0]),
    ],
)
def test_only_columns_that_are_unknown_are_asked_for_in_one_line_as_they_are_typed(
    photo_folder: Path, tmp_path: Path, columns: dict[str, str], asked: str, known: str
) -> None:
    file = write(tmp_path / "train.csv", rows(photo_folder, **columns))
    with pytest.raises(DataError) as raised:
        opened(file, images=str(photo_folder))
    line = str(raised.value)
    assert "\n" not in line and f": set {asked}, usually called " in line and known not in line
    assert f"it has {', '.join(map(repr, columns))}" in line


@pytest.mark.parametrize(
    ("program", "root"),
    [(commands.check_dataset, "root"), (commands.optimize, "source")],
)
def test_programs_ask_for_the_columns_as_they_take_them(
    photo_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    program: Any,
    root: str,
) -> None:
    columns = {"foto": "path", "animal": "label", "split": "split"}
    file = write(tmp_path / "train.csv", rows(photo_folder, **columns))
    typed = [f"{root}={file}", f"images={photo_folder}"]
    typed += [f"output={tmp_path / 'packed'}"] if root == "source" else []
    assert program(typed) != 0
    error = capsys.readouterr().err
    asked = re.search(r": set (\S+=COLUMN) (\S+=\[COLUMN\])[,;] ", error)
    assert asked, error
    answer = [asked[1].replace("COLUMN", "foto"), asked[2].replace("COLUMN", "animal")]
    assert program([*typed, *answer]) == 0
