"""Columns are read as Python's csv and json read them, or the row that they refuse is named."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from entry_point.data.errors import DataError
from entry_point.data.sources import table_files
from entry_point.data.sources.table_files import TableFile

CELLS = st.text('ab,;\t"\n é\0', max_size=4)
PLAIN = st.text("ab é", max_size=4)
QUOTED = st.text('ab, "\n', max_size=4).map(lambda text: '"{}"'.format(text.replace('"', '""')))


@st.composite
def tables(draw: st.DrawFn) -> bytes:
    """Mostly good lines, in any of the line ends, and now and then anything."""
    width, end = draw(st.integers(1, 3)), draw(st.sampled_from(["\n", "\r\n"]))
    row = st.lists(PLAIN | QUOTED, min_size=width, max_size=width).map(",".join)
    odd = st.lists(CELLS, max_size=4).map(",".join)
    lines = draw(st.lists(st.one_of(row, row, row, row, odd), max_size=9))
    text = end.join([",".join("xyz"[:width]), *lines]) + draw(st.sampled_from(["", end]))
    return draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + text.encode()


def rows(file: Path, columns: list[str] | None = None) -> list[tuple[Any, ...]] | str:
    """All rows, or the error."""
    try:
        table = TableFile(file)
        return table.read(columns or table.names).rows()
    except DataError as error:
        return str(error)


@settings(
    deadline=None, max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(content=tables())
@example(b"x,y\n,;,")
@example(b'x\n"\n""')
def test_any_csv_gives_the_rows_and_the_error_that_pythons_csv_gives(
    tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "labels.csv"
    file.write_bytes(content)
    found = rows(file)
    with pytest.MonkeyPatch.context() as patch:
        formats = {**table_files._FORMATS}
        formats[".csv"] = (formats[".csv"][0], table_files._read_csv_by_row)
        patch.setattr(table_files, "_FORMATS", formats)
        assert found == rows(file)


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
    assert found == [(text(row.get("path")), text(named(row))) for row in expected]


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


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("as_category", [False, True])
def test_a_cell_that_a_parquet_file_repeats_is_refused_before_it_fills_the_memory(
    tmp_path: Path, as_category: bool, as_list: bool
) -> None:
    """72 kB stand for 4 GB."""
    file, rows = tmp_path / "labels.parquet", 4096
    cells = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), ["x" * (1 << 20)])
    if as_list:
        cells = pa.ListArray.from_arrays(pa.array(range(rows + 1), pa.int32()), cells)
    paths = [f"{row}.jpg" for row in range(rows)]
    # Without the schema, the column is plain text.
    pq.write_table(pa.table({"path": paths, "label": cells}), file, store_schema=as_category)
    assert file.stat().st_size < 200_000
    program = (
        "import resource, sys, pathlib\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (2 << 30, 2 << 30))\n"
        "from entry_point.data.sources.table_files import TableFile\n"
        "TableFile(pathlib.Path(sys.argv[1])).read(['path', 'label'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program, file], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].endswith("the column 'label' is larger than 1 GB")


def test_training_and_packing_without_a_table_do_not_import_polars() -> None:
    program = (
        "import sys\n"
        "import entry_point.data.loader, entry_point.optimize, entry_point.check_dataset\n"
        "import entry_point.training.trainer\n"
        "assert 'polars' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
