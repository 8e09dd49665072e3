"""Tables that are wrong: each gives one line that names the file, and the row if there is one."""

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from entry_point.config.data_config import DataConfig, TableConfig
from entry_point.data.errors import DataError
from entry_point.data.sources.folder import Tree
from entry_point.data.sources.labels import read_labels
from entry_point.data.sources.rows import Labels, PathList
from entry_point.data.sources.splits import Splits, divided, named
from entry_point.data.sources.table import list_table
from entry_point.job.program import ExitCode
from tests import commands
from tests.entry_point.data.sources import small_datasets

GOOD = "path,label,split\na.jpg,cat,train\nb.jpg,dog,train\nc.jpg,cat,val\nd.jpg,dog,val\n"


class Table(NamedTuple):
    paths: PathList
    labels: Labels
    splits: Splits


def read(file: Path, val_fraction: float | None = None, **settings: Any) -> Table:
    """Its rows, which need no files."""
    data = DataConfig("manifest", root=str(file), table=TableConfig(**settings))
    rows = list_table(Tree(file), data)
    found = read_labels(rows, data.table)
    splits = divided(named(rows.words), rows.names, val_fraction, str(file), of_part=False)
    return Table(rows.names, found, splits)


def complaint(file: Path, **table: Any) -> str:
    with pytest.raises(DataError) as raised:
        read(file, **table)
    text = str(raised.value)
    assert "\n" not in text and str(file) in text and len(text) < 600
    return text.replace(str(file), "FILE").replace(str(file.parent), "FOLDER")


TWICE = "row 3: 'a.jpg' is in row 1, too: keep one of them; several labels of an image"
HERE = "row 1: the path 'x/..' leads out of the folder FOLDER: set data.images to a folder that"
WRONG_ROWS = [
    # The rows of a CSV, and what the line says.
    (f"a.jpg,{'x' * 10_000_000},train", "line 2: field larger"),
    ("a.jpg,cat,train\nb.jpg,,val", "row 2: the label is empty"),
    ("a.jpg,cat,train\nb.jpg,NaN,val", "row 2: the label is NaN"),
    ("a,1.5,train\nb,nan,val", "row 2: the label 'nan' is not a finite"),
    ("a,1.5,train\nb,1e60,val", "row 2: the label '1e60' is not a finite"),
    ("a.jpg,\x1b[2J,train", "row 1: the label '\\\\x1b[2J'"),
    (",cat,train", "row 1: the path '' is empty"),
    ("a\0b.jpg,cat,train", "or holds a NUL character"),
    ("../a.jpg,cat,train", "row 1: the path '../a.jpg' leads out of the folder"),
    ("b.jpg,cat,train\nx/../../a.jpg,cat,train", "row 2: the path 'x/../../a.jpg' leads out"),
    ("/etc/passwd,cat,train", "row 1: the path '/etc/passwd' leads out of"),
    ("{folder}2/a.jpg,cat,train", "leads out of the folder FOLDER: set data.images to"),
    ("x/..,cat,train", f"{HERE} holds all images, and data.table.prefix to what precedes it"),
    (f"{'/x' * 1_000_000},cat,train", "leads out of the folder"),
    ("s3://bucket/a.jpg,cat,train", "is not a file: set data.table.prefix to the part"),
    ("a.jpg,cat,train\nb.jpg,dog,val\n./a.jpg,dog,train", TWICE),
]


@pytest.mark.parametrize(("rows", "expected"), WRONG_ROWS, ids=[row[:20] for row, _ in WRONG_ROWS])
def test_a_wrong_row_of_a_csv_is_one_line(tmp_path: Path, rows: str, expected: str) -> None:
    file = tmp_path / "labels.csv"
    file.write_text(f"path,label,split\n{rows}\n".replace("{folder}", str(tmp_path)))
    assert expected in complaint(file)


DIGITS = "1" + "0" * 400
OF_CELLS = "`bool | int | float | str"
WRONG_JSON = [
    ('[1, 2]\n{"path": "a"}\n', "row 1: Expected `object`, got `array`: write a JSON object per"),
    ('{"path": "a", "label": "x"}\n{"path":\n', "row 2: Input data was truncated: write a JSON"),
    ('{"path": "a", "label": "x"}{"path": "b"}\n', "row 1: JSON is malformed: trailing"),
    ('{"path": "a", "other": ' + "[" * 100_000, " while deserializing an object: "),
    ('{"path": "a", "label": "x"}\n{"path": "b"}\n', "row 2: has no 'label'"),
    ('{"path": "a", "label": {"x": 1}}\n', f"row 1: Expected {OF_CELLS} | array | null`, got `ob"),
    ('{"path": "a", "label": [["x"]]}\n', f"row 1: Expected {OF_CELLS}`, got `array` - at"),
    (f'{{"path": "a", "label": [{DIGITS}.5]}}\n', "row 1: Number out of range - at"),
    (f'{{"path": "a", "label": [{DIGITS}, 0.5]}}\n', "row 1: the label '1000"),
    ("\n\n", "FILE is empty"),
]


