"""Tables that are wrong: each gives one line that names the file, and the row if there is one."""

import json
import re
from collections.abc import Callable
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
    splits = divided(named(rows.words), rows.names, val_fraction, str(file))
    return Table(rows.names, found, splits)


def complaint(file: Path, **table: Any) -> str:
    with pytest.raises(DataError) as raised:
        read(file, **table)
    text = str(raised.value)
    assert "\n" not in text and str(file) in text and len(text) < 600
    return text.replace(str(file), "FILE").replace(str(file.parent), "FOLDER")


def csv_of(*rows: str, header: str = "path,label,split") -> str:
    return "\n".join([header, *rows]) + "\n"


CSV: dict[str, tuple[str, str]] = {
    "no path column": (csv_of("a,b,c", header="foto,label,split"), "has no column of the images'"),
    "no label column": (csv_of("a,b,c", header="path,animal,split"), "has no column of labels"),
    "no split column": (csv_of("a,b", header="path,label"), "leaves no image for val: FILE"),
    "a column twice": (csv_of("a,b,c,d", header="path,label,label,split"), "two columns 'label'"),
    "10 MB cell": (csv_of(f"a.jpg,{'x' * 10_000_000},train"), "line 2: field larger"),
    "no label": (csv_of("a.jpg,cat,train", "b.jpg,,val"), "row 2: the label is empty"),
    "NaN label": (csv_of("a.jpg,cat,train", "b.jpg,NaN,val"), "row 2: the label is NaN"),
    "NaN number": (
        csv_of("a,1.5,train", "b,nan,val"),
        "row 2: the label 'nan' is not a finite",
    ),
    "infinite": (csv_of("a,1.5,train", "b,1e60,val"), "row 2: the label '1e60' is not a finite"),
    "mixed": (csv_of("a,1.5,train", "b,cat,val"), "row 2: the label 'cat' is not a finite number"),
    "no path": (csv_of(",cat,train"), "row 1: the path '' is empty"),
    "parent": (csv_of("../a.jpg,cat,train"), "row 1: the path '../a.jpg' leads out of the folder"),
    "hidden parent": (
        csv_of("b.jpg,cat,train", "x/../../a.jpg,cat,train"),
        "row 2: the path 'x/",
    ),
    "absolute": (csv_of("/etc/passwd,cat,train"), "row 1: the path '/etc/passwd' leads out of"),
    "sibling": (
        csv_of("{folder}2/a.jpg,cat,train"),
        "leads out of the folder FOLDER: set data",
    ),
    "the folder itself": (csv_of("x/..,cat,train"), "row 1: the path 'x/..' leads out"),
    "URI": (
        csv_of("s3://bucket/a.jpg,cat,train"),
        "is not a file: set data.table.prefix to the part",
    ),
    "NUL": (csv_of("a\0b.jpg,cat,train"), "or holds a NUL character"),
    "other label twice": (
        csv_of("a.jpg,cat,train", "b.jpg,dog,val", "./a.jpg,dog,train"),
        "row 3: 'a.jpg' is in row 1, too: keep one of them",
    ),
    "in both splits": (
        csv_of("a.jpg,cat,train", "a.jpg,cat,val"),
        "row 2: 'a.jpg' is in row 1, too: keep one of them; several labels",
    ),
    "control characters": (csv_of("a.jpg,\x1b[2J,train"), "row 1: the label '\\\\x1b[2J'"),
}


@pytest.mark.parametrize("name", CSV)
def test_a_wrong_csv_is_one_line(tmp_path: Path, name: str) -> None:
    content, expected = CSV[name]
    file = tmp_path / "labels.csv"
    file.write_text(content.replace("{folder}", str(tmp_path)))
    assert expected in complaint(file)


OF_CELLS = "`bool | int | float | str"
JSON: dict[str, tuple[str, str]] = {
    "no object": ('[1, 2]\n{"path": "a"}\n', "row 1: Expected `object`, got `array`: write a JSON"),
    "no JSON": (
        '{"path": "a", "label": "x"}\n{"path":\n',
        "row 2: Input data was truncated: write a JSON object per line",
    ),
    "two objects": (
        '{"path": "a", "label": 1}\n{"path": "b", "label": 1},{"path": "c"}\n',
        "row 2: JSON is malformed: trailing",
    ),
    "nesting": ('{"path": "a", "other": ' + "[" * 100_000, "row 1: maximum recursion"),
    "a missing key": ('{"path": "a", "label": "x"}\n{"path": "b"}\n', "row 2: has no 'label'"),
    "null": ('{"path": "a", "label": null}\n', "row 1: has no 'label'"),
    "NaN": ('{"path": "a", "label": NaN}\n', "row 1: JSON is malformed"),
    "an object": (
        '{"path": "a", "label": {"x": 1}}\n',
        f"row 1: Expected {OF_CELLS} | array | null`, got `object` - at `$.label`: write",
    ),
    "nested lists": (
        '{"path": "a", "label": [["x"]]}\n',
        f"row 1: Expected {OF_CELLS}`, got `array` - at `$.label[0]`: write",
    ),
    "a long line": (
        '{"path": "' + "x" * 10_000_000 + '", "label": 1}',
        "leaves no image for ",
    ),
    "lengths": (
        '{"path": "a", "label": [0.5]}\n{"path": "b", "label": [0.5, 1]}\n',
        "row 2: the label \"['0.5', '1']\" has another length",
    ),
    "blank": ("\n\n", "FILE is empty"),
    "401 digits": (
        f'{{"path": "a", "label": [1.5]}}\n{{"path": "b", "label": [{10**400}]}}\n',
        "row 2: the label '1000",
    ),
}


