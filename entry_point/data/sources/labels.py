"""Turns the cells of label columns into classes, labels or numbers, for all readers."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from entry_point.config.data_config import TableConfig
from entry_point.data.errors import DataError
from entry_point.data.sources.dataset_description import CLASS_NAME, Kind, is_class_name
from entry_point.data.sources.rows import Cells, Labels, Rows
from entry_point.job.text import counted, printable

log = logging.getLogger(__name__)

MUST_BE = "must be text, a number, or a list of these"
_LONGEST_QUOTE = 80
_FEWEST_TO_TELL = 20
"""Fewest labels in a dataset to tell classes from captions."""
_LABELS_PER_WORD = 4
"""Blanks separate several names from this many labels per distinct word on; classes have fewer."""
_SMALL_GAP = 1e-6
"""Difference between numbers, as a share of their range, that no model can learn."""
_BRACKETS = r"(?s)^\s*\[.*\]\s*$"
_ITEM = r"""'[^']*'|"[^"]*"|[^\s,'"\[\]]+"""
_WHOLE = r"^[+-]?\d{1,309}$"
"""Whole numbers within float64's range."""
_WHOLE_FLOAT = r"^[+-]?\d{1,15}(\.0+)?$"
"""Whole numbers, also as programs write them in a column with gaps."""
_DECIMAL_COMMA = r"^[+-]?\d+,\d+$"
_THOUSANDS = r"^[+-]?[1-9]\d{0,2},\d{3}$"


def column_of(name: str, cells: Sequence[Any]) -> pl.Series:
    """Returns texts, numbers, lists of these, or None, as a column of text or of lists of text."""
    if list not in set(map(type, cells)):
        texts = [c if c is None or type(c) is str else _text(c) for c in cells]
        return pl.Series(name, texts, pl.String)
    lists = (cell if cell is None or isinstance(cell, list) else [cell] for cell in cells)
    several = [None if cell is None else [*map(_text, cell)] for cell in lists]
    return pl.Series(name, several, pl.List(pl.String))


def _text(cell: Any) -> str:
    return str(cell).lower() if isinstance(cell, bool) else str(cell)


def read_labels(rows: Rows, settings: TableConfig) -> Labels:
    """Returns the labels of all rows. Raises DataError for an invalid cell.

    The kind of labels is `settings.kind` or, if that is None, is inferred, see TableConfig.
    """
    cells = rows.labels
    assert isinstance(cells, Cells)
    columns = list(cells.columns)
    if columns[0].is_empty():
        return Labels("class", list(cells.order), np.zeros(0, np.int32))
    reader = _Reader(rows, cells, settings)
    for column in columns:
        reader.refuse(column.is_null(), f"has no {quoted(column.name)}: add one, or remove the row")
    if len(columns) > 1:
        return reader.numbers(columns, settings.kind)
    column, kind = columns[0], settings.kind
    if kind != "class":
        column = _without_brackets(column)
    if kind != "numbers" and reader.is_vector(column):
        return reader.numbers([reader.listed(column)], kind)
    kind = kind or reader.guess(column)
    return reader.numbers([column], kind) if kind == "numbers" else reader.names(column, kind)


