"""Progress: one line on a terminal, otherwise several; all with throughput and time left."""

import os
import pty
import re
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from entry_point.data.progress_bar import track
from tests.platform_files import write_input_config

RUN = """
import time
from entry_point.data.progress_bar import track
for _ in track(range(90), 100, "packing", done=10):
    time.sleep(0.005)
"""
TRAINING = """
from entry_point.training.results.log import epoch_bar, log_to_stdout
console = log_to_stdout(first_rank=True)
with epoch_bar(console, "epoch 1", 2, 0) as advance:
    advance()
print(console.is_terminal)
"""


def on_a_terminal(program: str) -> str:
    """What a program shows on a terminal that is its standard output and error."""
    terminal, child_end = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=child_end, stderr=child_end, env=environment
    )
    os.close(child_end)
    shown = b""
    try:
        while some := os.read(terminal, 65536):
            shown += some
    except OSError:  # Linux raises EIO when the other end of a terminal closes
        pass
    os.close(terminal)
    assert process.wait() == 0, shown.decode()
    return shown.decode()


def test_a_terminal_shows_one_line_with_images_per_second_and_time_left() -> None:
    text = on_a_terminal(RUN)
    assert re.search(
        r"packing: \d\d of 100, .*\r.*packing: 100 of 100, \d+ images/s, 0 s left", text
    )
    assert text.count("\n") == 1


def test_a_job_in_a_container_rewrites_no_line_even_on_a_terminal(tmp_path: Path) -> None:
    """Local mode of SageMaker's SDKs gives the container a terminal and keeps its output."""
    write_input_config(tmp_path, [])
    inside = (
        "import pathlib\nfrom entry_point.job import run_folder\n"
        f"run_folder.CONTAINER_ROOT = pathlib.Path({str(tmp_path)!r})\n"
    )
    text = on_a_terminal(inside + RUN)
    assert "\x1b" not in text and "packing: 100 of 100" in text
    assert "True" in on_a_terminal(TRAINING)
    assert "\x1b" not in (text := on_a_terminal(inside + TRAINING)) and "False" in text


def test_items_of_an_earlier_run_count_as_progress_but_not_as_throughput(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = count(0.0, 10.0)
    monkeypatch.setattr("entry_point.data.progress_bar.time.monotonic", lambda: next(clock))
    assert list(track(["a", "b"], 100, "packing", done=90)) == ["a", "b"]
    assert capsys.readouterr().err == (
        "packing: 91 of 100, 0 images/s, 90 s left\npacking: 92 of 100, 0 images/s, 80 s left\n"
    )
