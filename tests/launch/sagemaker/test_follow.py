"""Watching a job: every line once, despite throttling and dropped connections; Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from launch.sagemaker import __main__ as sagemaker
from launch.sagemaker.aws import ATTEMPTS
from tests.launch.conftest import DROPPED, ROOT, Aws, Terminal, refusal
from tests.launch.conftest import job_state as state
from tests.launch.sagemaker.cloudwatch import write_lines

Watched = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def watched(
    aws: Aws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Watched:
    """Follows the job to its end, without pauses; returns the exit code and what was printed."""

    def watch(*events: Callable[[], None]) -> tuple[int, list[str]]:
        """`events` are called in the pauses, one in each."""
        following = iter(events)

        def pause(_seconds: float) -> None:
            next(following, lambda: None)()

        monkeypatch.setattr(time, "sleep", pause)
        code = sagemaker.main(["logs", "the-job", "--follow"])
        return code, capsys.readouterr().out.splitlines()

    assert aws
    return watch


def test_each_line_is_shown_once_and_the_summary_at_the_end(aws: Aws, watched: Watched) -> None:
    ended = state("Completed", TrainingTimeInSeconds=90, BillableTimeInSeconds=90)
    aws.answers["DescribeTrainingJob"] = [state(), state(), state(), ended]
    write_lines(aws, {"algo-1": [(1, "of another job")]}, job="the-job-2")
    code, lines = watched(
        lambda: write_lines(aws, {"algo-1": [(1, "first [line]")]}),
        lambda: write_lines(aws, {"algo-2": [(2, "second\n")]}),
    )
    assert code == 0
    assert lines == [
        "InProgress (Training)",
        "algo-1 first [line]",
        "algo-2 second",
        "Completed",
        "the-job: Completed",
        "trained 90 s, billed 90 s",
    ]


def test_lines_that_come_late_are_shown_though_the_job_has_ended(
    aws: Aws, watched: Watched
) -> None:
    aws.answers["DescribeTrainingJob"] = [state(), state(), state("Completed")]
    hour = 3_600_000
    _, lines = watched(
        lambda: write_lines(aws, {"algo-1": [(hour, "newest")]}),
        lambda: write_lines(aws, {"algo-1": [(hour + 1, "at the end")]}),
        lambda: None,
        lambda: write_lines(aws, {"algo-1": [(hour + 2, "last"), (hour + 3, "last")]}),
        lambda: None,
        # An hour older than what the other host has printed.
        lambda: write_lines(aws, {"algo-2": [(1, "of a slow host")]}),
    )
    shown = [line for line in lines if line.startswith("algo")]
    assert shown == [
        *("algo-1 newest", "algo-1 at the end", "algo-1 last", "algo-1 last"),
        "algo-2 of a slow host",
    ]


@pytest.mark.parametrize("status", ["Failed", "Stopped"])
def test_a_job_that_did_not_complete_shows_its_reason_and_ends_the_command_with_1(
    aws: Aws, watched: Watched, status: str
) -> None:
    aws.answers["DescribeTrainingJob"] = [state(status, FailureReason="AlgorithmError: why")]
    code, lines = watched()
    assert code == 1 and "reason: AlgorithmError: why" in lines


def test_throttling_and_dropped_connections_lose_no_line(aws: Aws, watched: Watched) -> None:
    write_lines(aws, {"algo-1": [(1, "one")], "algo-2": [(2, "two")]})
    throttled, down = refusal("ThrottlingException", "Rate exceeded"), (503, {"__type": "X"})
    aws.answers["DescribeTrainingJob"] = [
        state(),
        *[throttled] * ATTEMPTS,
        *[DROPPED] * ATTEMPTS,
        state(),
        state("Completed"),
    ]
    failures = [*[throttled] * ATTEMPTS, *[DROPPED] * ATTEMPTS, *[down] * ATTEMPTS]
    aws.answers["FilterLogEvents"] = [*failures, None]
    code, lines = watched()
    assert code == 0
    assert [line for line in lines if line.startswith("algo")] == ["algo-1 one", "algo-2 two"]


KEEPS_RUNNING = 'the-job keeps running; make sagemaker ARGS="stop the-job" stops it'


def test_a_permanent_error_ends_the_watch_and_says_that_the_job_keeps_running(
    aws: Aws, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws.answers["DescribeTrainingJob"] = [state(), state(), refusal("ExpiredTokenException")]
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    keeps, why = terminal.refusals(sagemaker.main, "logs", "the-job", "--follow")
    assert keeps == KEEPS_RUNNING and "(ExpiredTokenException)" in why


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_the_job_running_and_says_how_to_stop_it(
    aws: Aws, number: int, code: int
) -> None:
    aws.answers["DescribeTrainingJob"] = [state()]
    process = subprocess.Popen(
        [sys.executable, "-m", "launch.sagemaker", "logs", "the-job", "--follow"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], **aws.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "InProgress (Training)\n"
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    assert told == f"{KEEPS_RUNNING}\n"
    assert process.returncode == code  # 0 is for a job that has completed
    assert not aws.made("StopTrainingJob")
