"""When a checkpoint is due: every so many steps, and every so many minutes."""

from __future__ import annotations

import time

from entry_point.config.train_config import TrainerConfig


class CheckpointSchedule:
    """Of one rank; all ranks come to the same answers."""

    def __init__(self, trainer: TrainerConfig, step: int) -> None:
        self._steps, self._minutes = (
            trainer.checkpoint_every_steps,
            trainer.checkpoint_every_minutes,
        )
        self.saved(step)

    def saved(self, step: int) -> None:
        """There is a checkpoint of `step`."""
        self._saved_at, self._saved_when = step, time.monotonic()

    def time_is_up(self) -> bool:
        """By this rank's clock."""
        waited = time.monotonic() - self._saved_when
        return self._minutes is not None and waited > 60 * self._minutes

    def is_due(self, step: int, time_is_up: bool) -> bool:
        """After `step`; `time_is_up` is what the ranks agreed on, one step late: time was up before
        what was saved in the last step."""
        by_steps = self._steps is not None and step % self._steps == 0
        return by_steps or (time_is_up and self._saved_at < step - 1)