@pytest.mark.parametrize("name", JSON)
def test_a_wrong_json_lines_file_is_one_line(tmp_path: Path, name: str) -> None:
    content, expected = JSON[name]
    (tmp_path / "labels.jsonl").write_text(content)
    assert expected in complaint(tmp_path / "labels.jsonl", val_fraction=0.5)


def parquet(file: Path, **columns: Any) -> None:
    pq.write_table(pa.table(columns), file)


def cut(file: Path, _size: int = 0) -> None:
    parquet(file, path=["a.jpg"] * 1000, label=["x", "y"] * 500)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


PARQUET: dict[str, tuple[Callable[[Path], Any], str]] = {
    "truncated": (cut, "FILE is damaged ("),
    "no Parquet": (lambda file: file.write_bytes(b"PAR1" + b"x" * 100), "FILE is damaged ("),
    "empty": (lambda file: file.touch(), "FILE is damaged ("),
    "no rows": (lambda file: parquet(file, path=pa.array([], "string"), label=[]), "holds no rows"),
    "null label": (lambda file: parquet(file, path=["a", "b"], label=["x", None]), "row 2: has no"),
    "NaN": (
        lambda file: parquet(file, path=["a", "b"], label=[0.5, float("nan")]),
        "row 2: the lab",
    ),
    "null path": (
        lambda file: parquet(file, path=["a", None], label=["x", "y"]),
        "row 2: the path",
    ),
    "bytes": (
        lambda file: parquet(file, path=[b"a", b"b"], label=["x", "y"]),
        "the column 'path' is of type Binary",
    ),
    "structs": (
        lambda file: parquet(file, path=["a"], label=[{"x": 1}]),
        "the column 'label' is of type Struct",
    ),
}


@pytest.mark.parametrize("name", PARQUET)
def test_a_wrong_parquet_file_is_one_line(
    tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    make, expected = PARQUET[name]
    make(tmp_path / "labels.parquet")
    assert expected in complaint(tmp_path / "labels.parquet", val_fraction=0.5)
    assert not capfd.readouterr().err


def test_rows_of_other_splits_need_no_labels(tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    file.write_text(GOOD + "e.jpg,,extra\n")
    table = read(file)
    assert table.labels.names == ["cat", "dog"]
    assert {split: rows.tolist() for split, rows in table.splits.rows.items()} == {
        "train": [0, 1],
        "val": [2, 3],
    }
    assert table.splits.unused == "; not used: 1 of split 'extra'"


def test_rows_of_train_are_divided_if_no_row_is_for_val(tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    file.write_text(GOOD.replace(",val", ",test"))
    assert [*read(file).splits.rows] == ["train", "test"]
    rows = [
        f"{i}.jpg,{'cat' if i % 2 else 'dog'},{'train' if i % 3 else 'test'}" for i in range(90)
    ]
    file.write_text("\n".join(["path,label,split", *rows]))
    table = read(file, val_fraction=0.5)
    assert len(table.splits.rows["train"]) + len(table.splits.rows["val"]) == 60
    assert table.splits.rows["test"].tolist() == list(range(0, 90, 3))
    assert 15 < len(table.splits.rows["val"]) < 45
    only_test = file.read_text().replace(",train", ",test")
    file.write_text(only_test)
    assert [*read(file, val_fraction=0.5).splits.rows] == ["test"]


def test_other_files_are_refused(tmp_path: Path) -> None:
    assert "no such table" in complaint(tmp_path / "gone.csv")
    (tmp_path / "labels.xlsx").touch()
    assert "must end in one of .csv, .tsv, .parquet" in complaint(tmp_path / "labels.xlsx")
    (tmp_path / "folder.csv").mkdir()
    assert "must hold one table, but holds none" in complaint(tmp_path / "folder.csv")


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"path": "pth"}, "FILE has no column 'pth'; did you mean path?; it has 'path', 'label'"),
        ({"labels": ["label", "x"]}, "FILE has no column 'x'"),
        ({"labels": ["path"]}, "the column 'path' cannot hold two things"),
        ({"kind": "numbers"}, "row 1: the label 'cat' is not a finite number"),
        (
            {"val_fraction": 0.1},
            "data.val_fraction=0.1: FILE has images for val, by the column 'split'; remove one",
        ),
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


def test_a_quoted_path_may_hold_commas_quotes_and_newlines(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(GOOD.replace("a.jpg", '"a, ""b""\nc.jpg"'))
    assert read(tmp_path / "t.csv").paths[0] == 'a, "b"\nc.jpg'


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
