"""`launch.notebook` returns the SDK's own object, bound and checked; the example notebook runs."""

import json
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

from launch.aws.sdk.send import differences, without_harmless
from tests.launch.conftest import BUCKET, ROLE, ROOT, Aws
from tests.launch.sdk.environments import ENVIRONMENTS, run_python

JOB = [
    f"job.role={ROLE}",
    f"job.output=s3://{BUCKET}/runs",
    "data=folder",
    f"job.channels.training=s3://{BUCKET}/photos/",
    "optim.lr=0.1",
]
BEGIN = {"2": "fit", "3": "train"}
TRAINER = "import sys\nfrom launch.notebook import trainer\n"
CAUGHT = "except Exception as error:\n    print(error)\n"
TWO_JOBS = """
import os, sys
import {telemetry} as telemetry
telemetry._send_telemetry_request = lambda *_: print("TELEMETRY")
from launch.notebook import trainer
t = trainer(*sys.argv[1:])
print([kind.__module__ + "." + kind.__name__ for kind in type(t).__mro__][1])
t.{begin}()
t.{begin}(wait=False)
print([name for name in os.environ if name.startswith("SAGEMAKER_")])
"""
TELEMETRY = {
    "2": "sagemaker.telemetry.telemetry_logging",
    "3": "sagemaker.core.telemetry.telemetry_logging",
}
OWN_CLASS = {
    "2": "sagemaker.estimator.Estimator",
    "3": "sagemaker.train.model_trainer.ModelTrainer",
}
# The kernel: the SDK's environment, with the kernel's own packages behind.
KERNEL = (
    "import sys; sys.path.append(sys.argv.pop(1)); import runpy; "
    "runpy.run_module('ipykernel_launcher', run_name='__main__')"
)


@pytest.mark.parametrize("sdk", ENVIRONMENTS)
def test_each_job_of_a_trainer_has_a_new_name_and_its_own_checkpoints(
    aws: Aws, tmp_path: Path, sdk: str
) -> None:
    program = TWO_JOBS.format(telemetry=TELEMETRY[sdk], begin=BEGIN[sdk])
    arguments = [*JOB, f"target.image={aws.push_image()}"]
    done = run_python(sdk, aws, tmp_path, "-c", program, *arguments)
    assert done.returncode == 0, done.stderr
    assert OWN_CLASS[sdk] in done.stdout and "TELEMETRY" not in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
    first, second = aws.made("CreateTrainingJob")
    names = [sent["TrainingJobName"] for sent in (first, second)]
    assert len({*names}) == 2 and all(name.startswith("image-training-") for name in names)
    for sent in (first, second):
        (channel,) = sent["InputDataConfig"]
        assert channel["DataSource"]["S3DataSource"]["S3Uri"] == f"s3://{BUCKET}/photos/"
        below = f"s3://{BUCKET}/runs/{sent['TrainingJobName']}"
        assert sent["CheckpointConfig"]["S3Uri"] == f"{below}/checkpoints"
        assert sent["TensorBoardOutputConfig"]["S3OutputPath"] == f"{below}/tensorboard"


@pytest.mark.parametrize("sdk", ENVIRONMENTS)
def test_a_trainer_sends_what_the_command_line_prints(aws: Aws, tmp_path: Path, sdk: str) -> None:
    arguments = [*JOB, f"target.image={aws.push_image()}", "job.name=mine"]
    program = f"{TRAINER}trainer(*sys.argv[1:]).{BEGIN[sdk]}()"
    command = ("-m", "launch.sagemaker", "train")
    shown = json.loads(run_python(sdk, aws, tmp_path, *command, *arguments, DRY_RUN="1").stdout)
    done = run_python(sdk, aws, tmp_path, "-c", program, *arguments)
    assert done.returncode == 0, done.stderr
    (sent,) = aws.made("CreateTrainingJob")
    assert differences(without_harmless(sent, shown), shown) == []


@pytest.mark.parametrize("sdk", ENVIRONMENTS)
def test_a_change_of_the_object_behind_its_back_sends_nothing(
    aws: Aws, tmp_path: Path, sdk: str
) -> None:
    change = "t.environment = {'X': '1'}"
    program = f"{TRAINER}t = trainer(*sys.argv[1:])\n{change}\ntry:\n    t.{BEGIN[sdk]}()\n{CAUGHT}"
    arguments = [*JOB, f"target.image={aws.push_image()}"]
    done = run_python(sdk, aws, tmp_path, "-c", program, *arguments)
    assert "different request (Environment); nothing was sent; change settings with" in done.stdout
    assert not aws.made("CreateTrainingJob")


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("model.name=resnet34x", "model.name=resnet34x: must be a classification model"),
        ("job.role=arn:aws:iam::123456789012:role/no", "no such role in this account"),
        ("job.output=s3://no-such-bucket/x", "there is no bucket no-such-bucket"),
    ],
)
def test_a_mistake_is_the_last_line_of_the_traceback(
    aws: Aws, tmp_path: Path, override: str, line: str
) -> None:
    program = f"{TRAINER}trainer(*sys.argv[1:])"
    arguments = [*JOB, f"target.image={aws.push_image()}", override]
    done = run_python("3", aws, tmp_path, "-c", program, *arguments)
    assert line in done.stderr.splitlines()[-1]
    assert not aws.made("CreateTrainingJob")


def test_the_example_notebook_runs_in_a_kernel(
    aws: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"ROLE": ROLE, "IMAGE": aws.push_image(), "BUCKET": BUCKET}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    notebook: Any = nbformat.read(ROOT / "examples" / "notebook.ipynb", as_version=4)
    manager = KernelManager()
    assert manager.kernel_spec
    (packages,) = (path for path in sys.path if path.endswith("site-packages"))
    python = str(ENVIRONMENTS["3"] / "bin" / "python")
    manager.kernel_spec.argv = [python, "-c", KERNEL, packages, "-f", "{connection_file}"]
    client = NotebookClient(
        notebook, km=manager, resources={"metadata": {"path": ROOT / "examples"}}, timeout=120
    )
    client.execute()
    (sent,) = aws.made("CreateTrainingJob")
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    (trained,) = (cell for cell in cells if "t.train(" in cell.source)
    assert trained.outputs[-1].data["text/plain"] == repr(sent["TrainingJobName"])
    assert len(aws.made("CreateHyperParameterTuningJob")) == 1
    shown = [output.text for cell in cells for output in cell.outputs if "text" in output]
    assert any("model.name=resnet34x: must be" in text for text in shown)
