"""Writes `model/` from checkpoints: after each evaluation that is exported, and where a resumed run
lacks it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from entry_point.config.compose import resolved_yaml
from entry_point.config.train_config import TrainConfig
from entry_point.job.known_tasks import Metric
from entry_point.job.run_folder import RunFolder
from entry_point.model_folder import WEIGHTS, save_model
from entry_point.training.checkpoints import State, load_best
from entry_point.training.progress import Progress
from entry_point.training.results.report import remove_results
from entry_point.training.tasks.task import Task


class Export:
    """Writes the model of a run: of the last evaluation or the best one, see `trainer.export`."""

    def __init__(
        self,
        run: RunFolder,
        config: TrainConfig,
        task: Task,
        classes: list[str],
        metric: Metric,
        code: Mapping[Path, bytes],
    ) -> None:
        """`classes` are those of the train split; `metric` decides which evaluation is the best;
        `code` is the result of `read_code`."""
        self._run, self._config, self._task, self._metric = run, config, task, metric
        self._classes, self._code, self._best = classes, code, config.trainer.export == "best"

    def takes(self, progress: Progress, best: bool) -> bool:
        """Returns whether to export an epoch that has ended and was evaluated. `best`: it is the
        best so far. Until an epoch has a value to compare, each is exported."""
        return best or not self._best or progress.best_value is None

    def write(self, state: State) -> None:
        """Write the model of a checkpoint whose epoch was evaluated."""
        progress, learner = state["progress"], state["learner"]
        reached = f"epoch {progress['epoch']} of {self._config.trainer.epochs}"
        if (value := progress.get("value")) is not None:
            reached += f", validation {self._metric.label} {self._metric.show(value)}"
        remove_results(self._run)
        save_model(
            self._run.model,
            learner.get("ema", learner["model"]),
            self._task,
            self._classes,
            resolved_yaml(self._config),
            self._code,
            reached,
        )

    def restore(self, saved: State, progress: Progress) -> None:
        """Write the model of an earlier start if it is missing, as on another machine, to which
        only checkpoints are copied. `saved` is the checkpoint from which the run resumes.

        With `trainer.export=last`, a checkpoint within an epoch has no evaluated model; the next
        evaluation writes one.
        """
        if (self._run.model / WEIGHTS).exists():
            return
        if (best := self.best()) is not None:
            self.write(best)
        elif not progress.step and progress.epoch - 1 in self._config.trainer.evaluated_epochs:
            self.write(saved)

    def best(self) -> State | None:
        """Returns the best checkpoint, or None if there is none or `trainer.export` is `last`."""
        return load_best(self._run.checkpoints) if self._best else None
