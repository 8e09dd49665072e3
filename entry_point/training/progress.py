"""The progress of a run, and the metric that decides which of its epochs is the best."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import TrainerConfig
from entry_point.job.known_tasks import Metric
from entry_point.job.run_folder import RunFolder
from entry_point.job.text import duration
from entry_point.job.whole_file import write_text
from entry_point.training.results.log import Record

MINUTE_S = 60.0
_TRACKED = "tracked.json"
"""The file in `output/data` that holds `Tracked`."""


@dataclass(frozen=True)
class Tracked:
    """The facts that a run leaves for `make compare` and `make sweep`."""

    metric: Metric | None
    """The metric that decides, which for your own task only the run knows; None in runs of 1.0."""
    images: str | None
    """Fingerprint of the validation images; None in runs of version 1.0."""
    finished: bool | None
    """Whether the run has finished; None in version 1, whose finished runs have a `model/`."""


def write_tracked(run: RunFolder, metric: Metric, images: str, *, finished: bool) -> None:
    """Write the file that `read_tracked` reads."""
    content = {**asdict(metric), "images": images, "finished": finished}
    write_text(run.output_data / _TRACKED, json.dumps(content) + "\n")


def read_tracked(run: RunFolder) -> Tracked:
    """Read the file that `write_tracked` wrote."""
    file = run.output_data / _TRACKED
    content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    images, finished = content.pop("images", None), content.pop("finished", None)
    return Tracked(Metric(**content) if content else None, images, finished)


def tracked_value(metric: Metric, record: Record) -> float | None:
    """Returns the metric's value in the record of an evaluation; None without one, or for NaN.

    Version 1 evaluated both averaged and raw weights; its best checkpoint has the better ones.
    """
    best: float | None = None
    for key in (metric.key, f"{metric.key}_raw"):
        if metric.is_better(value := record.get(key), than=best):
            best = value
    return best


class TimeLeft:
    """Estimates, at most once a minute, how long the rest of the run will take."""

    def __init__(self, steps: int) -> None:
        """`steps`: number of steps of the whole run."""
        self._steps = steps
        self._first: tuple[int, float] | None = None
        """The step, and its time, from which the speed is measured, including evaluations."""
        self._said = 0.0

    def line(self, step: int) -> str | None:
        """Returns the line to log after `step`; None within a minute of the last one."""
        now = time.monotonic()
        if self._first is None:
            self._first, self._said = (step, now), now
        first, started = self._first
        if now - self._said < MINUTE_S or step == first:
            return None
        self._said = now
        left = (self._steps - step) * (now - started) / (step - first)
        return f"step {step:,} of {self._steps:,}; about {duration(left)} left"


@dataclass
class Progress:
    """The next step to take is (epoch, step); both count from 0."""

    steps_per_epoch: int
    metric: Metric
    """The metric that decides which epoch is the best."""
    epoch: int = 0
    step: int = 0
    value: float | None = None
    """The last evaluation's value; None before the first, or if it was not finite."""
    best_value: float | None = None
    """The best value of the finished epochs."""
    stale: int = 0
    """Number of evaluations since the best one."""

    @property
    def global_step(self) -> int:
        """Number of optimizer steps taken since the start of the run."""
        return self.epoch * self.steps_per_epoch + self.step

    @property
    def steps_left(self) -> int:
        """Number of steps left in this epoch."""
        return self.steps_per_epoch - self.step

    def check_epochs(self, epochs: int) -> None:
        """Raise ConfigError if the run is already past `epochs` (trainer.epochs)."""
        if self.global_step > epochs * self.steps_per_epoch:
            least = self.epoch + (self.step > 0)
            raise ConfigError(
                "trainer.epochs",
                epochs,
                f"the checkpoint is already at epoch {self.epoch}, step {self.step}; set "
                f"trainer.epochs={least} or more, or use another name to restart from scratch",
            )

    def judge(self, metrics: Mapping[str, float]) -> None:
        """Take the value of an evaluation from its metrics."""
        self.value = metrics.get(self.metric.name)
        better = self.metric.is_better(self.value, than=self.best_value)
        self.stale = 0 if better else self.stale + 1

    def is_complete(self, trainer: TrainerConfig) -> bool:
        """Returns whether the run is complete: all epochs are done, or early stopping ends it."""
        return self.epoch >= trainer.epochs or self.stops_early(trainer)

    def stops_early(self, trainer: TrainerConfig) -> bool:
        return trainer.early_stopping is not None and self.stale >= trainer.early_stopping

    def end_epoch(self) -> bool:
        """Move to the next epoch; returns whether this one's value is the best so far."""
        best = self.metric.is_better(self.value, than=self.best_value)
        if best:
            self.best_value = self.value
        self.epoch, self.step = self.epoch + 1, 0
        return best

    def stamp(self, values: Mapping[str, float | int]) -> Record:
        """Returns `values` with the current epoch and step."""
        return {"epoch": self.epoch, "step": self.global_step, **values}

    def state(self) -> dict[str, Any]:
        """Returns the state that a checkpoint keeps."""
        given = ("steps_per_epoch", "metric")
        return {name: value for name, value in vars(self).items() if name not in given}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned. Values that an older version did not save stay as they
        are; unknown ones are ignored."""
        for name in self.state().keys() & state.keys():
            setattr(self, name, state[name])