class _Reader(NamedTuple):
    rows: Rows
    cells: Cells
    settings: TableConfig

    def refuse(self, wrong: pl.Series, reason: str) -> None:
        """Raise DataError for the first row in which `wrong` is true."""
        if wrong.any():
            raise self.rows.error(wrong.arg_max() or 0, reason)

    def listed(self, column: pl.Series) -> pl.Series:
        """Returns a column of texts with several values as lists, split at the separator."""
        separator = self.settings.separator
        if column.dtype != pl.String or self.settings.kind in ("class", "numbers"):
            return column
        is_list = column.str.contains(separator, literal=True).any()
        return column.str.split(separator) if is_list else column

    def is_vector(self, column: pl.Series) -> bool:
        """Returns whether lists have a value for each label, rather than the numbers of some.
        True for [1, 0, 1] of three labels, and for [0.5, 2]; false for [3, 17].
        """
        column = self.listed(column)
        if not isinstance(column.dtype, pl.List) or self.cells.order:
            return False
        cells = _as_numbers(column.explode().drop_nulls())
        if not cells.is_finite().fill_null(False).all() or cells.is_empty():
            return False
        if not cells.is_in([0.0, 1.0]).all():
            return bool(((cells < 0) | (cells != cells.floor())).any())
        lengths = column.list.len()
        is_repeated = (column.list.n_unique() < lengths).any()
        return bool(is_repeated or (lengths.n_unique() == 1 and lengths[0] > 1))

    def guess(self, column: pl.Series) -> Kind:
        """Returns the kind of labels that a column looks like."""
        is_list = isinstance(column.dtype, pl.List)
        cells = (column.explode() if is_list else column).drop_nulls()
        texts = cells.unique().str.strip_chars()
        is_number = texts.cast(pl.Float64, strict=False).is_finite().fill_null(False)
        whole = is_list is False and texts.str.contains(_WHOLE_FLOAT).all()
        if (is_number & ~texts.str.contains(_WHOLE)).any() and not self.cells.order and not whole:
            return "numbers"
        if is_list or texts.str.contains(self.settings.separator, literal=True).any():
            return "labels"
        # In a column of this name, a row may have no label; in others, an empty cell is a mistake.
        return "labels" if column.name == "labels" and (texts == "").any() else "class"

    def names(self, column: pl.Series, kind: Kind) -> Labels:
        """Returns labels from one name, or any number of names, for each image."""
        places, items = self._items(column, kind)
        if kind == "class" and items.str.contains(_WHOLE_FLOAT).all():
            items = items.str.replace(r"\.0+$", "")
        names = items.unique(maintain_order=True).to_list()  # in order, to report the first mistake
        for name in names:
            reason = "" if is_class_name(name) else f"the label {quoted(name)}: {CLASS_NAME}"
            if not name or (self.settings.kind is None and name.lower() == "nan"):
                reason = f"the label is {'NaN' if name else 'empty'}: add one, or remove the row"
            if reason:
                raise self.rows.error(places[(items == name).arg_max() or 0], reason)
        is_whole = all(re.match(_WHOLE, name) for name in names)
        names.sort(key=(lambda name: (int(name), name)) if is_whole else None)
        if self.cells.order:
            names = [*self.cells.order, *(name for name in names if name not in self.cells.order)]
        if self.settings.kind is None and not self.cells.order and column.dtype == pl.String:
            self._refuse_decimal_commas(column, names)
            self._refuse_other_separator(column, names)
        self._refuse_own_texts(items, names)
        numbers = items.cast(pl.Enum(names)).to_physical().cast(pl.Int32).to_numpy()
        place, advice = printable(str(self.cells.place)), self._advice(column, names)
        if kind == "class":
            # Only the name of the column suggests that cells hold several labels.
            if advice and self.settings.kind is None and column.name == "labels":
                log.warning("%s: one class per image%s", place, advice)
            return Labels(kind, names, numbers)
        values = np.zeros((len(column), len(names)), np.uint8)
        values[places.to_numpy(), numbers] = 1
        if column.dtype == pl.String and (values.sum(axis=1) <= 1).all():
            separated = f"data.table.separator={self.settings.separator} separates them in a cell"
            log.warning("%s: no row has several labels; %s%s", place, separated, advice)
        return Labels(kind, names, values)

    def _items(self, column: pl.Series, kind: Kind) -> tuple[pl.Series, pl.Series]:
        """Returns all labels of all rows: the numbers of the rows, and the texts."""
        frame = pl.DataFrame({"place": np.arange(len(column)), "item": column})
        if isinstance(column.dtype, pl.List):
            if kind == "class":
                wrong = column.list.len() != 1
                shown = quoted(column[wrong.arg_max() or 0].to_list())
                message = "set data.table.kind=labels"
                self.refuse(wrong, f"the label {shown} is not one class: {message}")
            frame = frame.filter(column.list.len() > 0).explode("item")
        elif kind == "labels":
            separator = self.settings.separator
            frame = frame.with_columns(pl.col("item").str.split(separator)).explode("item")
            frame = frame.filter(pl.col("item").str.strip_chars() != "")
        return frame["place"], frame["item"].fill_null("").str.strip_chars()

    def _refuse_decimal_commas(self, column: pl.Series, names: list[str]) -> None:
        """Refuse numbers such as 0,5 if all labels are numbers, as each would become a class."""
        written = [name for name in names if re.match(_DECIMAL_COMMA, name)]
        if written and all(re.match(_WHOLE, name) for name in {*names} - {*written}):
            place = (column.str.strip_chars() == written[0]).arg_max() or 0
            reason = f"the label {quoted(written[0])} of the column {quoted(column.name)} looks "
            reason += f"like a number with a decimal comma: {_without_comma(written[0])}; "
            reason += "set data.table.separator=',' if it is several, or data.table.kind=class if "
            raise self.rows.error(place, f"{reason}it is one")

    def _refuse_other_separator(self, column: pl.Series, names: list[str]) -> None:
        """Refuse cells that seem to hold several names with another separator.

        Otherwise "cat, dog" and "dog, cat" would become two classes. Names may contain blanks:
        these separate names if each word is also a label, or if few words make many labels that
        images share, unlike captions.
        """
        for separator in ",; ":
            parts = {name: [part.strip() for part in name.split(separator)] for name in names}
            count = Counter(part for each in parts.values() for part in {*each})
            for name, each in parts.items():
                is_several = all(count[part] > 1 for part in each)
                if separator == " ":
                    are_few = _LABELS_PER_WORD * len(count) <= len(names) <= len(column) / 2
                    is_several = are_few or all(part in parts for part in each if part)
                if len(each) > 1 and is_several:
                    place = (column.str.strip_chars() == name).arg_max() or 0
                    message = f"set data.table.separator='{separator}', or data.table.kind=class"
                    label = f"the label {quoted(name)} of the column {quoted(column.name)}"
                    reason = f"{label} looks like several: {message} if it is one"
                    raise self.rows.error(place, reason)

    def _advice(self, column: pl.Series, names: list[str]) -> str:
        """Returns a text on the separator in the first cell that may hold several names."""
        for name in names:
            if other := re.search("[,;]", name):
                label = f"{quoted(name)} in the column {quoted(column.name)}"
                return f"; if {label} is several, set data.table.separator='{other[0]}'"
        return ""

    def _refuse_own_texts(self, items: pl.Series, names: list[str]) -> None:
        """Refuse, or warn of, labels that hardly any images share, as models cannot learn them."""
        kind = self.settings.kind
        few = len(items) < _FEWEST_TO_TELL or 2 * len(names) <= len(items)
        if few or self.cells.order or kind == "class":
            return
        line = (
            f"{self.cells.place}: {len(names)} of {len(items)} labels are different, such as "
            f"{quoted(items[0])}: they look like captions or numbers, not classes; name another "
            "column with data.table.labels=[COLUMN] (in tar files, add .cls members), set "
            "task=regression for numbers, or data.table.kind=class if they are classes"
        )
        if kind is None:
            raise DataError(line)
        log.warning("%s", line)

    def numbers(self, columns: list[pl.Series], kind: Kind | None) -> Labels:
        """Returns labels from the numbers of each row, in several columns or a list.

        If all are 0 or 1, they are a class if each row has a single 1, and otherwise labels.
        """
        names = [column.name for column in columns]
        if len(columns) == 1 and isinstance(columns[0].dtype, pl.List):
            lengths = columns[0].list.len()
            self.refuse(lengths == 0, "the label is empty: add one, or remove the row")
            wrong = lengths != lengths[0]
            cell = quoted(columns[0][wrong.arg_max() or 0].to_list())
            self.refuse(wrong, f"the label {cell} has another length than the first row's")
            columns = [columns[0].list.get(place) for place in range(lengths[0])]
            several = len(columns) != 1
            names = [f"{names[0]} {i}" for i in range(len(columns))] if several else names
        if kind != "numbers" and all(map(_is_sign, columns)):
            columns = [_as_numbers(column).clip(0).cast(pl.String) for column in columns]
        values = np.empty((len(columns[0]), len(columns)), np.float32)
        for i, column in enumerate(columns):
            values[:, i] = self._checked(names[i], column, kind, several=len(columns) > 1)
        if kind is None and np.isin(values, (0, 1)).all():
            kind = "class" if (values.sum(1) == 1).all() else "labels"
            log.info(
                "%s: %s hold only 0 (or -1) and 1, %s: data.table.kind=%s; set another if that is "
                "wrong",
                *(printable(str(self.cells.place)), counted(len(columns), "column")),
                *("one 1 in each row" if kind == "class" else "any number of 1 in a row", kind),
            )
        if kind == "class":
            counts = pl.Series(values.sum(1))
            found = int(counts[(counts != 1).arg_max() or 0])
            message = "must be one class, or set data.table.kind=labels"
            self.refuse(counts != 1, f"{found} of {len(names)} labels are 1: {message}")
            return Labels(kind, names, values.argmax(1).astype(np.int32))
        if kind == "labels":
            return Labels(kind, names, values.astype(np.uint8))
        return Labels("numbers", names, values)

    def _checked(
        self, name: str, column: pl.Series, kind: Kind | None, *, several: bool
    ) -> NDArray[np.float32]:
        """Returns the numbers of a column, one or `several`. Raises DataError for text, and for
        numbers other than 0 and 1 if they must be labels."""
        numbers = _as_numbers(column)
        narrow = numbers.cast(pl.Float32)
        wrong = ~narrow.is_finite().fill_null(False)
        other = "name one column" if several or kind == "class" else "set data.table.kind=class"
        text, remedy = str(column[wrong.arg_max() or 0]), "correct it"
        if re.match(_DECIMAL_COMMA, text):
            remedy = _without_comma(text)
        message, shown = f"{remedy}, remove the row, or {other}", quoted(text)
        self.refuse(wrong, f"the label {shown} is not a finite number: {message}")
        if kind in ("class", "labels"):
            wrong = (narrow != 0) & (narrow != 1)
            message = "must be 0 or 1, or set data.table.kind=numbers"
            shown = quoted(column[wrong.arg_max() or 0])
            self.refuse(wrong, f"{quoted(name)} is {shown}: {message}")
        self._warn_of_equal(name, numbers)
        return narrow.to_numpy()

    def _warn_of_equal(self, name: str, numbers: pl.Series) -> None:
        """Warn of numbers that become equal in float32, unless they are almost equal."""
        exact = np.unique(numbers.to_numpy())
        equal = np.diff(exact.astype(np.float32)) == 0
        if not equal.any():
            return
        gaps, place = np.where(equal, np.diff(exact), 0), int(equal.argmax())
        is_whole = (exact == np.floor(exact)).all()
        if is_whole or gaps.max() > _SMALL_GAP * (exact[-1] - exact[0]):
            log.warning(
                "%s: %s has different numbers that are the same as float32, which training uses, "
                "such as %.17g and %.17g: subtract the column's mean, or divide it",
                *(printable(str(self.cells.place)), quoted(name), *exact[place : place + 2]),
            )


