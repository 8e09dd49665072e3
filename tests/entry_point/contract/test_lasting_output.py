"""Streams that cannot fail keep the buffering of the streams that they replace."""

import subprocess
import sys

import pytest

PROGRAM = """
from entry_point.contract.lasting_output import make_output_last
import sys
make_output_last()
sys.stderr.write("a line\\n")
sys.stdin.read()
"""


@pytest.mark.parametrize("options", [[], ["-u"]])
def test_a_line_on_stderr_arrives_while_the_program_runs(options: list[str]) -> None:
    with subprocess.Popen(
        [sys.executable, *options, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "a line\n"
        assert process.poll() is None