@pytest.mark.parametrize(("content", "expected"), WRONG_JSON, ids=range(len(WRONG_JSON)))
def test_a_wrong_json_lines_file_is_one_line(tmp_path: Path, content: str, expected: str) -> None:
    (tmp_path / "labels.jsonl").write_text(content)
    assert expected in complaint(tmp_path / "labels.jsonl", val_fraction=0.5)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"path": pa.array([], "string"), "label": []}, "holds no rows"),
        ({"path": ["a", "b"], "label": ["x", None]}, "row 2: has no 'label'"),
        ({"path": ["a", None], "label": ["x", "y"]}, "row 2: the path '' is empty"),
        ({"path": [b"a", b"b"], "label": ["x", "y"]}, "the column 'path' is of type Binary"),
        ({"path": ["a"], "label": [{"x": 1}]}, "the column 'label' is of type Struct"),
        ({"path": ["a"], "label": [timedelta(1)]}, "the column 'label' is of type Duration"),
        ({"path": ["a"], "label": [[0.5, None]]}, "row 1: the label 'None' is not a finite"),
        ({"path": ["a", "b"], "label": [[1, 0], [0, None]]}, "row 2: the label 'None' is not"),
    ],
)
def test_a_wrong_parquet_file_is_one_line(
    tmp_path: Path, columns: dict[str, Any], expected: str
) -> None:
    pq.write_table(pa.table(columns), tmp_path / "labels.parquet")
    assert expected in complaint(tmp_path / "labels.parquet", val_fraction=0.5)


def test_a_damaged_parquet_file_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "labels.parquet"
    pq.write_table(pa.table({"path": ["a.jpg"] * 1000, "label": ["x", "y"] * 500}), file)
    whole = file.read_bytes()
    for content in (whole[: len(whole) // 2], b"PAR1" + b"x" * 100, b""):
        file.write_bytes(content)
        assert "FILE is damaged (" in complaint(file)
    assert not capfd.readouterr().err


def test_other_files_and_a_column_twice_are_refused(tmp_path: Path) -> None:
    assert "no such table" in complaint(tmp_path / "gone.csv")
    twice = small_datasets.table(tmp_path / "twice.csv", ["a,b,c"], "path,label,label")
    assert "FILE has two columns 'label': rename one" in complaint(twice)
    (tmp_path / "labels.xlsx").touch()
    assert "must end in one of .csv, .tsv, .parquet" in complaint(tmp_path / "labels.xlsx")
    lists = tmp_path / "lists.jsonl"
    lists.write_text('{"path": ["a.jpg"], "label": "cat"}\n')
    assert "the column 'path' holds lists: must be text" in complaint(lists)
    (tmp_path / "folder.csv").mkdir()
    assert "must hold one table, but holds none" in complaint(tmp_path / "folder.csv")


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"path": "pth"}, "FILE has no column 'pth'; did you mean path?; it has 'path', 'label'"),
        ({"labels": ["label", "x"]}, "FILE has no column 'x'"),
        ({"labels": ["path"]}, "the column 'path' cannot hold two things"),
        ({"kind": "numbers"}, "row 1: the label 'cat' is not a finite number"),
        ({"split": "spilt"}, "FILE has no column 'spilt'; did you mean split?"),
    ],
)
def test_settings_that_do_not_fit_the_table_are_one_line(
    tmp_path: Path, table: dict[str, Any], expected: str
) -> None:
    (tmp_path / "labels.csv").write_text(GOOD)
    assert expected in complaint(tmp_path / "labels.csv", **table)


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        GOOD.replace("\n", "\r\n"),
        "\ufeff" + GOOD,
        GOOD.replace("\n", "\n\n"),
        GOOD.replace(",", ";"),
        GOOD.replace("cat", '"cat"').replace("a.jpg", '"a.jpg"'),
        GOOD.replace(",cat", ", cat ").replace(",train", ", train"),
        GOOD.replace(",cat", ', "cat"'),
        GOOD.replace("path,label,split", "Path,LABEL,Split"),
        GOOD.rstrip("\n"),
        GOOD.replace("train", "Training").replace("val", "validation"),
    ],
)
def test_the_ways_that_programs_write_csv_are_read_alike(tmp_path: Path, text: str) -> None:
    (tmp_path / "labels.csv").write_text(text, encoding="utf-8", newline="")
    table = read(tmp_path / "labels.csv")
    assert [table.paths[row] for row in range(4)] == ["a.jpg", "b.jpg", "c.jpg", "d.jpg"]
    assert table.labels.names == ["cat", "dog"] and table.labels.values.tolist() == [0, 1, 0, 1]
    assert table.splits.rows["val"].tolist() == [2, 3]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=5,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.fixed_dictionaries({"path": ANYTHING | st.just("a"), "label": ANYTHING})))
def test_any_json_lines_are_read_or_refused_in_one_line(
    tmp_path: Path, rows: list[dict[str, Any]]
) -> None:
    file = tmp_path / "labels.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _read_or_refuse(file, len(rows))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary() | st.text(alphabet=',"\n\r;|. abc1', max_size=80).map(str.encode))
def test_any_bytes_of_a_csv_are_read_or_refused_in_one_line(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "labels.csv"
    file.write_bytes(b"path,label\n" + text)
    _read_or_refuse(file)


def _read_or_refuse(file: Path, rows: int | None = None) -> None:
    try:
        table = read(file, val_fraction=0.5)
    except DataError as error:
        assert not re.search(r"[\n\r\x1b]", str(error)) and str(file) in str(error)
        return
    assert rows is None or rows >= len(table.paths)
    for row in range(len(table.paths)):
        assert ".." not in Path(table.paths[row]).parts and not table.paths[row].startswith("/")


def test_a_row_whose_path_leads_out_is_refused_by_packing_indexing_and_checks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = small_datasets.write(tmp_path / "photos", "a.jpg")
    file = small_datasets.table(root / "t.csv", ["a.jpg,cat", "x/../../outside.jpg,cat"])
    packing = [f"source={file}", f"output={tmp_path / 'packed'}"]
    for program, arguments in (
        (commands.optimize, packing),
        (commands.optimize, [*packing, "output_format=index"]),
        (commands.check_dataset, [f"root={file}"]),
    ):
        assert program(arguments) != ExitCode.FINISHED
        refused = f"row 2: the path 'x/../../outside.jpg' leads out of the folder {root}"
        assert refused in capsys.readouterr().err
