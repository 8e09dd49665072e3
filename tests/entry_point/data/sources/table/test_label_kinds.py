"""What cells of labels mean, in every format alike: classes, labels, numbers, or none of these."""

import logging
import re
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from entry_point.config.data_config import TableConfig
from entry_point.config.train_config import load_train_config
from entry_point.data.errors import DataError
from entry_point.data.sources.labels import column_of, read_labels
from entry_point.data.sources.rows import Cells, Files, Labels, PathList, Places, Rows, Words

HOT = [[1, 0, 1], [0, 0, 1], [0, 1, 0], [1, 1, 0], [0, 0, 0]]
CAPTIONS = [f"a photo of a {'cat' if i % 2 else 'dog'}, number {i}" for i in range(40)]


def read(*columns: Sequence[Any], names: Sequence[str] = "abcdef", **settings: Any) -> Labels:
    """Columns of cells; a single one is called `label`, unless it has a name."""
    names = ["label"] if names == "abcdef" and len(columns) == 1 else names
    found = [column_of(name, cells) for name, cells in zip(names, columns, strict=False)]
    paths, none = PathList.of_names(f"{row}.jpg" for row in range(len(found[0]))), Words.none(0)
    places = Places([Path("T")], [0], np.arange(1, len(paths) + 1))
    rows = Rows("a table", paths, Files("", paths), Cells(found, Path("T")), none, places)
    return read_labels(rows, TableConfig(**settings))


@pytest.mark.parametrize("kind", [None, "labels"])
@pytest.mark.parametrize(
    "change",
    [
        lambda row: row,
        lambda row: [float(cell) for cell in row],
        lambda row: [bool(cell) for cell in row],
        lambda row: "|".join(map(str, row)),
        lambda row: str(row),
        lambda row: str(row).replace(",", ""),
    ],
    ids=["ints", "floats", "bools", "separated", "list as text", "array as text"],
)
def test_lists_of_zeros_and_ones_are_that_many_labels(change: Any, kind: Any) -> None:
    found = read([change(row) for row in HOT], kind=kind)
    assert found.kind == "labels" and found.names == ["label 0", "label 1", "label 2"]
    assert found.values.tolist() == HOT


def test_lists_of_zeros_and_ones_of_several_lengths_are_refused() -> None:
    with pytest.raises(DataError, match=r"row 2: the label \"\['0', '0'\]\" has another length"):
        read([[1, 0, 1], [0, 0]], kind="labels")
    for first in ([], [0.5]):
        with pytest.raises(DataError, match=r"row \d: the label is empty: add one"):
            read([first, []], kind="numbers")


def test_lists_of_numbers_of_labels_are_these_labels() -> None:
    found = read([[3, 17], [5], [], [0, 1], [1]], kind="labels")
    assert found.names == ["0", "1", "3", "5", "17"]
    assert found.values.sum(1).tolist() == [2, 1, 0, 2, 1]


def test_lists_of_fractions_are_numbers_and_no_labels() -> None:
    assert read([[0.3, 0.7], [1.0, 0.0]]).kind == "numbers"
    with pytest.raises(DataError, match=r"row 1: 'label 0' is '0.3': must be 0 or 1, or set data"):
        read([[0.3, 0.7], [1.0, 0.0]], kind="labels")


def test_lists_of_names_may_be_text() -> None:
    found = read(["['cat', 'big dog']", '["cat"]', "[]"])
    assert found.kind == "labels" and found.names == ["big dog", "cat"]
    assert found.values.tolist() == [[1, 1], [0, 1], [0, 0]]
    assert read(["[cat]", "[dog]"], kind="class").names == ["[cat]", "[dog]"]


@pytest.mark.parametrize(
    ("name", "cells", "kind", "classes"),
    [
        ("labels", ["cat", "dog"], "class", ["cat", "dog"]),
        ("labels", ["cat", ""], "labels", ["cat"]),
        ("labels", ["cat|dog", "dog"], "labels", ["cat", "dog"]),
        ("label", ["0.0", "1.0"], "class", ["0", "1"]),
        ("label", ["0.5", "1.0"], "numbers", ["label"]),
        ("label", ["Paris, France", "Lyon, France"], "class", ["Lyon, France", "Paris, France"]),
    ],
)
def test_cells_say_what_labels_are(
    name: str, cells: list[str], kind: str, classes: list[str]
) -> None:
    found = read(cells, names=[name])
    assert (found.kind, found.names) == (kind, classes)


