"""Watching a job: its log lines as they come, and one live line of where it is."""

import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

from botocore import exceptions
from rich.console import Console

from entry_point.contract.metrics_line import METRIC_REGEXES
from launch.aws.job_summary import summary
from launch.aws.sagemaker_job import FINAL, Job
from launch.request.launch_errors import explain

T = TypeVar("T")
_LIVE_METRICS = {
    "epoch": "epoch {}",
    "train:loss": "loss {}",
    "train:images_per_s": "{} images/s",
    "train:data_wait_pct": "data wait {} %",
}
_TRANSIENT_CODES = (
    "Throttling",
    "TooManyRequests",
    "RequestLimit",
    "Internal",
    "ServiceUnavailable",
)
_LONGEST_PAUSE_S = 60.0


def follow(
    job: Job,
    console: Console,
    *,
    interval_s: float = 5.0,
    sleep: Callable[[float], None] = time.sleep,
) -> str | None:
    """Show the job's lines and state until it ends; its last state.

    Ctrl-C asks whether to stop the job or only the watching; in the latter case, and where there is
    nobody to ask, the answer is None: the job goes on.
    """
    watch = _Watch(job, console, sleep)
    while True:
        try:
            description = watch.until_the_end(interval_s)
            break
        except KeyboardInterrupt:
            if not _goes_on_after_interrupt(job, console):
                return None
    for line in summary(job, description):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return job.state(description)


class _Watch:
    def __init__(self, job: Job, console: Console, sleep: Callable[[float], None]) -> None:
        self.job, self.lines = job, job.lines()
        self.console, self.sleep = console, sleep
        self.metrics: dict[str, str] = {}
        self.state = ""

    def until_the_end(self, interval_s: float) -> dict[str, Any]:
        with self.console.status("asking for the job") as status:
            while True:
                description = self._patiently(self.job.describe)
                self._show_new_lines()
                status.update(self._live_line(description))
                if self.job.state(description) in FINAL:
                    # The last lines may reach CloudWatch after the job's end.
                    self.sleep(interval_s)
                    self._show_new_lines()
                    return description
                self.sleep(interval_s)

    def _show_new_lines(self) -> None:
        for host, text in self._patiently(self.lines.new):
            self.console.print(f"{host} {text}", markup=False, highlight=False, soft_wrap=True)
            for metric in _LIVE_METRICS:
                if match := re.search(METRIC_REGEXES[metric], text):
                    self.metrics[metric] = match[1]

    def _live_line(self, description: dict[str, Any]) -> str:
        detail = description.get("SecondaryStatus")
        state = self.job.state(description) + (f" · {detail}" if detail else "")
        if state != self.state and not self.console.is_terminal:
            self.console.print(state, markup=False, highlight=False)
        self.state = state
        parts = [
            form.format(self.metrics[m]) for m, form in _LIVE_METRICS.items() if m in self.metrics
        ]
        return " · ".join([state, *parts])

    def _patiently(self, call: Callable[[], T]) -> T:
        """The call's answer, however long throttling or a dropped connection last."""
        pause = 1.0
        while True:
            try:
                return call()
            except (exceptions.HTTPClientError, exceptions.ConnectionError) as error:
                reason = str(error)
            except exceptions.ClientError as error:
                reason = error.response["Error"]["Code"]
                if not reason.startswith(_TRANSIENT_CODES):
                    raise
            self.console.print(
                f"{reason}; asking again in {pause:.0f} s", markup=False, highlight=False
            )
            self.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)


def _goes_on_after_interrupt(job: Job, console: Console) -> bool:
    """Ask what Ctrl-C meant; whether the watching goes on."""
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
            console.print("stopping: the job has 120 s to end in order", highlight=False)
        except exceptions.ClientError as error:
            # It may just have ended; the watching tells.
            console.print(explain(error), markup=False, highlight=False)
        return True
    console.print(
        f"{job.name} goes on; make sagemaker-stop ARGS={job.name} stops it", highlight=False
    )
    return False
