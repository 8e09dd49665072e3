"""Progress: a bar on a terminal, lines elsewhere; both with the speed and the time left."""

import os
import pty
import re
import subprocess
import sys
from itertools import count

import pytest

from entry_point.data.progress_bar import track

RUN = """
import time
from entry_point.data.progress_bar import track
for _ in track(range(90), 100, "packing", done=10):
    time.sleep(0.005)
"""


def test_a_terminal_shows_a_bar_with_images_per_second_and_time_left() -> None:
    mine, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen([sys.executable, "-c", RUN], stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    try:
        while some := os.read(mine, 65536):
            shown += some
    except OSError:  # how Linux says that a terminal's other end is closed
        pass
    os.close(mine)
    assert process.wait() == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert re.search(r"packing .* 100/100 .*\d+ images/s .*0:00:00", text)


def test_what_an_earlier_run_has_done_counts_but_not_for_the_speed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = count(0.0, 10.0)
    monkeypatch.setattr("entry_point.data.progress_bar.time.monotonic", lambda: next(clock))
    assert list(track(["a", "b"], 100, "packing", done=90)) == ["a", "b"]
    assert capsys.readouterr().err == (
        "packing: 91 of 100, 0 images/s, 90 s left\npacking: 92 of 100, 0 images/s, 80 s left\n"
    )