def test_the_advice_on_names_between_commas_works(caplog: pytest.LogCaptureFixture) -> None:
    """As it is printed, and as it arrives once a shell has taken the quotes."""
    cells, caught = ["dog,round", "cat,square"] * 3, []
    for kind, names in ((None, ["labels"]), ("labels", ["tags"])):
        caplog.clear()
        assert read(cells, names=names, kind=kind).names == ["cat,square", "dog,round"]
        label = f"; if 'cat,square' in the column '{names[0]}' is several"
        assert f"{label}, set data.table.separator=','" in caplog.text
        none = "no row has several labels; data.table.separator=| separates them in a cell"
        assert (none in caplog.text) == (kind == "labels")
        caught += re.findall(r"set (\S+)", caplog.text)
    several = "row 3: the label 'dog,cat' of the column 'label' looks like several.*kind=class"
    with pytest.raises(DataError, match=several) as e:
        read(["dog", "cat", "dog,cat"])
    caught += re.findall(r"set (\S+'),", str(e.value))
    assert len(caught) == 3
    for typed in (*caught, *(text.replace("'", "") for text in caught)):
        table = load_train_config(["data=manifest", "data.root=x", typed])[0].data.table
        found = read(cells, separator=table.separator)
        assert found.kind == "labels" and found.names == ["cat", "dog", "round", "square"]


@pytest.mark.parametrize("cells", [["16 0", "16", "0"], ["rust", "scab", "scab  rust"]])
def test_names_between_blanks_are_no_classes_of_their_own(cells: list[str]) -> None:
    """As in Kaggle's Human Protein Atlas and Plant Pathology.

    The advice works as it is printed, and as it arrives once a shell has taken the quotes.
    """
    with pytest.raises(DataError, match=r"looks like several: set (?s:.*)kind=class") as e:
        read(cells)
    (advice,) = re.findall(r"set (data.+?), or", str(e.value))
    for typed in (advice, advice.replace("'", "")):
        table = load_train_config(["data=manifest", "data.root=x", typed])[0].data.table
        found = read(cells, separator=table.separator)
        assert found.kind == "labels" and len(found.names) == 2
        assert found.values.sum(1).tolist().count(2) == 1
    assert len(read(cells, kind="class").names) == 3
    assert read(["red car", "blue car", "red bus", "blue bus"]).kind == "class"


def test_a_few_words_that_make_many_labels_are_labels_themselves() -> None:
    """As in Kaggle's Planet, where none stands alone."""
    tags = ["clear", "haze", "primary", "road", "water"]
    cells = [" ".join(found) for count in (2, 3) for found in combinations(tags, count)]
    with pytest.raises(DataError, match=r"'clear haze' .*looks like several: set"):
        read(2 * cells)
    assert read(2 * cells[1:]).kind == "class"  # as names of several words may be
    assert read(cells[:19]).kind == "class"


@pytest.mark.parametrize("cells", [["3", "0,5", "1,25"], ["0,5", "1,5", "2,5"] * 20])
def test_numbers_with_decimal_commas_are_no_classes(cells: list[str]) -> None:
    row = cells.index("0,5") + 1
    with pytest.raises(DataError, match=f"row {row}: .*'0,5'.* a decimal comma: write 0.5; set"):
        read(cells)
    with pytest.raises(DataError, match=f"row {row}: .* is not a finite number: write 0.5, remove"):
        read(cells, kind="numbers")
    assert read([cell.replace(",", ".") for cell in cells]).kind == "numbers"
    assert read(cells, kind="class").kind == "class"
    assert read(cells, separator=",").kind == "labels"


@pytest.mark.parametrize("kind", [None, "numbers"])
def test_the_advice_on_a_comma_keeps_thousands(kind: Any) -> None:
    with pytest.raises(DataError, match=r"row 2: .*: write 1\.500, or 1500 if it is thousands"):
        read(["300", "1,500", "12,000"], kind=kind)


def test_whole_numbers_are_classes_in_their_order() -> None:
    found = read([11 - i % 12 for i in range(36)])
    assert found.kind == "class" and found.names == [str(number) for number in range(12)]
    assert found.values[:3].tolist() == [11, 10, 9]
    # The same as float64, and more than Python turns into a number.
    for ids in (["12345678901234567890", "12345678901234567891"], ["8" * 5000, "9" * 5000]):
        found = read(ids * 20)
        assert found.kind == "class" and found.names == ids


