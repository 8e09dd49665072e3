"""Credentials in URIs are used, and written nowhere: not in the run folder, not in the log."""

import hashlib
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from entry_point.contract.hyperparameters import forget_credentials
from entry_point.contract.printable import masked
from launch.local import write_input_config
from tests.entry_point.training.training_jobs import run_job

SECRET = "hunter2-Zq%40"
URI = f"https://someone:{SECRET}@tracking.example:5000/path"
LOGGER = ["loggers=[tests.own_loggers.Telling]", f"logger_kwargs.Telling.uri={URI}"]


def files_with(folder: Path, secret: str) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 2
    return [str(path) for path in files if secret.encode() in path.read_bytes()]


@pytest.fixture(autouse=True)
def secret_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", URI)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_job_uses_credentials_and_writes_them_nowhere(
    tmp_path: Path, photo_folder: Path, ranks: int
) -> None:
    settings = [*LOGGER, "model.name=tests.own_models.told_net", f"model.kwargs.uri={URI}"]
    settings += ["trainer.report=true", f"trainer.nproc_per_host={ranks}", "trainer.epochs=1"]
    output = run_job(tmp_path, photo_folder, settings)
    used = (tmp_path / "output/data/digest").read_text()
    assert used == hashlib.sha256(URI.encode()).hexdigest()
    assert SECRET not in output and not files_with(tmp_path, SECRET)
    shown = "https://***@tracking.example:5000/path"
    assert f"connecting to {shown} as in {shown}" in output and f"{shown} refuses" in output
    assert f"uri: {shown}" in (tmp_path / "model/config.yaml").read_text()
    assert shown in (tmp_path / "output/data/report.html").read_text()
    # The masked values in the checkpoint are no other job's.
    settings[-1] = "trainer.epochs=2"
    assert "resuming from" in run_job(tmp_path, photo_folder, settings)
    assert not files_with(tmp_path, SECRET)


@pytest.mark.parametrize(
    "settings",
    [
        [f"data.root={URI}"],
        [f"trainer.epochs={URI}"],
        ["model.name=tests.own_models.told_net", f"model.kwargs.uri={URI}/nowhere"],
    ],
)
def test_an_error_tells_no_credentials(
    tmp_path: Path, photo_folder: Path, settings: list[str]
) -> None:
    code = 1 if "model" in settings[0] else 2
    output = run_job(tmp_path, photo_folder, settings, code=code)
    failure = (tmp_path / "output/failure").read_text()
    shown = URI.replace(f"someone:{SECRET}", "***")
    if "data.root" in settings[0]:
        shown = shown.replace("//", "/")  # it is a path
    assert shown in output and shown in failure
    assert SECRET not in output and not files_with(tmp_path, SECRET)


def test_the_ranks_configuration_is_removed_once_they_train(
    tmp_path: Path, photo_folder: Path
) -> None:
    """What kills the supervisor then leaves no credentials in the system's temporary folder."""
    run_job(tmp_path, photo_folder, ["model.name=tests.own_models.waiting_net", "trainer.epochs=1"])


def test_the_launchers_file_is_private_and_the_platforms_stays_as_it_is(tmp_path: Path) -> None:
    config = tmp_path / "input/config"
    write_input_config(tmp_path, LOGGER, hosts=["algo-1"], current="algo-1")
    file = config / "hyperparameters.json"
    assert SECRET in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    resources = json.loads((config / "resourceconfig.json").read_text())
    resources["current_instance_type"] = "ml.g5.xlarge"
    (config / "resourceconfig.json").write_text(json.dumps(resources))
    forget_credentials(config, LOGGER)
    assert SECRET in file.read_text()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("s3://bucket/a@b.jpg", "s3://bucket/a@b.jpg"),
        ("mail me@host, c:/me@host", "mail me@host, c:/me@host"),
        ("/tmp/HTTPS:/u:p@host/x", "/tmp/HTTPS:/***@host/x"),
        ("postgres://u:p@ss,word@db/x and http://token@h", "postgres://***@db/x and http://***@h"),
        ('{"a":"http://h","b":"c@d"}', '{"a":"http://h","b":"c@d"}'),
        ("ssh://***@host", "ssh://***@host"),
        (
            {"http://a:b@c": [("ftp://a:b@c", 1, None)]},
            {"http://***@c": [("ftp://***@c", 1, None)]},
        ),
    ],
)
def test_only_credentials_are_masked(value: Any, expected: Any) -> None:
    assert masked(value) == expected
