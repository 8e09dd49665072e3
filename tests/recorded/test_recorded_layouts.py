"""Datasets open as they did in version 1.1.0: classes, splits, counts, keys and labels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.recorded import layouts
from tests.recorded.decided import row_of

RECORD = json.loads(layouts.FILE.read_text())


def test_the_record_has_every_layout() -> None:
    assert len(RECORD) >= 20 and list(RECORD) == list(layouts.LAYOUTS)


@pytest.mark.parametrize("name", RECORD)
def test_a_layout_opens_as_version_1_1_opened_it(name: str, tmp_path: Path) -> None:
    """A difference is a mistake, or a decision with a row in `decided.py`; the record stays."""
    record = RECORD[name]
    try:
        found = layouts.found(name, tmp_path / "data")
    except Exception as error:
        found = {"error": error}
    differing = [key for key in {**record, **found} if found.get(key) != record.get(key)]
    decided = row_of(f"layout: {name}") is not None
    assert bool(differing) == decided, f"{differing} differ from 1.1.0: {found}"
