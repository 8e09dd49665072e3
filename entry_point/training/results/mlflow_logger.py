"""`loggers=[mlflow]`: parameters and metrics in MLflow; its client is an optional package."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Any

from entry_point.config.commands import flat
from entry_point.training.results.log import Record
from entry_point.training.results.loggers import LoggedRun


class MlflowLogger:
    """Logs to `uri`: a server, a folder, or the ARN of a tracking server of SageMaker.

    `uri` defaults to `MLFLOW_TRACKING_URI`, else to output/data/mlflow in the run folder;
    `experiment` to `MLFLOW_EXPERIMENT_NAME`. `run_id`, by default `MLFLOW_RUN_ID`, names a run of
    MLflow to continue; without it, each process starts one. Connects with the first record.
    """

    def __init__(
        self,
        run: LoggedRun,
        uri: str | None = None,
        experiment: str | None = None,
        run_id: str | None = None,
    ) -> None:
        self._run, self._experiment, self._id = run, experiment, run_id
        local = str(run.folder.output_data / "mlflow")
        self._uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or local

    def log(self, record: Record) -> None:
        values = {name: value for name, value in record.items() if name not in ("epoch", "step")}
        self._connected.log_metrics(_renamed(values), step=int(record["step"]))

    def close(self) -> None:
        if "_connected" in vars(self):
            self._connected.end_run()

    @cached_property
    def _connected(self) -> Any:
        """Returns MLflow's client, with an open run."""
        # By default, MLflow reports its usage over the network, and refuses folders.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        import mlflow

        mlflow.set_tracking_uri(self._uri)
        if self._experiment:
            mlflow.set_experiment(self._experiment)
        started = mlflow.start_run(self._id, run_name=None if self._id else self._run.name)
        if not started.data.params:  # parameters of a continued run cannot change
            mlflow.log_params(_renamed(flat(asdict(self._run.config))))
        return mlflow


def _renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values under names that MLflow accepts: `*` of a pattern becomes `_`."""
    return {re.sub(r"[^\w./: -]", "_", name): value for name, value in values.items()}
