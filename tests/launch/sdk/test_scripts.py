"""What SDK v2 sends besides a job's own hyperparameters, and what the image makes of it."""

import json
from pathlib import Path

import pytest

from entry_point.config.hyperparameters import read_overrides
from entry_point.job.run_folder import ContractError
from tests.launch.conftest import BUCKET, ROLE, Aws
from tests.launch.sdk.environments import run_python

PROGRAM = """
import sys
from sagemaker.estimator import Estimator
from sagemaker.pytorch import PyTorch
from sagemaker.session import Session

NO_TELEMETRY = {"SchemaVersion": "1.0",
                "SageMaker": {"PythonSDK": {"Modules": {"TelemetryOptOut": True}}}}
kind, image, role, bucket, *script = sys.argv[1:]
options = {"entry_point": script[0], "source_dir": script[1]} if script else {}
{"Estimator": Estimator, "PyTorch": PyTorch}[kind](
    image_uri=image, role=role, instance_count=1, instance_type="ml.c7i.large",
    hyperparameters={"optim.lr": 0.1}, container_log_level=10, output_path=f"{bucket}/runs",
    code_location=f"{bucket}/code", sagemaker_session=Session(sagemaker_config=NO_TELEMETRY),
    **options,
).fit(wait=False, job_name="the-job")
"""


def sent_by(aws: Aws, folder: Path, kind: str, *script: str) -> Path:
    """Start a job with SDK v2; returns a folder with what its container gets."""
    image = aws.push_image()
    arguments = ["-c", PROGRAM, kind, image, ROLE, f"s3://{BUCKET}", *script]
    done = run_python("2", aws, folder, *arguments)
    assert done.returncode == 0, done.stderr
    (request,) = aws.made("CreateTrainingJob")
    (folder / "hyperparameters.json").write_text(json.dumps(request["HyperParameters"]))
    return folder


@pytest.mark.parametrize("kind", ["Estimator", "PyTorch"])
def test_a_script_sent_as_entry_point_is_refused(kind: str, aws: Aws, tmp_path: Path) -> None:
    folder = sent_by(aws, tmp_path, kind, "mine.py", f"s3://{BUCKET}/code.tar.gz")
    with pytest.raises(ContractError, match=r"sagemaker_program=mine\.py: "):
        read_overrides(folder)


def test_an_estimator_without_a_script_trains(aws: Aws, tmp_path: Path) -> None:
    assert read_overrides(sent_by(aws, tmp_path, "Estimator")) == ["optim.lr=0.1"]
