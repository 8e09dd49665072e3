"""Columns are read as Python's csv and json read them, or one line names what is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from entry_point.data.errors import DataError
from entry_point.data.sources.table_files import open_table, read_columns


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


JSON = {
    b'\xef\xbb\xbf{"path": 1, "label": true}\n\n \r\n{"label": -0.5}': [
        ("1", "true"),
        (None, "-0.5"),
    ],
    b'\t{"path": 1 ,\r"label": 18446744073709551617}\r': [("1", "18446744073709551617")],
    b'{"p\\u0061th": "\\/", "label": "x", "other": {"any": [1, {}]}}': [("/", "x")],
    b'{"path": "a", "label": "x"}\n{"path": "b", "label": ["y", 2]}': [
        *(("a", ["x"]), ("b", ["y", "2"]))
    ],
    b'{"path": "a", "label": 1, "label-metadata": {"class-name": "x"}}': [("a", "x")],
    b'{"path": "a", "label": 1, "label-metadata": {"class-map": {"1": "x"}}}': [("a", ["x"])],
    b'{"path": "a", "label": true, "label-metadata": "of a person"}': [("a", "true")],
    b'{"path": "a", "label": 2, "label-metadata": {"confidence": 0.5}}': [("a", "2")],
    b'{"path": "\xff", "label": 2}': "FILE, row 1: ",
    b'{"path": 1, "label": NaN}': "FILE, row 1: ",
}


@pytest.mark.parametrize("text", JSON, ids=str)
def test_json_lines_are_read_as_the_text_of_a_csv_or_refused_in_one_line(
    tmp_path: Path, text: bytes
) -> None:
    file, expected = tmp_path / "labels.jsonl", JSON[text]
    file.write_bytes(text)
    found = rows(file, ["path", "label"])
    assert expected in found if isinstance(expected, str) else found == expected


def test_a_long_cell_is_read(tmp_path: Path) -> None:
    """Exports for detection hold polygons, or images in base64, in a cell."""
    file = tmp_path / "labels.csv"
    polygon = "1,2;" * 1_000_000
    file.write_text(f'path,polygon,label\na.jpg,"{polygon}",cat\n')
    assert rows(file) == [("a.jpg", polygon, "cat")]
    (tmp_path / "labels.jsonl").write_text(json.dumps({"path": "a.jpg", "polygon": polygon}))
    assert rows(tmp_path / "labels.jsonl", ["polygon"]) == [(polygon,)]
