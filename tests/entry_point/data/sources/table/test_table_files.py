"""Columns are read as Python's csv and json read them, or one line names what is wrong."""

import ast
import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from entry_point.data.errors import DataError
from entry_point.data.sources.table_files import open_table, read_columns
from tests.imports import module_of, modules


def rows(file: Path, columns: list[str] | None = None) -> list[tuple[Any, ...]] | str:
    """All rows, or the error."""
    try:
        table = open_table(file)
        return read_columns(table, columns or table.names).rows()
    except DataError as error:
        assert "\n" not in str(error) and str(file) in str(error)
        return str(error).replace(str(file), "FILE")


CSV = {
    b"\xef\xbb\xbfx,y\r\n1,2\r\n\r\n3,4": [("1", "2"), ("3", "4")],
    b'\n\nx;y\n"a;""b""\n";2\n': [('a;"b"\n', "2")],
    b"x\ty\r1\t\r": [("1", "")],
    b'x,y\n5" disk,NA\n,\n': [('5" disk', "NA"), ("", "")],
    b"x\n\0\n": [("\0",)],
    b"x,y\n,;,": "FILE, line 2: has 3 cells, but the first line has 2",
    b"x,y\n1,2\n\n\n1\n3,4": "FILE, line 5: has 1 cells, but the first line has 2",
    b"a.jpg,cat\nb.jpg,dog,3\n": "FILE, line 2: has 3 cells, but the first line has 2",
    b'x,y\n"\n1,2\n': "FILE, line 3: unexpected end of data",
    b'x,"y\n1,2\n': "FILE, line 2: unexpected end of data",
    b'x,y\n1,"2\n3,4\n"5",6\n': "FILE, line 4: ',' expected after '\"'",
    b"x,y\n1,2\nK\xe4se,\n": "FILE is not UTF-8, as in 'x,y\\\\n1,2\\\\nK\xe4': save it as UTF-8",
    b"x\xff,y\n1,2\n": "FILE is not UTF-8, as in 'x\xff': save",
    "x,y\n1,2\n".encode("utf-16"): "FILE is not UTF-8",
    b"": "FILE is empty",
    b"\n\n\n": "FILE is empty",
    b"x,y\n": "FILE holds no rows, only a header",
}


@pytest.mark.parametrize("text", CSV, ids=str)
def test_a_csv_is_read_or_refused_in_one_line(tmp_path: Path, text: bytes) -> None:
    file, expected = tmp_path / "labels.csv", CSV[text]
    file.write_bytes(text)
    found = rows(file)
    assert expected in found if isinstance(expected, str) else found == expected


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(alphabet=',"\n\r a1;\t', max_size=40))
def test_no_cell_of_a_csv_is_dropped_or_shifted(tmp_path: Path, text: str) -> None:
    file = tmp_path / "labels.csv"
    file.write_text(f"x,y\n{text}", newline="")
    found = rows(file)
    if not isinstance(found, str):
        lines = filter(None, csv.reader(io.StringIO(text, newline=""), strict=True))
        assert found == [*map(tuple, lines)] and all(len(row) == 2 for row in found)


WORDS = ["path", "label", "label-metadata", "class-name", "class-map", "0", "a", "é", "\ud800"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(WORDS),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=3)
    ),
    max_leaves=6,
)
METADATA = st.fixed_dictionaries(
    {}, optional={"class-name": VALUES, "class-map": VALUES, "confidence": VALUES}
)
JSON_ROWS = st.fixed_dictionaries(
    {"path": VALUES, "label": VALUES},
    optional={"label-metadata": METADATA | VALUES, "other": VALUES},
)
# What json.dumps never writes.
ODD = [
    b'{"path": 1, "label": 2, "path": 3}',
    b'{"path": 1, "label": 2}{"path": 3, "label": 4}',
    b'{"path": "\xff", "label": 2}',
    b'{"path": 1, "label": 018}',
    b'{"path": -0, "label": -0.0}',
    b'{"path": 1e999, "label": 18446744073709551617}',
    b'{"p\\u0061th": "\\/", "label": NaN, "other": Infinity}',
    b'\t{"path": 1 ,\r"label": 2}\r',
    b'{"path": 1, "label": 2,}',
    b'{"path": 1,',
    b'"label": 2}',
    b"[]",
    b" \r",
]


