"""Text from datasets is printed without commands to the terminal and without false metrics."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entry_point.data.errors import DataError
from entry_point.job.metrics_line import metric_regexes
from entry_point.job.program import failure_text
from entry_point.job.text import counted, duration, printable

HOSTILE = "x\n\x1b[2J[metrics] val_accuracy=0.999 loss=1 \udce9\u202e.jpg"
SAFE = r"x\n\x1b[2J\x5bmetrics] val_accuracy=0.999 loss=1 \udce9\u202e.jpg"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (HOSTILE, SAFE),
        ("[metrics] epoch=3", r"\x5bmetrics] epoch=3"),
        ("epoch=3", "epoch=3"),
        ("a val_accuracy=.9\tb", r"a val_accuracy=.9\tb"),
        ("data.root=/a b/épée 写真 👩‍🚀\u202f9.jpg", "data.root=/a b/épée 写真 👩‍🚀\u202f9.jpg"),
        ("trainer.epochs=0: must be positive", "trainer.epochs=0: must be positive"),
    ],
)
def test_only_what_is_unsafe_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


NAMES = ["[metrics]", "loss=", "epoch=", "val_own="]
PIECES = [*NAMES, "1", ".5", " ", "\n", "\t", "\x1b", "\udce9", "x", "=", "\x85", "\xa0"]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3)).map("".join))
def test_printable_text_has_no_metric_and_no_control_character(text: str) -> None:
    shown = printable(text)
    shown.encode()
    regexes = metric_regexes("project.tasks.Own", ["own"]).values()
    assert not any(re.search(regex, shown, re.MULTILINE) for regex in regexes)
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", shown) and printable(shown) == shown


def test_errors_and_the_reason_they_leave_are_printable() -> None:
    assert str(DataError(HOSTILE)) == SAFE
    reason = failure_text(ValueError("the first line\n" + HOSTILE))
    assert reason.startswith("ValueError: the first line\nx\n") and r"\x5bmetrics] val" in reason
    assert "\x1b" not in reason and reason.encode()


def test_one_of_a_thing_has_no_plural() -> None:
    counts = [counted(1, "image"), counted(0, "class"), counted(2, "batch"), counted(3, "epoch")]
    assert counts == ["1 image", "0 classes", "2 batches", "3 epochs"]


def test_a_duration_begins_with_its_largest_unit() -> None:
    assert [*map(duration, (24.6, 59.6, 200, 7530))] == [
        "25 s",
        "1 min 0 s",
        "3 min 20 s",
        "2 h 5 min",
    ]
