"""Where a run stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from entry_point.config.config_errors import ConfigError
from entry_point.training.results.metrics_log import Record


@dataclass
class Progress:
    """(epoch, step) is the next step to take."""

    steps_per_epoch: int
    epoch: int = 0
    step: int = 0
    accuracy: float = 0.0
    """Of the last evaluation."""
    best_accuracy: float = 0.0
    """Of the epochs that are over."""

    @property
    def global_step(self) -> int:
        """Optimizer steps taken since the start of the run."""
        return self.epoch * self.steps_per_epoch + self.step

    @property
    def steps_left(self) -> int:
        """In this epoch."""
        return self.steps_per_epoch - self.step

    def check_plan(self, epochs: int) -> None:
        """Raise ConfigError where more is done than `epochs`, trainer.epochs, asks for."""
        if self.global_step > epochs * self.steps_per_epoch:
            least = self.epoch + (self.step > 0)
            raise ConfigError(
                f"trainer.epochs={epochs}: the checkpoint to go on from is further, at epoch "
                f"{self.epoch}, step {self.step}; set trainer.epochs={least} or more, "
                "train under another name, or set trainer.resume=false"
            )

    def end_epoch(self) -> bool:
        """Go on to the next epoch; returns whether this one's accuracy is the best so far."""
        best = self.accuracy > self.best_accuracy
        self.best_accuracy = max(self.accuracy, self.best_accuracy)
        self.epoch, self.step = self.epoch + 1, 0
        return best

    def stamp(self, values: Mapping[str, float | int]) -> Record:
        """`values` as a record of this moment."""
        return {"epoch": self.epoch, "step": self.global_step, **values}

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {name: value for name, value in vars(self).items() if name != "steps_per_epoch"}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go to where `state` was taken; it may hold other things too."""
        for name in self.state():
            setattr(self, name, state[name])