def _as_numbers(column: pl.Series) -> pl.Series:
    """Returns texts as float64, with null for texts that are no numbers."""
    texts = column.str.strip_chars()
    is_text = ~texts.str.contains(r"[0-9]").fill_null(True)
    if is_text.any():
        texts = texts.str.to_lowercase().replace({"true": "1", "false": "0"})
    return texts.cast(pl.Float64, strict=False)


def _is_sign(column: pl.Series) -> bool:
    """Returns whether all cells are -1 or 1, which some programs write for labels."""
    return _as_numbers(column).is_in([-1.0, 1.0]).fill_null(False).all()


def _without_comma(number: str) -> str:
    """Returns the text to write instead of `0,5`, or of `1,500`, which is ambiguous."""
    whole = f", or {number.replace(',', '')} if it is thousands"
    return f"write {number.replace(',', '.')}{whole if re.match(_THOUSANDS, number) else ''}"


def _without_brackets(column: pl.Series) -> pl.Series:
    """Parses lists that a CSV file holds as text, such as "['cat', 'dog']" and "[1 0]"."""
    if column.dtype != pl.String or not column.str.contains(_BRACKETS).all():
        return column
    return column.str.extract_all(_ITEM).list.eval(pl.element().str.strip_chars("'\""))


def text_column(file: Path, column: pl.Series) -> pl.Series:
    """Returns the column as text or lists of text. Raises DataError for one of another type."""
    dtype = column.dtype
    inner = dtype.inner if isinstance(dtype, (pl.List, pl.Array)) else dtype
    if inner.is_nested() or inner in (pl.Binary, pl.Object, pl.Duration):
        fields = dtype.fields if isinstance(dtype, pl.Struct) else ()
        is_image = dtype == pl.Binary or any(field.name == "bytes" for field in fields)
        message = "read it with data=parquet, or choose a column of paths" if is_image else MUST_BE
        raise DataError(f"{file}: the column {quoted(column.name)} is of type {dtype}: {message}")
    return column.cast(pl.String if inner is dtype else pl.List(pl.String))


def quoted(value: object) -> str:
    """Returns the content of a cell for a message: on one line, and shortened."""
    text = printable(str(value)[: _LONGEST_QUOTE + 1])
    return repr(text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}...")
