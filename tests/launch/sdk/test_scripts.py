"""A script that SDK v2 sends beside a job's own hyperparameters, and what the image makes of it."""

import json
from pathlib import Path

import pytest

from entry_point.config.hyperparameters import read_overrides
from entry_point.job.run_folder import ContractError
from tests.launch.conftest import BUCKET, IMAGE, ROLE, Aws
from tests.launch.sdk.environments import submit

PROGRAM = """
import sys
from sagemaker.pytorch import PyTorch
from sagemaker.session import Session

NO_TELEMETRY = {"SchemaVersion": "1.0",
                "SageMaker": {"PythonSDK": {"Modules": {"TelemetryOptOut": True}}}}
image, role, bucket = sys.argv[1:]
PyTorch(
    image_uri=image, role=role, instance_count=1, instance_type="ml.c7i.large",
    hyperparameters={"optim.lr": 0.1}, output_path=f"{bucket}/runs",
    entry_point="mine.py", source_dir=f"{bucket}/code.tar.gz", code_location=f"{bucket}/code",
    sagemaker_session=Session(sagemaker_config=NO_TELEMETRY),
).fit(wait=False, job_name="the-job")
"""


def test_a_script_sent_as_entry_point_is_refused(aws: Aws, tmp_path: Path) -> None:
    submit("2", aws, tmp_path, PROGRAM, IMAGE, ROLE, f"s3://{BUCKET}")
    (request,) = aws.made("CreateTrainingJob")
    (tmp_path / "hyperparameters.json").write_text(json.dumps(request["HyperParameters"]))
    way = r"sagemaker_program=mine\.py: .*job\.code=true, .* ModelTrainer\(source_code=\.\.\.\)"
    with pytest.raises(ContractError, match=way):
        read_overrides(tmp_path)
