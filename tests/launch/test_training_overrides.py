"""A training key that does not exist is refused at the desk, by the job's own schema."""

import json
import subprocess
import sys

import pytest

from launch import job_config, sagemaker
from tests.launch.conftest import ROOT
from tests.launch.jobs import LEAST


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("optim.learning_rate=0.1", "optim.learning_rate=0.1: no such key"),
        ("trainer.epochs=-1", "trainer.epochs=-1"),
        ("trainer.epochs=many", "trainer.epochs=many"),
        ("model=resnet51", "model=resnet51: must be one of"),
        ("data.format=zip", "data.format=zip: must be one of"),
        ("name=first-try", "name=first-try: no such key"),
    ],
)
def test_wrong_training_override_ends_the_launch_in_one_line(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    override: str,
    reason: str,
) -> None:
    monkeypatch.setenv("DRY_RUN", "1")
    assert sagemaker.main(["train", *LEAST, override]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(reason) and err.count("\n") == 1


def test_right_training_overrides_pass() -> None:
    job_config.check_training(["data=folder", "model=resnet50", "optim.lr=0.5"])


def test_dry_run_needs_neither_torch_nor_an_sdk_nor_credentials() -> None:
    program = (
        "import sys\n"
        "from launch.sagemaker import main\n"
        "assert main(sys.argv[1:]) == 0\n"
        "loaded = {'torch', 'numpy', 'sagemaker', 'boto3'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "train", *LEAST, "data=folder"],
        cwd=ROOT,
        env={"DRY_RUN": "1", "AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["HyperParameters"] == {"hydra_overrides_000": '["data=folder"]'}
