"""Columns of paths and labels are known by their usual names, or asked for in one line."""

import re
from pathlib import Path

import pytest

from entry_point.data.sources.rows import LABEL_NAMES
from entry_point.data.sources.splits import WHOLE
from entry_point.data.sources.table import PATHS
from tests import commands
from tests.entry_point.data.sources import small_datasets
from tests.entry_point.data.sources.small_datasets import NAMES, keys, opened, refusal
from tests.entry_point.data.sources.table.labeled_tables import write

ASKED = ("data.table.path=COLUMN", "data.table.labels=[COLUMN]")


def table(root: Path, columns: dict[str, str]) -> Path:
    """Each column holds the `path` of the images, the path without its suffix (`stem`), the
    `label`, or a `number`."""
    small_datasets.write(root, *NAMES)
    cells = [
        {"path": name, "stem": name[:-4], "label": name[:3], "number": n}
        for n, name in enumerate(NAMES)
    ]
    rows = [{name: row[cell] for name, cell in columns.items()} for row in cells]
    return write(root / "train.csv", rows)


@pytest.mark.parametrize(
    "columns",
    [
        {"id": "path", "target": "label"},
        {"image_id": "stem", "class_id": "label"},
        {"id_code": "stem", "cls": "label"},
        {"id": "number", "file": "path", "label": "label"},
        {"id": "number", "image_id": "path", "labels": "label"},
        {"class_id": "number", "target": "number", "class": "label", "filename": "path"},
        {"Id": "number", "Label": "number", "label": "label", "Image": "path"},
    ],
    ids=" ".join,
)
def test_the_first_columns_of_usual_names_need_no_setting(
    tmp_path: Path, columns: dict[str, str]
) -> None:
    source = opened(table(tmp_path, columns), for_training=False).source(WHOLE)
    assert keys(source) == [f"{tmp_path}/{name}" for name in NAMES]
    assert source.classes == ["cat", "dog"]


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
    tmp_path: Path, columns: dict[str, str], asked: str, known: str
) -> None:
    file = table(tmp_path, columns)
    line = refusal(file)
    assert f": set {asked}, usually called " in line and known not in line
    assert f"it has {', '.join(map(repr, columns))}" in line
    names = dict(zip(ASKED, columns, strict=True))
    typed = [
        word.replace("COLUMN", names[word]) for word in re.findall(r"data\.\S+COLUMN]?", asked)
    ]
    assert commands.check_dataset([f"root={file}", *typed]) == 0
