"""`loggers=[wandb]`: configuration and metrics in Weights & Biases; its client is an optional
package."""

from __future__ import annotations

from dataclasses import asdict
from importlib.util import find_spec
from typing import Any
from uuid import uuid4

from entry_point.config.config_errors import ConfigError
from entry_point.contract.printable import masked
from entry_point.contract.whole_file import write_text
from entry_point.training.results.log import Record
from entry_point.training.results.loggers import LoggedRun

RUN_FILE = "wandb.txt"
"""In the checkpoint folder: the id of the W&B run that a resumed job continues."""


class WandbLogger:
    """Logs to the account of `WANDB_API_KEY`, or with `WANDB_MODE=offline` to files in
    output/data/wandb in the run folder. It connects with the first record.

    `init` are other arguments of `wandb.init`, such as `project` and `entity`.
    """

    def __init__(self, run: LoggedRun, **init: Any) -> None:
        if find_spec("wandb") is None:
            raise ConfigError(
                "loggers",
                "wandb",
                "needs the package wandb: run `make setup EXTRAS=wandb`, or build the image with "
                "`make image EXTRAS=wandb`",
            )
        self._run, self._init = run, init
        self._wandb: Any = None

    def log(self, record: Record) -> None:
        missing = self._connect() if self._wandb is None else []
        for each in (*missing, record):
            self._wandb.log(each)

    def close(self) -> None:
        if self._wandb is not None:
            import wandb

            self._wandb.finish()
            # `finish` returns before W&B's process has written all; a job that ends takes it along.
            wandb.teardown()

    def _connect(self) -> list[Record]:
        """Start the run, or continue that of the earlier process; returns what it lacks."""
        import wandb

        file, earlier = self._run.folder.checkpoints / RUN_FILE, list(self._run.earlier)
        continues = bool(earlier) and file.is_file()
        if not continues:
            write_text(file, uuid4().hex[:8])
        self._wandb = wandb.init(
            id=file.read_text(encoding="utf-8"),
            resume="allow",
            name=self._run.name,
            dir=self._run.folder.output_data,
            config=masked(asdict(self._run.config)),
            settings=wandb.Settings(console="off", quiet=True),
            **self._init,
        )
        # Its own count of steps only grows: it would drop an evaluation that a resumed job repeats.
        self._wandb.define_metric("*", step_metric="step")
        return [] if continues else earlier
