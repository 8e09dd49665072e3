"""`loggers=[mlflow]`: parameters and metrics in MLflow; its client is an optional package."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib.util import find_spec
from itertools import islice
from typing import Any

from entry_point.config.config_errors import ConfigError
from entry_point.training.progress import read_tracked
from entry_point.training.results.log import Record
from entry_point.training.results.loggers import LoggedRun

_MOST_PARAMS = 100
_LONGEST_PARAM = 6000


class MlflowLogger:
    """Logs to `uri`: a server, a folder, or the ARN of one of SageMaker's tracking servers.

    Without it, to `MLFLOW_TRACKING_URI`, else to output/data/mlflow in the run folder. `experiment`
    is `MLFLOW_EXPERIMENT_NAME` by default. `run_id` names a run of MLflow to continue; without it,
    each process starts one, which gets the earlier records too. It connects with the first record.
    """

    def __init__(
        self,
        run: LoggedRun,
        uri: str | None = None,
        experiment: str | None = None,
        run_id: str | None = None,
    ) -> None:
        if find_spec("mlflow") is None:
            raise ConfigError(
                "loggers",
                "mlflow",
                "needs the package mlflow-skinny: run `make setup EXTRAS=mlflow`, or build the "
                "image with `make image EXTRAS=mlflow`",
            )
        self._run = run
        local = str(run.folder.output_data / "mlflow")
        self._uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or local
        self._experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        self._client: Any = None
        self._id = run_id or ""

    def log(self, record: Record) -> None:
        if self._client is None:
            self._connect()
        self._send(record)

    def close(self) -> None:
        if self._client is not None:
            finished = read_tracked(self._run.folder).finished
            self._client.set_terminated(self._id, "FINISHED" if finished else "KILLED")

    def _connect(self) -> None:
        # Without these, MLflow reports usage over the network, and refuses folders.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        import mlflow
        from mlflow.entities import Param

        # SageMaker's plugin signs its requests for this one, not for the client's.
        mlflow.set_tracking_uri(self._uri)
        self._client = mlflow.MlflowClient()
        if self._id:
            self._client.update_run(self._id, status="RUNNING")
            return
        found = self._client.get_experiment_by_name(self._experiment)
        place = found.experiment_id if found else self._client.create_experiment(self._experiment)
        self._id = self._client.create_run(place, run_name=self._run.name).info.run_id
        values = iter(_flat(asdict(self._run.config)))
        while params := [Param(k, v[:_LONGEST_PARAM]) for k, v in islice(values, _MOST_PARAMS)]:
            self._client.log_batch(self._id, params=params)
        for earlier in self._run.earlier:
            self._send(earlier)

    def _send(self, record: Record) -> None:
        from mlflow.entities import Metric

        now, step = int(time.time() * 1000), int(record["step"])
        metrics = [
            Metric(key, float(value), now, step)
            for key, value in record.items()
            if key not in ("epoch", "step")
        ]
        self._client.log_batch(self._id, metrics=metrics)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted key -> value as text."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, str(value)