def written(row: Any) -> st.SearchStrategy[bytes]:
    return st.booleans().map(
        lambda ascii: json.dumps(row, ensure_ascii=ascii).encode(errors="surrogatepass")
    )


def text(cell: Any) -> Any:
    """A cell as the text that it would be in a CSV."""
    if isinstance(cell, list):
        return list(map(text, cell))
    return cell if cell is None else str(cell).lower() if isinstance(cell, bool) else str(cell)


def alike(cells: Sequence[Any]) -> list[Any]:
    """One list makes lists of all."""
    if not any(isinstance(cell, list) for cell in cells):
        return list(cells)
    return [[cell] if isinstance(cell, str) else cell for cell in cells]


def named(row: dict[str, Any]) -> Any:
    label, metadata = row.get("label"), row.get("label-metadata")
    if not isinstance(metadata, dict):
        return label
    if metadata.get("class-name") is not None:
        return metadata["class-name"]
    if not isinstance(names := metadata.get("class-map"), dict) or label is None:
        return label
    return [names.get(str(each), each) for each in (label if isinstance(label, list) else [label])]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(JSON_ROWS.flatmap(written) | st.sampled_from(ODD), min_size=1, max_size=5))
@example([b'{"path": "a", "label": 1, "label-metadata": {"class-map": {"1": "x"}}}'])
@example([b'{"path": "a", "label": true, "label-metadata": "of a person"}'])
@example([b'{"path": null, "label": null}', b'{"path": "a", "label": ["x", "y"]}'])
def test_any_json_lines_are_read_as_json_reads_them_or_refused(
    tmp_path: Path, lines: list[bytes]
) -> None:
    file = tmp_path / "labels.jsonl"
    file.write_bytes(b"\n".join(lines))
    found = rows(file, ["path", "label"])
    if isinstance(found, str):
        return
    expected = [json.loads(line) for line in lines if line.strip()]
    columns = zip(*((text(row.get("path")), text(named(row))) for row in expected), strict=True)
    assert found == list(zip(*map(alike, columns), strict=True))


def test_a_long_cell_is_read(tmp_path: Path) -> None:
    """Exports for detection hold polygons, or images in base64, in a cell."""
    file = tmp_path / "labels.csv"
    polygon = "1,2;" * 1_000_000
    file.write_text(f'path,polygon,label\na.jpg,"{polygon}",cat\n')
    assert rows(file) == [("a.jpg", polygon, "cat")]
    (tmp_path / "labels.jsonl").write_text(json.dumps({"path": "a.jpg", "polygon": polygon}))
    assert rows(tmp_path / "labels.jsonl", ["polygon"]) == [(polygon,)]


def loaded_with(*names: str) -> set[str]:
    """The packages that are imported with these modules; functions import others when called."""
    known, found, waiting = modules(), set[str](), [*names]
    while waiting:
        if (name := waiting.pop()) not in found:
            found.add(name)
            module = module_of(name, known)
            waiting += at_start(ast.parse(known[module].read_text()).body) if module else ()
    return {name.partition(".")[0] for name in found}


def at_start(statements: Iterable[ast.stmt]) -> Iterator[str]:
    for statement in statements:
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            yield from (f"{statement.module}.{alias.name}" for alias in statement.names)
        elif isinstance(statement, (ast.Try, ast.If)) and "TYPE_CH" not in ast.dump(statement):
            yield from at_start(statement.body)


def test_nothing_imports_polars_without_a_table_and_packing_no_torchvision() -> None:
    programs = ("data.loader", "optimize", "check_dataset")
    assert "torchvision" not in loaded_with(*(f"entry_point.{name}" for name in programs))
    assert "polars" not in loaded_with("entry_point.training.trainer")
    assert "polars" in loaded_with("entry_point.data.sources.table")
