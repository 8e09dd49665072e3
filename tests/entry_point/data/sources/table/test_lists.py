"""Lists of images and labels without a header, and the columns that they are taken for."""

import logging
from pathlib import Path
from typing import Any

import pytest

from entry_point.config.data_config import DataConfig, TableConfig
from entry_point.data.errors import DataError
from entry_point.data.sources.dataset import Dataset, open_dataset
from entry_point.data.sources.splits import WHOLE
from tests.entry_point.data.sources.small_datasets import counts, keys, write

FILES = [f"{name}/{number}.jpg" for name in ("my cats", "dog") for number in range(10)]


def listed(file: Path, line: str, header: str = "") -> Path:
    """A list of images, which are there. `line` is the form of each."""
    write(file.parent, *FILES)
    lines = [header] if header else []
    for i, path in enumerate(FILES):
        split, name = "val" if i % 5 == 0 else "train", "cat" if "cat" in path else "dog"
        words = {"path": path, "id": path[:-4], "name": name, "number": int(name == "dog")}
        lines.append(line.format(**words, i=i, odd=i % 2, split=split))
    file.write_text("\n".join(lines))
    return file


def opened(file: Path, *, labeled: bool = True, **table: Any) -> Dataset:
    data = DataConfig(root=str(file), table=TableConfig(**table))
    return open_dataset(data, file, for_training=False, labeled=labeled)


READ = {
    "blank": (".txt", "{path} {name}"),
    "aligned": (".txt", "{path:20}  {name}"),
    "label first": (".txt", "{number} {path}"),
    "tab": (".txt", "{path}\t{name}"),
    "comma": (".txt", "{path},{name}"),
    "csv": (".csv", "{path},{name}"),
    "quoted": (".csv", '"{path}","{name}"'),
    "semicolon": (".csv", "{path};{name}"),
    "csv of tabs": (".csv", "{path}\t{name}"),
    "tsv": (".tsv", "{name}\t{path}"),
    "lst": (".lst", "{i}\t{number}.000000\t{path}"),
    "lst of blanks": (".lst", "{i} {number} {path}"),
}


@pytest.mark.parametrize("name", READ)
def test_a_list_without_a_header_is_read_to_the_last_row(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    suffix, line = READ[name]
    source = opened(listed(tmp_path / f"list{suffix}", line)).source(WHOLE)
    assert keys(source) == [f"{tmp_path}/{file}" for file in FILES]
    assert source.classes in (["cat", "dog"], ["0", "1"])
    assert source.labels.tolist() == [0] * 10 + [1] * 10
    assert "a table without a header (columns " in caplog.text


def test_a_split_in_a_list_is_used_unless_it_is_the_only_column(tmp_path: Path) -> None:
    dataset = opened(listed(tmp_path / "list.csv", "{path},{name},{split}"))
    assert counts(dataset) == {"train": 16, "val": 4}
    source = opened(listed(tmp_path / "list.txt", "{path} {split}")).source(WHOLE)
    assert source.classes == ["train", "val"] and len(source) == 20


def test_columns_of_which_none_is_surely_the_label_are_named_and_can_be_chosen(
    tmp_path: Path,
) -> None:
    file = listed(tmp_path / "list.txt", "{path} 1 {odd} 0")
    with pytest.raises(DataError) as raised:
        opened(file)
    text = str(raised.value)
    assert "set data.table.labels=[COLUMN]" in text and text.endswith(
        "it has no header; its columns are taken as 'path', 'column2', 'column3', 'column4'"
    )
    source = opened(file, labels=["column2", "column3", "column4"], kind="labels").source(WHOLE)
    assert len(source) == 20 and source.labels[:2].tolist() == [[1, 0, 0], [1, 1, 0]]


def test_a_list_of_paths_is_predicted_and_has_no_labels(tmp_path: Path) -> None:
    file = listed(tmp_path / "list.txt", "{path}")
    assert len(opened(file, labeled=False).source(WHOLE)) == 20
    with pytest.raises(DataError, match=r"no column of labels.*its columns are taken as 'path'"):
        opened(file)


@pytest.mark.parametrize(("first", "line"), [("0.jpg", "{path}"), ("0", "{id}")])
def test_a_row_that_is_named_as_a_column_is_not_lost(tmp_path: Path, first: str, line: str) -> None:
    file = listed(tmp_path / "list.csv", f"{line},{{name}}")
    with pytest.raises(DataError, match=r"row, not a header; add a first line .* path,label"):
        opened(file, path=f"my cats/{first}", labels=["cat"])
    as_advised = listed(file, f"{line},{{name}}", "path,label")
    assert len(opened(as_advised).source(WHOLE)) == 20


def test_ids_without_a_header_get_the_hint(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"if its first line is a row, add a line with such names"):
        opened(listed(tmp_path / "list.csv", "{id},{name}"))


def test_rows_of_a_list_count_from_its_first_line(tmp_path: Path) -> None:
    file = tmp_path / "list.csv"
    file.write_bytes(b"\xef\xbb\xbfa.jpg,cat\n../b.jpg,dog\n")
    with pytest.raises(DataError, match=r"row 2: the path '../b.jpg' leads out"):
        opened(file)


def test_a_list_may_have_a_header(tmp_path: Path) -> None:
    file = listed(tmp_path / "list.txt", "{path} {name}", "path label")
    assert len(opened(file).source(WHOLE)) == 20
