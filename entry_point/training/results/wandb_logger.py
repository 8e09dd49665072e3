"""`loggers=[wandb]`: configuration and metrics in Weights & Biases; its client is an optional
package."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from entry_point.training.results.log import Record
from entry_point.training.results.loggers import LoggedRun, require_package


class WandbLogger:
    """Logs to the account of `WANDB_API_KEY`, or with `WANDB_MODE=offline` to files in
    output/data/wandb in the run folder. It connects with the first record.

    `init` are other arguments of `wandb.init`, such as `project` and `entity`, or `id` and `resume`
    to continue a run; without these two, each process starts one.
    """

    def __init__(self, run: LoggedRun, **init: Any) -> None:
        require_package("wandb", module="wandb", package="wandb")
        self._run, self._init = run, init
        self._wandb: Any = None

    def log(self, record: Record) -> None:
        if self._wandb is None:
            self._connect()
        self._wandb.log(record)

    def close(self) -> None:
        if self._wandb is not None:
            import wandb

            self._wandb.finish()
            # `finish` returns before W&B's process has written all; a job that ends takes it along.
            wandb.teardown()

    def _connect(self) -> None:
        import wandb

        self._wandb = wandb.init(
            name=self._run.name,
            dir=self._run.folder.output_data,
            config=asdict(self._run.config),
            settings=wandb.Settings(console="off", quiet=True),
            **self._init,
        )
        # Its own count of steps only grows: it would drop an evaluation that a resumed job repeats.
        self._wandb.define_metric("*", step_metric="step")
