"""What all benchmarks share: turns, times, pages and pictures."""

from functools import partial
from itertools import count
from pathlib import Path

import pytest

from benchmarks import measure


def test_contenders_alternate_and_every_second_round_is_in_reverse_order() -> None:
    calls = count(1)
    found = measure.alternate(dict.fromkeys("abc", lambda: next(calls)), 3)
    assert found == {"a": [1, 6, 7], "b": [2, 5, 8], "c": [3, 4, 9]}


def test_a_time_is_per_unit_of_work_and_the_median_without_the_first_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = {"slow": iter([100.0, 4.0, 2.0, 3.0]), "fast": iter([100.0, 1.0, 1.0, 50.0])}
    timed = {name: partial(next, spent) for name, spent in seconds.items()}
    monkeypatch.setattr(measure, "timed", lambda *_: timed)
    times = measure.cpu_milliseconds(timed, works=10, rounds=3)
    assert times == {"slow": 300.0, "fast": 100.0}


def test_a_contender_is_timed_by_the_clock() -> None:
    ticks = count()
    work = measure.timed({"a tick": lambda: next(ticks)}, lambda: float(next(ticks)))
    assert work["a tick"]() == 2


def test_a_page_has_a_title_paragraphs_and_tables_with_three_digits(tmp_path: Path) -> None:
    table = measure.table(["a", "b"], [["x|y", 1.23456], ["z", 7]])
    text = measure.write_page(tmp_path / "new" / "page.md", "Title", "", "Some words.\n", table)
    rows = "| a | b |\n| --- | --- |\n| x/y | 1.23 |\n| z | 7 |\n"
    assert text == f"# Title\n\nSome words.\n\n{rows}"
    assert (tmp_path / "new" / "page.md").read_text() == text


def test_a_contender_has_the_color_of_the_longest_name_that_its_name_contains() -> None:
    names = ("this template (threads)", "this template (workers)", "Pillow + torchvision", "x")
    assert [measure.color(name) for name in names] == ["#e8590c", "#a61e4d", "#868e96", "#adb5bd"]
