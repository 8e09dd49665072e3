"""JSON lines are read as Python's json reads them, line by line."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from entry_point.data.errors import DataError
from entry_point.data.sources.table.json_lines import JsonLinesFile

COLUMNS = ["path", "label"]
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
ROWS = st.fixed_dictionaries(
    {"path": VALUES, "label": VALUES},
    optional={"label-metadata": METADATA | VALUES, "other": VALUES},
)
# What json.dumps never writes.
ODD = [
    b'{"path": 1, "label": 2, "path": 3}',
    b'{"path": 1, "label": 2}{"path": 3, "label": 4}',
    b'{"path": 1, "label": 2, "other": "\xff"}',
    b'{"path": "\xff", "label": 2}',
    b'{"path": "\xed\xa0\x80", "label": 2, "other": "\xed\xa0\x80"}',
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


def plain(lines: list[bytes]) -> list[list[Any]] | None:
    """The columns, or None where a line has to be refused."""
    try:
        rows = [json.loads(line) for line in lines if line.strip()]
        named = bool(rows) and "label-metadata" in rows[0]
        cells = [[row["path"], name(row) if named else row["label"]] for row in rows]
    except (ValueError, KeyError, TypeError):
        return None
    return [list(column) for column in zip(*cells, strict=True)] or None


def name(row: dict[str, Any]) -> Any:
    label, metadata = row["label"], row.get("label-metadata")
    if not isinstance(metadata, dict):
        return label
    if metadata.get("class-name") is not None:
        return metadata["class-name"]
    if not isinstance(names := metadata.get("class-map"), dict):
        return label
    return [names.get(str(each), each) for each in (label if isinstance(label, list) else [label])]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ROWS.flatmap(written) | st.sampled_from(ODD), min_size=1, max_size=5))
@example([b'{"path": "a", "label": 1, "label-metadata": {"class-map": {"1": "x"}}}'])
def test_any_lines_are_read_or_refused_as_by_json(tmp_path: Path, lines: list[bytes]) -> None:
    file = tmp_path / "labels.jsonl"
    file.write_bytes(b"\n".join(lines))
    try:
        (found,) = JsonLinesFile(file).chunks(COLUMNS)
    except DataError as error:
        assert plain(lines) is None, error
    else:
        assert repr(list(map(list, found))) == repr(plain(lines))  # NaN is not equal to itself


def test_metadata_that_is_asked_for_is_a_column(tmp_path: Path) -> None:
    file = tmp_path / "labels.jsonl"
    file.write_text('{"path": "a", "label": 1, "label-metadata": {"class-name": "x"}}\n')
    (found,) = JsonLinesFile(file).chunks(["label", "label-metadata"])
    assert found == [[1], [{"class-name": "x"}]]


@pytest.mark.parametrize("bad", [b'{"path": "a", "label": "\xff"}', b'{"path": "a"}', b"[1]"])
def test_the_row_is_named_however_far_down(tmp_path: Path, bad: bytes) -> None:
    file = tmp_path / "labels.jsonl"
    file.write_bytes(b'{"path": "a", "label": "b"}\n' * 10_000 + bad)
    with pytest.raises(DataError, match=r"labels\.jsonl, row 10001: "):
        list(JsonLinesFile(file).chunks(COLUMNS))