@pytest.mark.parametrize("kind", [None, "class", "labels"])
def test_several_columns_of_text_are_asked_to_be_one(kind: Any) -> None:
    with pytest.raises(DataError, match=r"the label 'cat' is not a finite number: .* name one"):
        read(["cat", "dog"], ["x", "y"], kind=kind)


@pytest.mark.parametrize("kind", [None, "class"])
@pytest.mark.parametrize("yes_no", [(1, 0), ("1.0", "0.0"), (True, False)])
def test_one_hot_columns_are_one_class(yes_no: tuple[Any, Any], kind: Any) -> None:
    yes, no = yes_no
    columns = [[yes if i % 3 == place else no for i in range(6)] for place in range(3)]
    found = read(*columns, names=["MEL", "NV", "BCC"], kind=kind)
    assert found.kind == "class" and found.names == ["MEL", "NV", "BCC"]
    assert found.values.tolist() == [0, 1, 2, 0, 1, 2]


def test_the_reading_of_zeros_and_ones_is_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert read([1, 0, 1], [0, 1, 1]).kind == "labels"
    assert (
        "T: 2 columns hold only 0 (or -1) and 1, any number of 1 in a row: data.table.kind=labels"
        in (caplog.text)
    )
    assert read([1, 0], [0.5, 1]).kind == "numbers"
    for kind in ("labels", "numbers"):
        assert read([1, 0], [0, 1], kind=kind).values.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("kind", [None, "labels"])
def test_columns_of_minus_one_and_one_are_labels(kind: Any) -> None:
    """As those of CelebA."""
    found = read([-1, 1, 1], [-1, 1, -1], names=["Smiling", "Male"], kind=kind)
    assert (found.kind, found.values.tolist()) == ("labels", [[0, 0], [1, 1], [1, 0]])
    with pytest.raises(DataError, match=r"'a' is '-1': must be 0 or 1, or set .*kind=numbers"):
        read([-1, 1, 0], [0, 1, 1], kind="labels")  # -1 may be what nobody knows
    assert read([-1, 1], [1, 1], kind="numbers").values.tolist() == [[-1, 1], [1, 1]]


def test_a_row_of_no_or_two_classes_is_named() -> None:
    with pytest.raises(DataError, match=r"row 2: 2 of 2 labels are 1: .*data.table.kind=labels"):
        read([1, 1], [0, 1], kind="class")
    with pytest.raises(DataError, match=r"row 2: 0 of 2 labels are 1: must be one class"):
        read([1, 0], [0, 0], kind="class")
    with pytest.raises(DataError, match=r"row 1: the label 'cat' is not a finite number.*one col"):
        read(["cat", "dog"], [0, 1], kind="class")


@pytest.mark.parametrize(
    ("cells", "different"),
    [
        (CAPTIONS, "40 of 40"),
        ([f"{i}" for i in range(40)], "40 of 40"),
        (CAPTIONS[:25], "25 of 25"),
        ([*CAPTIONS[:30], *CAPTIONS[:10]], "30 of 40"),
    ],
)
def test_a_text_of_its_own_for_nearly_each_image_is_no_class(
    cells: list[str], different: str, caplog: pytest.LogCaptureFixture
) -> None:
    line = f"T: {different} labels are different, such as"
    with pytest.raises(DataError, match=line) as raised:
        read(cells)
    assert "data.table.kind=class" in str(raised.value)
    assert "data.table.labels=[COLUMN]" in str(raised.value)
    assert {*read(cells, kind="class").names} == {*cells}
    assert read(cells, kind="labels").kind == "labels" and line in caplog.text


@pytest.mark.parametrize("cells", [["a", "b", "c"], [*CAPTIONS[:19]], [*CAPTIONS[:20]] * 2])
def test_few_images_and_classes_of_two_images_are_classes(cells: list[str]) -> None:
    assert read(cells).kind == "class"


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [
        ([5, 16777217, 16777216], "16777216 and 16777217: subtract"),
        ([1700000000 + i for i in range(40)], "1700000000 and 1700000001: subtract"),
        ([1700000000 + i / 100 for i in range(40)], "1700000000 and 1700000000.01: subtract"),
        ([i * 0.1 for i in range(4000)], ""),
        ([1 / 3, 1 / 3 + 1e-12, 0.9], ""),
        ([1e9 * i for i in range(40)], ""),
    ],
)
def test_numbers_that_float32_cannot_hold_apart_are_shown(
    numbers: list[float], shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert read(numbers, kind="numbers").kind == "numbers"
    line = "'label' has different numbers that are the same as float32"
    assert (line in caplog.text) == bool(shown) and shown in caplog.text
