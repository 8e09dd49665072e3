"""A comparison with 1.1.0 fails for what nobody decided, and for decisions that do not show."""

from __future__ import annotations

import pytest

from tests.recorded import decided


@pytest.mark.parametrize(
    ("rows", "differences", "code", "line"),
    [
        ({}, {"layout: a": ""}, 0, "equal: layout: a"),
        ({}, {"layout: a": "images"}, 1, "DIFFERENT: layout: a: images"),
        ({"layout: a": "smaller"}, {"layout: a": "images"}, 0, "decided: smaller: layout: a"),
        ({"layout: a": "smaller"}, {"layout: a": ""}, 1, "NO LONGER DIFFERENT"),
        ({"layout:...": "all"}, {"layout: a": "", "layout: b": "keys"}, 0, "decided: all"),
        ({}, {}, 1, "0 compared"),
    ],
)
def test_only_what_is_decided_may_differ_and_must(
    rows: dict[str, str],
    differences: dict[str, str],
    code: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(decided, "DIFFERS", rows)
    report = decided.Report()
    for name, difference in differences.items():
        report.add(name, difference)
    assert report.end() == code
    assert line in capsys.readouterr().out


def test_a_renamed_setting_is_typed_as_today(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decided, "RENAMED", {"data=manifest": "data=table", "data.images": "at"})
    given = ["data=manifest", "data.images=photos", "data=folder", "--wait"]
    assert decided.today(given) == ["data=table", "at=photos", "data=folder", "--wait"]
