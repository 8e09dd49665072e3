"""Credentials in a setting are refused in a line that names the key and never the credentials."""

from pathlib import Path

import pytest

from entry_point.config.compose import load_config
from entry_point.config.config_errors import ConfigError, refuse_in_overrides
from entry_point.config.predict_config import PredictConfig
from entry_point.config.train_config import load_train_config
from launch import docker, local
from launch.sagemaker.config import load_launch_config
from tests.entry_point.training.training_jobs import run_job
from tests.platform_files import write_input_config

SECRET = "hunter2-Zq%40"
URI = f"https://someone:{SECRET}@tracking.example:5000/path"


def check(line: str, key: str) -> None:
    assert line.startswith(f"{key}: has credentials in a URI: put it into an environment variable")
    assert "hunter2" not in line and "someone" not in line and "\n" not in line


@pytest.mark.parametrize(
    ("override", "key"),
    [
        (f"logger_kwargs.mlflow.uri={URI}", "logger_kwargs.mlflow.uri"),
        (f"data.root={URI}", "data.root"),
        (f"trainer.epochs={URI}", "trainer.epochs"),
        (f"+no.such.key=http://{SECRET}@host", "no.such.key"),
        (f"logger_kwargs={{mlflow:{{uri:'{URI}'}}}}", "logger_kwargs"),
        (f"loggers=[a,'{URI}']", "loggers"),
        (f"pipeline={URI}", "pipeline"),
        (f"data.root=[{URI}", "data.root"),
        (f"model.kwargs.urls='HTTP://{SECRET}@host,b'", "model.kwargs.urls"),
        (URI, "an argument"),
    ],
)
def test_an_override_with_credentials_is_refused(override: str, key: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_train_config(["trainer.seed=1", override])
    check(str(raised.value), key)


def test_credentials_that_come_from_a_file_or_a_variable_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRACKING", URI)
    with pytest.raises(ConfigError) as raised:
        load_train_config(["model.kwargs.places=[{at:'${oc.env:TRACKING}'}]"])
    check(str(raised.value), "model.kwargs.places.at")


def test_other_commands_and_the_launchers_refuse_them_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config("predict", PredictConfig, [f"input={URI}"])
    check(str(raised.value), "input")
    for key in ("job.channels.training", "job.tags.x", "resume_from", "optim.name"):
        with pytest.raises(ConfigError) as raised:
            load_launch_config([f"{key}={URI}"])
        check(str(raised.value), key)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        local.main([f"data.root={URI}"])
    check(capsys.readouterr().err.strip().removeprefix("local-train: "), "data.root")
    assert docker.main(["train", f"data.root={URI}"])
    check(capsys.readouterr().err.strip().removeprefix("docker-train: "), "data.root")
    assert not (tmp_path / "runs").exists()


def test_variables_of_a_job_may_have_them() -> None:
    config, _ = load_launch_config([f"job.environment.MLFLOW_TRACKING_URI={URI}"])
    assert config.job.environment == {"MLFLOW_TRACKING_URI": URI}


def test_a_job_with_credentials_in_its_hyperparameters_fails_and_writes_them_nowhere(
    tmp_path: Path, photo_folder: Path
) -> None:
    write_input_config(tmp_path, ["loggers=[mlflow]", f"logger_kwargs.mlflow.uri={URI}"])
    output = run_job(tmp_path, photo_folder, code=2)
    check((tmp_path / "output/failure").read_text(), "logger_kwargs.mlflow.uri")
    assert output.count("logger_kwargs.mlflow.uri: has credentials") == 1
    assert "hunter2" not in output
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    having = [path.name for path in files if b"hunter2" in path.read_bytes()]
    assert having == ["hyperparameters.json"]


@pytest.mark.parametrize(
    "override",
    [
        "data.root=s3://bucket/a@b.jpg",
        "data.root=/photos/me@host",
        "data.root=c:/me@host",
        "model.weights=https://host/a?to=me@host",
        'note={"a":"http://h","b":"c@d"}',
        "job.environment.WANDB_API_KEY=0123",
    ],
)
def test_other_values_are_not_refused(override: str) -> None:
    refuse_in_overrides([override])
