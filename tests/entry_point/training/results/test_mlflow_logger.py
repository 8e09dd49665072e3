"""loggers=[mlflow]: a folder, a real server, and SageMaker's way to one."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from entry_point.config import resolve
from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import TrainConfig
from entry_point.training.named_parts import require_named_parts
from tests.entry_point.training import forked
from tests.entry_point.training.results import mlflow_server
from tests.entry_point.training.results.logging_runs import log_to, losses, warnings_in
from tests.entry_point.training.training_jobs import read_records

ARN = "arn:aws:sagemaker:eu-west-1:123456789012:mlflow-tracking-server/ours"


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("TRACKING_URI", "EXPERIMENT_NAME", "EXPERIMENT_ID", "RUN_ID")
    for name in names:
        monkeypatch.delenv(f"MLFLOW_{name}", raising=False)
    # MLflow keeps what another test has chosen: a process has one run.
    monkeypatch.setattr("mlflow.tracking.fluent._active_experiment_id", None)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


def runs(uri: str, experiment: str = "Default") -> tuple[Any, list[Any]]:
    """A client, and the experiment's runs in the order of their starts."""
    import mlflow

    client = mlflow.MlflowClient(uri)
    found = client.get_experiment_by_name(experiment)
    return client, client.search_runs([found.experiment_id], order_by=["start_time ASC"])


def only_run(uri: str, experiment: str = "Default") -> tuple[Any, Any]:
    """A client, and the only run in the experiment."""
    client, (run,) = runs(uri, experiment)
    return client, run


def history(client: Any, run: Any, key: str) -> list[tuple[int, float]]:
    values = client.get_metric_history(run.info.run_id, key)
    return [(metric.step, metric.value) for metric in values]


def test_a_resumed_job_starts_a_run_at_the_resume(tmp_path: Path, photo_folder: Path) -> None:
    root, overrides = tmp_path / "job", ["loggers=[mlflow]", "trainer.epochs=4"]
    forked.run_until_step(root, photo_folder, overrides, 2, signal.SIGTERM)
    before = read_records(root)
    assert forked.run(root, photo_folder, overrides) == 0
    client, (first, second) = runs(str(root / "output" / "data" / "mlflow"))
    records = read_records(root)
    assert records[: len(before)] == before
    for run, logged in ((first, before), (second, records[len(before) :])):
        assert (run.info.run_name, run.info.status) == ("job", "FINISHED")
        for key in ("loss", "lr", "val_loss"):
            values = [(record["step"], record[key]) for record in logged if key in record]
            assert history(client, run, key) == values
    assert second.data.params["optim.name"] == "sgd"
    assert "TensorBoard" not in (root / "log").read_text()


def test_the_run_of_the_environment_is_continued_in_a_database_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    log_to(tmp_path, ["mlflow"], losses(5, 4), uri=uri, experiment="photos")
    _, run = only_run(uri, "photos")
    monkeypatch.setenv("MLFLOW_RUN_ID", run.info.run_id)
    log_to(tmp_path, ["mlflow"], losses(3, first=3), resumed_at=2, uri=uri)
    client, run = only_run(uri, "photos")
    assert history(client, run, "loss") == [(1, 5.0), (2, 4.0), (3, 3.0)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The URL of a real tracking server, and the file with the requests' signatures."""
    folder = tmp_path_factory.mktemp("server")
    command = [sys.executable, mlflow_server.__file__, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port, "the server did not start"
        yield f"http://127.0.0.1:{port}", folder / "authorization"
        process.kill()


def test_the_server_and_experiment_of_the_environment_take_a_run(
    tmp_path: Path, server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server[0])
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "photos")
    log_to(tmp_path, ["mlflow"], losses(5, 4))
    client, run = only_run(server[0], "photos")
    assert history(client, run, "loss") == [(1, 5.0), (2, 4.0)]
    assert run.info.run_name == "a-run" and run.data.params["optim.name"] == "sgd"


def test_requests_to_a_managed_server_are_signed(
    tmp_path: Path,
    server: tuple[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    url, authorization = server
    monkeypatch.setenv("SAGEMAKER_MLFLOW_CUSTOM_ENDPOINT", url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    log_to(tmp_path, ["mlflow"], losses(5, 4), uri=ARN)
    assert not warnings_in(caplog)
    signed = authorization.read_text().splitlines()
    assert signed and all(
        line.startswith("AWS4-HMAC-SHA256 Credential=AKIATEST/")
        and "/eu-west-1/sagemaker-mlflow/" in line
        for line in signed
    )
    client, run = only_run(url)
    assert history(client, run, "loss") == [(1, 5.0), (2, 4.0)]


def test_a_server_that_is_not_there_costs_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    log_to(tmp_path, ["mlflow"], losses(5, 4), uri="http://127.0.0.1:9")
    (line,) = warnings_in(caplog)
    assert line.startswith("logger mlflow failed and is off; the job continues: ")
    assert "127.0.0.1" in line
    assert len(read_records(tmp_path)) == 2


def test_without_the_package_the_line_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError) as caught:
        require_named_parts(TrainConfig(loggers=["mlflow"]), tmp_path)
    assert str(caught.value) == (
        "loggers=mlflow: needs the package mlflow: run `make setup EXTRAS=mlflow`, or build the "
        "image with `make image EXTRAS=mlflow`"
    )


def test_names_that_mlflow_does_not_take_are_changed(tmp_path: Path, photo_folder: Path) -> None:
    overrides = ["loggers=[mlflow]", "trainer.epochs=1", "optim.groups={6.*:{lr:0.5}}"]
    assert forked.run(tmp_path / "job", photo_folder, overrides) == 0
    _, run = only_run(str(tmp_path / "job" / "output" / "data" / "mlflow"))
    assert run.data.params["optim.groups.6._.lr"] == "0.5"
    assert {"loss", "val_accuracy"} <= run.data.metrics.keys()
    log_to(tmp_path, ["mlflow"], [{"epoch": 0, "step": 1, "val_mAP@0.5": 0.25}])
    _, run = only_run(str(tmp_path / "output" / "data" / "mlflow"))
    assert run.data.metrics == {"val_mAP_0.5": 0.25}
