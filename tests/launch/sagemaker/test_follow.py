"""Watching a job: every line once, despite throttling and dropped connections; Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from launch.sagemaker import __main__ as sagemaker
from launch.sagemaker import jobs
from launch.sagemaker.aws import ATTEMPTS, open_session
from launch.sagemaker.jobs import Job, follow
from tests.launch.conftest import DROPPED, ROOT, Answer, Aws, refusal
from tests.launch.sagemaker.cloudwatch import write_lines


def state(status: str = "InProgress", **more: Any) -> Answer:
    return 200, {
        "TrainingJobName": "the-job",
        "TrainingJobStatus": status,
        "SecondaryStatus": "Training" if status == "InProgress" else status,
        **more,
    }


@pytest.fixture
def watched(
    aws: Aws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[str | None, list[str]]]:
    """Follows the job to its end, without pauses; returns its state and what was printed."""

    def watch(*events: Callable[[], None]) -> tuple[str | None, list[str]]:
        """`events` are called in the pauses, one in each."""
        following = iter(events)

        def pause(_seconds: float) -> None:
            next(following, lambda: None)()

        monkeypatch.setattr(time, "sleep", pause)
        ended = follow(Job(open_session(), "the-job"))
        return ended, capsys.readouterr().out.splitlines()

    assert aws
    return watch


Watched = Callable[..., tuple[str | None, list[str]]]


def test_each_line_is_shown_once_and_the_summary_at_the_end(aws: Aws, watched: Watched) -> None:
    aws.answers["DescribeTrainingJob"] = [
        state(),
        state(),
        state("Completed", TrainingTimeInSeconds=90, BillableTimeInSeconds=90),
    ]
    ended, lines = watched(
        lambda: write_lines(aws, {"algo-1": [(1, "first [line]")]}),
        lambda: write_lines(aws, {"algo-2": [(2, "second")]}),
        lambda: write_lines(aws, {"algo-1": [(3, "last, after the end")]}),
    )
    assert ended == "Completed"
    assert lines == [
        "InProgress (Training)",
        "algo-1 first [line]",
        "algo-2 second",
        "Completed (Completed)",
        "algo-1 last, after the end",
        "the-job: Completed (Completed)",
        "trained 90 s, billed 90 s",
    ]


@pytest.mark.parametrize("status", ["Failed", "Stopped"])
def test_failed_or_stopped_job_shows_its_full_reason(
    aws: Aws, watched: Watched, status: str
) -> None:
    reason = "AlgorithmError: ExecuteUserScriptError: " + "long " * 200
    aws.answers["DescribeTrainingJob"] = [state(status, FailureReason=reason)]
    ended, lines = watched()
    assert ended == status
    assert f"reason: {reason}" in lines


def test_throttling_and_dropped_connections_lose_no_line(aws: Aws, watched: Watched) -> None:
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
    aws.answers["DescribeLogStreams"] = [*[down] * ATTEMPTS, None]
    ended, lines = watched()
    assert ended == "Completed"
    assert [line for line in lines if line.startswith("algo")] == ["algo-1 one", "algo-2 two"]


def test_permanent_error_ends_the_watch(aws: Aws, watched: Watched) -> None:
    aws.refuse("DescribeTrainingJob", "ExpiredTokenException")
    with pytest.raises(Exception, match="ExpiredTokenException"):
        watched()


def test_log_can_be_read_before_its_group_exists(aws: Aws) -> None:
    log = Job(open_session(), "the-job").log()
    assert log.new_lines() == []
    write_lines(aws, {"algo-1": [(1, "one")]})
    write_lines(aws, {"algo-1": [(1, "of another job")]}, job="the-job-2")
    assert log.new_lines() == [("algo-1", "one")]
    assert log.new_lines() == []


def test_ctrl_c_leaves_the_job_running_and_says_how_to_stop_it(aws: Aws) -> None:
    aws.answers["DescribeTrainingJob"] = [state()]
    process = subprocess.Popen(
        [sys.executable, "-m", "launch.sagemaker", "logs", "the-job", "--follow"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], **aws.environment},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "InProgress (Training)\n"
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert 'the-job keeps running; make sagemaker ARGS="stop the-job" stops it' in rest
    assert process.returncode == 0
    assert not aws.made("StopTrainingJob")


def test_a_job_that_fails_while_it_is_followed_ends_the_command_with_1(
    aws: Aws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "follow", partial(follow, interval_s=0.0))
    aws.answers["DescribeTrainingJob"] = [state("Failed", FailureReason="AlgorithmError: lost")]
    assert sagemaker.main(["logs", "the-job", "--follow"]) == 1
    assert "reason: AlgorithmError: lost" in capsys.readouterr().out
