"""Datasets open as they did at 56ed78c: classes, splits, counts, keys and labels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.recorded import layouts
from tests.recorded.decided import TOPPED_UP, row_of

RECORD = json.loads(layouts.FILE.read_text())


def test_the_record_of_56ed78c_has_every_layout() -> None:
    assert len(RECORD) >= 20 and list(RECORD) == list(layouts.LAYOUTS)


@pytest.mark.parametrize("name", RECORD)
def test_a_layout_opens_as_56ed78c_opened_it(name: str, tmp_path: Path) -> None:
    """A difference is a mistake, or a decision with a row in `decided.py`; the record stays."""
    record = RECORD[name]
    try:
        found = layouts.found(name, tmp_path / "data")
    except Exception as error:
        found = {"error": error}
    differing = [key for key in {**record, **found} if found.get(key) != record.get(key)]
    decided = row_of(f"layout: {name}") is not None
    assert bool(differing) == decided, f"{differing} differ from 56ed78c: {found}"


@pytest.mark.parametrize("name", TOPPED_UP)
def test_only_small_classes_are_divided_otherwise_than_56ed78c_did(
    name: str, tmp_path: Path
) -> None:
    """Runs of that time keep what it did; of a new one, every image of its val is val."""
    assert layouts.found(name, tmp_path / "then", "data.val_top_up=null") == RECORD[name]
    now = layouts.found(name, tmp_path / "now")
    assert (now["train"]["images"], now["val"]["images"]) == TOPPED_UP[name]
    assert now["classes"] == RECORD[name]["classes"]
