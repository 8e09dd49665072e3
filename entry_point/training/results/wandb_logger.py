"""`loggers=[wandb]`: configuration and metrics in Weights & Biases; its client is an optional
package."""

from __future__ import annotations

from dataclasses import asdict
from functools import cached_property
from typing import Any

from entry_point.training.results.log import Record
from entry_point.training.results.loggers import LoggedRun


class WandbLogger:
    """Logs to the account of `WANDB_API_KEY`, or with `WANDB_MODE=offline` to files in
    output/data/wandb in the run folder. Connects with the first record.

    `init` holds arguments of `wandb.init`, such as `project` and `entity`, or `id` and `resume` to
    continue a run; without these two, each process starts one.
    """

    def __init__(self, run: LoggedRun, **init: Any) -> None:
        self._run, self._init = run, init

    def log(self, record: Record) -> None:
        self._connected.log(record)

    def close(self) -> None:
        if "_connected" in vars(self):
            import wandb

            self._connected.finish()
            # `finish` returns before W&B's process has written all, and the job's end kills it.
            wandb.teardown()

    @cached_property
    def _connected(self) -> Any:
        """Returns an open run of W&B."""
        import wandb

        run = wandb.init(
            name=self._run.name,
            dir=self._run.folder.output_data,
            config=asdict(self._run.config),
            settings=wandb.Settings(console="off", quiet=True),
            **self._init,
        )
        # W&B's own step counter only grows: it would drop evaluations that a resumed job repeats.
        run.define_metric("*", step_metric="step")
        return run
