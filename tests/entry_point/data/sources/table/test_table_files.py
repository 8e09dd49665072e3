"""Columns are read as Python's csv and json read them, or the row that they refuse is named."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from entry_point.data.errors import DataError
from entry_point.data.sources.table_files import column_names, read_columns


def rows(file: Path, columns: list[str] | None = None) -> list[tuple[Any, ...]] | str:
    """All rows, or the error."""
    try:
        names = column_names(file)
        return read_columns(file, columns or names).rows()
    except DataError as error:
        return str(error)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"x,y\n,;,", "row 1: has 3 cells, but the header has 2"),
        (b'x\n"\n""', "unexpected end of data"),
        (b"\xef\xbb\xbfx,y\r\n1,2\r\n\r\n3,4", [("1", "2"), ("3", "4")]),
        (b'x;y\n"a;""b""\n";2\n', [('a;"b"\n', "2")]),
        (b"x\n\0\n", [("\0",)]),
    ],
)
def test_a_csv_is_read_as_pythons_csv_reads_it_or_the_row_is_named(
    tmp_path: Path, text: bytes, expected: list[tuple[str, ...]] | str
) -> None:
    file = tmp_path / "labels.csv"
    file.write_bytes(text)
    found = rows(file)
    assert expected in found if isinstance(expected, str) else found == expected


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
    if not isinstance(names := metadata.get("class-map"), dict):
        return label
    return [names.get(str(each), each) for each in (label if isinstance(label, list) else [label])]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(JSON_ROWS.flatmap(written) | st.sampled_from(ODD), min_size=1, max_size=5))
@example([b'{"path": "a", "label": 1, "label-metadata": {"class-map": {"1": "x"}}}'])
@example([b'{"path": null, "label": null}', b'{"path": "a", "label": ["x", "y"]}'])
def test_any_json_lines_are_read_as_json_reads_them_or_refused(
    tmp_path: Path, lines: list[bytes]
) -> None:
    file = tmp_path / "labels.jsonl"
    file.write_bytes(b"\n".join(lines))
    found = rows(file, ["path", "label"])
    if isinstance(found, str):
        assert str(file) in found and "\n" not in found
        return
    expected = [json.loads(line) for line in lines if line.strip()]
    columns = zip(*((text(row.get("path")), text(named(row))) for row in expected), strict=True)
    assert found == list(zip(*map(alike, columns), strict=True))


@pytest.mark.parametrize("bad", [b'{"path": "a", "label": "\xff"}', b'{"path": {}}', b"[1]"])
def test_the_row_is_named_however_far_down(tmp_path: Path, bad: bytes) -> None:
    file = tmp_path / "labels.jsonl"
    file.write_bytes(b'{"path": "a", "label": "b"}\n' * 10_000 + bad)
    found = rows(file, ["path", "label"])
    assert f"{file}, row 10001: " in found


def test_a_csv_row_is_named_however_far_down(tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    for bad in ("b.jpg", "b.jpg,cat,fat"):
        file.write_text("path,label\n" + "a.jpg,cat\n" * 10_000 + bad + "\na.jpg,cat\n")
        assert f"{file}, row 10001: has {len(bad.split(','))} cells" in rows(file)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b'"b,cat', "row 10001 (line 10003): unexpected end of data"),
        (b'a,"b"c', "row 10001 (line 10002): ',' expected after '\"'"),
        (b"a\xff,b", "row 10001: is not UTF-8"),
    ],
)
def test_what_is_no_csv_is_named_by_its_row_however_far_down(
    tmp_path: Path, bad: bytes, reason: str
) -> None:
    file = tmp_path / "labels.csv"
    file.write_bytes(b"path,label\n" + b"a.jpg,cat\n" * 10_000 + bad + b"\na.jpg,cat\n")
    assert f"{file}, {reason}" in rows(file)


def test_rows_count_without_blank_lines_and_by_quotes_of_several_lines(tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    file.write_bytes(b'path,label\n\n\n"a\n\n.jpg",cat\nb.jpg,\xff\n')
    assert f"{file}, row 2: is not UTF-8" in rows(file)
    file.write_bytes(b"path,label\xff\na.jpg,cat\n")
    assert f"{file}, header: is not UTF-8" in rows(file)
    file.write_bytes(b'path,"label\na.jpg,cat\n')
    assert f"{file}, header (line 2): unexpected end of data" in rows(file)


@pytest.mark.parametrize("size", [131_073, 4_000_000])
def test_a_long_cell_is_read(tmp_path: Path, size: int) -> None:
    """Exports for detection hold polygons, or images in base64, in a cell."""
    file = tmp_path / "labels.csv"
    polygon = "1,2;" * (size // 4)
    file.write_text(f'path,polygon,label\na.jpg,"{polygon}",cat\n')
    assert rows(file, ["path", "label"]) == [("a.jpg", "cat")]
    assert rows(file, ["polygon"]) == [(polygon,)]
    (tmp_path / "labels.jsonl").write_text(json.dumps({"path": "a.jpg", "polygon": polygon}))
    assert rows(tmp_path / "labels.jsonl", ["polygon"]) == [(polygon,)]


def test_a_quote_that_is_not_closed_ends_reading_at_a_cell_of_8_mib(tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    file.write_text('path,label\n"a.jpg,cat\n' + "b.jpg,dog\n" * 1_000_000)
    found = rows(file)
    assert f"{file}, row 1 (line " in found and "field larger than field limit (8388608)" in found


def test_the_time_to_read_a_header_grows_with_its_length(tmp_path: Path) -> None:
    """A header that is searched for each column would take minutes, and end the test."""
    names = [f"column {i}" for i in range(100_000)]
    file = tmp_path / "labels.csv"
    file.write_text(f"{','.join(names)}\n{','.join(map(str, range(len(names))))}\n")
    assert column_names(file) == names
    assert read_columns(file, names[::2]).row(0)[-1] == "99998"


def test_training_and_packing_without_a_table_do_not_import_polars() -> None:
    program = (
        "import sys\n"
        "import entry_point.data.loader, entry_point.optimize, entry_point.check_dataset\n"
        "import entry_point.training.trainer\n"
        "assert 'polars' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
