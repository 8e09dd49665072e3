"""Progress: a bar on a terminal, otherwise lines; both with throughput and time left."""

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
    terminal, child_end = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen([sys.executable, "-c", RUN], stderr=child_end, env=environment)
    os.close(child_end)
    shown = b""
    try:
        while some := os.read(terminal, 65536):
            shown += some
    except OSError:  # Linux raises EIO when the other end of a terminal closes
        pass
    os.close(terminal)
    assert process.wait() == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert re.search(r"packing .* 100/100 .*\d+ images/s .*0:00:00", text)


def test_items_of_an_earlier_run_count_as_progress_but_not_as_throughput(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = count(0.0, 10.0)
    monkeypatch.setattr("entry_point.data.progress_bar.time.monotonic", lambda: next(clock))
    assert list(track(["a", "b"], 100, "packing", done=90)) == ["a", "b"]
    assert capsys.readouterr().err == (
        "packing: 91 of 100, 0 images/s, 90 s left\npacking: 92 of 100, 0 images/s, 80 s left\n"
    )
