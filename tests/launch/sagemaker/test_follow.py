"""Watching a job: every line once, despite throttling and dropped connections; Ctrl-C."""

import io
import os
import pty
import select
import signal
import subprocess
import sys
import time
from functools import partial
from typing import Any

import pytest
from rich.console import Console

from launch.sagemaker import __main__ as sagemaker
from launch.sagemaker import jobs
from launch.sagemaker.aws import open_session
from launch.sagemaker.jobs import Job, follow
from tests.launch.conftest import DROPPED, ROOT, Answer, Aws, refusal
from tests.launch.sagemaker.cloudwatch import write_lines

ATTEMPTS = 6  # per call, set in launch.sagemaker.aws.aws_client


def state(status: str = "InProgress", **more: Any) -> Answer:
    return 200, {
        "TrainingJobName": "the-job",
        "TrainingJobStatus": status,
        "SecondaryStatus": "Training" if status == "InProgress" else status,
        **more,
    }


class Watched:
    """Runs `follow`, and records what it showed and how long it slept."""

    def __init__(self, aws: Aws, *, terminal: bool = False) -> None:
        self.aws, self.slept = aws, list[float]()
        self.shown = io.StringIO()
        self.console = Console(file=self.shown, force_terminal=terminal, width=200)
        self.session = open_session(None)

    def run(self, *, events: dict[int, Any] | None = None) -> str | None:
        """Follow to the end; `events` maps the number of a sleep to a function to call in it."""

        def sleep(seconds: float) -> None:
            self.slept.append(seconds)
            if event := (events or {}).get(len(self.slept)):
                event()

        return follow(Job(self.session, "the-job"), self.console, sleep=sleep)

    @property
    def lines(self) -> list[str]:
        return self.shown.getvalue().splitlines()


def test_each_line_is_shown_once_and_the_summary_at_the_end(aws: Aws) -> None:
    aws.answers["DescribeTrainingJob"] = [
        state(),
        state(),
        state("Completed", TrainingTimeInSeconds=90, BillableTimeInSeconds=90),
    ]
    watched = Watched(aws)
    more = {
        1: lambda: write_lines(aws, {"algo-1": [(1, "first [line]")]}),
        2: lambda: write_lines(aws, {"algo-2": [(2, "second")]}),
        3: lambda: write_lines(aws, {"algo-1": [(3, "last, after the end")]}),
    }
    assert watched.run(events=more) == "Completed"
    assert [line for line in watched.lines if line.startswith("algo")] == [
        "algo-1 first [line]",
        "algo-2 second",
        "algo-1 last, after the end",
    ]
    assert "the-job: Completed (Completed)" in watched.lines
    assert "trained 90 s, billed 90 s" in watched.lines


@pytest.mark.parametrize("status", ["Failed", "Stopped"])
def test_failed_or_stopped_job_shows_its_full_reason(aws: Aws, status: str) -> None:
    reason = "AlgorithmError: ExecuteUserScriptError: " + "long " * 200
    aws.answers["DescribeTrainingJob"] = [state(status, FailureReason=reason)]
    watched = Watched(aws)
    assert watched.run() == status
    assert f"reason: {reason}" in watched.lines


def test_live_line_shows_the_latest_metrics(aws: Aws) -> None:
    aws.answers["DescribeTrainingJob"] = [state(), state(), state("Completed")]
    write_lines(
        aws,
        {
            "algo-1": [
                (
                    1,
                    "[metrics] epoch=1 step=10 loss=2.5 images_per_s=812.5 data_wait_pct=0.4",
                ),
                (2, "[metrics] epoch=2 step=20 loss=nan images_per_s=900 data_wait_pct=0.2"),
            ]
        },
    )
    watched = Watched(aws, terminal=True)
    assert watched.run() == "Completed"
    live = "Completed · Completed · epoch 2 · loss 2.5 · 900 images/s · data wait 0.2 %"
    assert live in watched.shown.getvalue()


def test_throttling_and_dropped_connections_lose_no_line(aws: Aws) -> None:
    write_lines(aws, {"algo-1": [(1, "one")], "algo-2": [(2, "two")]})
    throttled, down = refusal("ThrottlingException", "Rate exceeded"), (503, {"__type": "X"})
    aws.answers["DescribeTrainingJob"] = [
        *[throttled] * ATTEMPTS,
        *[DROPPED] * ATTEMPTS,
        state(),
        state("Completed"),
    ]
    # Both pages of the first host (lines, then the end) are read before the second host fails.
    aws.answers["GetLogEvents"] = [None, None, *[throttled] * ATTEMPTS, *[DROPPED] * ATTEMPTS, None]
    aws.answers["DescribeLogStreams"] = [*[down] * (ATTEMPTS - 1), None]
    watched = Watched(aws)
    assert watched.run() == "Completed"
    assert [line for line in watched.lines if line.startswith("algo")] == [
        "algo-1 one",
        "algo-2 two",
    ]
    assert watched.slept[:2] == [1.0, 2.0]
    assert any("ThrottlingException; retrying in 1 s" in line for line in watched.lines)


def test_permanent_error_ends_the_watch(aws: Aws) -> None:
    aws.refuse("DescribeTrainingJob", "ExpiredTokenException")
    with pytest.raises(Exception, match="ExpiredTokenException"):
        Watched(aws).run()


def test_log_can_be_read_before_its_group_exists(aws: Aws) -> None:
    log = Job(open_session(None), "the-job").log()
    assert log.new_lines() == []
    write_lines(aws, {"algo-1": [(1, "one")]})
    write_lines(aws, {"algo-1": [(1, "of another job")]}, job="the-job-2")
    assert log.new_lines() == [("algo-1", "one")]
    assert log.new_lines() == []


class Terminal:
    """Runs `logs the-job --follow` on a pseudo-terminal."""

    def __init__(self, aws: Aws) -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "launch.sagemaker", "logs", "the-job", "--follow"],
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], "TERM": "xterm", **aws.environment},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.seen = ""

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + 60
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            if select.select([self.master], [], [], 1)[0]:
                try:
                    self.seen += os.read(self.master, 4096).decode(errors="replace")
                except OSError:
                    assert text in self.seen, self.seen

    def interrupt(self) -> None:
        os.kill(self.process.pid, signal.SIGINT)

    def end(self) -> int:
        try:
            return self.process.wait(timeout=60)
        finally:
            self.process.kill()
            os.close(self.master)


def test_ctrl_c_leaves_the_job_running_and_says_how_to_stop_it(aws: Aws) -> None:
    aws.answers["DescribeTrainingJob"] = [state()]
    terminal = Terminal(aws)
    terminal.wait_for("InProgress")
    terminal.interrupt()
    terminal.wait_for('the-job keeps running; make sagemaker ARGS="stop the-job" stops it')
    assert terminal.end() == 0
    assert not aws.made("StopTrainingJob")


def test_a_job_that_fails_while_it_is_followed_ends_the_command_with_1(
    aws: Aws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "follow", partial(follow, interval_s=0.0))
    aws.answers["DescribeTrainingJob"] = [state("Failed", FailureReason="AlgorithmError: lost")]
    assert sagemaker.main(["logs", "the-job", "--follow"]) == 1
    assert "reason: AlgorithmError: lost" in capsys.readouterr().out
