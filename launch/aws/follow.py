"""Watching a job: its log lines as they arrive, and a live status line."""

import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

from botocore import exceptions
from rich.console import Console

from entry_point.contract.metrics_line import METRIC_REGEXES
from launch.aws.aws_errors import explain
from launch.aws.sagemaker_job import FINAL, Job

T = TypeVar("T")
_LIVE_METRICS = {
    "epoch": "epoch {}",
    "train:loss": "loss {}",
    "train:images_per_s": "{} images/s",
    "train:data_wait_pct": "data wait {} %",
}
_TRANSIENT = ("Throttling", "TooManyRequests", "RequestLimit", "Internal", "ServiceUnavailable")
_MAX_PAUSE_S = 60.0


def follow(
    job: Job,
    console: Console | None = None,
    *,
    interval_s: float = 5.0,
    sleep: Callable[[float], None] = time.sleep,
) -> str | None:
    """Show the job's lines and state until it ends; returns its final state.

    Ctrl-C asks whether to stop the job, to keep watching or to leave it running. Returns None if it
    is left running, as it is without a terminal.
    """
    console = console or Console()
    watch = _Watch(job, console, sleep)
    while True:
        try:
            description = watch.run(interval_s)
            break
        except KeyboardInterrupt:
            if not _keep_watching(job, console):
                return None
    for line in job.summary(description):
        console.out(line, highlight=False)
    return job.state(description)


class _Watch:
    def __init__(self, job: Job, console: Console, sleep: Callable[[float], None]) -> None:
        self.job, self.log = job, job.log()
        self.console, self.sleep = console, sleep
        self.metrics: dict[str, str] = {}
        self.state = ""

    def run(self, interval_s: float) -> dict[str, Any]:
        """Watch until the job ends; returns its last description."""
        with self.console.status("waiting for the job's status") as status:
            while True:
                description = self._retry(self.job.describe)
                self._show_new_lines()
                status.update(self._live_line(description))
                if self.job.state(description) in FINAL:
                    # The last lines may reach CloudWatch after the job has ended.
                    self.sleep(interval_s)
                    self._show_new_lines()
                    return description
                self.sleep(interval_s)

    def _show_new_lines(self) -> None:
        for host, text in self._retry(self.log.new_lines):
            self.console.out(f"{host} {text}", highlight=False)
            for metric in _LIVE_METRICS:
                if match := re.search(METRIC_REGEXES[metric], text):
                    self.metrics[metric] = match[1]

    def _live_line(self, description: dict[str, Any]) -> str:
        detail = description.get("SecondaryStatus")
        state = self.job.state(description) + (f" · {detail}" if detail else "")
        if state != self.state and not self.console.is_terminal:
            self.console.out(state, highlight=False)
        self.state = state
        known = [name for name in _LIVE_METRICS if name in self.metrics]
        return " · ".join([state, *(_LIVE_METRICS[m].format(self.metrics[m]) for m in known)])

    def _retry(self, call: Callable[[], T]) -> T:
        """The call's result; throttling and connection errors are retried without limit."""
        pause = 1.0
        while True:
            try:
                return call()
            except (exceptions.HTTPClientError, exceptions.ConnectionError) as error:
                reason = str(error)
            except exceptions.ClientError as error:
                reason = error.response["Error"]["Code"]
                if not reason.startswith(_TRANSIENT):
                    raise
            self.console.out(f"{reason}; retrying in {pause:.0f} s", highlight=False)
            self.sleep(pause)
            pause = min(pause * 2, _MAX_PAUSE_S)


def _keep_watching(job: Job, console: Console) -> bool:
    """Ask what Ctrl-C was meant to do, and do it; returns whether to keep watching."""
    answer = ""
    if console.is_terminal:
        try:
            answer = console.input("[s]top the job, [c]ontinue watching, Enter leaves it running: ")
        except (EOFError, KeyboardInterrupt):
            console.print()
    if answer.lower().startswith("c"):
        return True
    if answer.lower().startswith("s"):
        try:
            job.stop()
            console.out("stopping: the job has 120 s to shut down", highlight=False)
        except exceptions.ClientError as error:
            # The job may have ended in the meantime; the watch then shows its state.
            console.out(explain(error), highlight=False)
        return True
    stop = f'make sagemaker ARGS="stop {job.name}"'
    console.out(f"{job.name} keeps running; {stop} stops it", highlight=False)
    return False
