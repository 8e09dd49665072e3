"""`launch.notebook` returns the SDK's own object: it sends what the command line would, until the
user changes it, and it is a step of a pipeline. The example notebook runs.

Each SDK runs in its own environment, against moto over HTTP.
"""

import json
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

from entry_point.config.train_config import load_train_config
from entry_point.contract.hyperparameters import decode
from launch import setup_aws
from launch.sagemaker.config import Target
from launch.sagemaker.training_request import CHECKPOINTS
from tests.launch.conftest import BUCKET, REPOSITORY, ROLE, ROOT, Aws
from tests.launch.job_role import answer_simulations, role
from tests.launch.sdk.environments import ENVIRONMENTS, run_python

COMMON = [f"job.role={ROLE}", f"job.output=s3://{BUCKET}/runs", "optim.lr=0.1"]
PHOTOS = ["data=folder", f"job.channels.training=s3://{BUCKET}/photos/"]
JOBS = {
    "plain": [],
    "spot": [
        *PHOTOS,
        "target=gpu_spot",
        "target.instance_count=2",
        f"job.channels.extra={{s3:s3://{BUCKET}/x,mode:File}}",
        "job.environment.OPT_OUT_TRACKING='true'",
        "job.tags.team=vision",
        "job.network.VpcConfig={Subnets:[subnet-1,subnet-2],SecurityGroupIds:[sg-1]}",
        "job.kms_key=alias/ours",
        "job.network.EnableNetworkIsolation=true",
        "data.root='/opt/ml/input/data/training/it\\'s \"quoted\", $HOME ü'",
    ],
    "own code": ["job.code=true", "job.tags.team=vision"],
    "resumed": [f"resume_from=s3://{BUCKET}/kept"],
    "debugged": [
        *PHOTOS[:1],
        "loggers=[mlflow]",
        "logger_kwargs.mlflow.uri=arn:aws:sagemaker:eu-west-1:123456789012:mlflow-app/mine",
        "job.environment.Team=Vision",
        "job.channels.training.source.FileSystemDataSource={FileSystemId:fs-0123456789abcdef0,"
        "FileSystemType:FSxLustre,FileSystemAccessMode:ro,DirectoryPath:/x/photos}",
        "job.network.VpcConfig={Subnets:[subnet-1],SecurityGroupIds:[sg-1]}",
    ],
}
ONLY_V3 = {
    "choice of types": [
        "job.request.ResourceConfig={InstanceType:null,InstancePreferences:"
        "[{InstanceType:ml.c7i.2xlarge},{InstanceType:ml.m7i.2xlarge}]}",
    ],
    "groups": [
        "job.request.ResourceConfig={InstanceType:null,InstanceCount:null,InstanceGroups:"
        "[{InstanceGroupName:a,InstanceType:ml.c7i.large,InstanceCount:2}]}",
    ],
    "planned": [
        "job.request.ResourceConfig.TrainingPlanArn="
        "arn:aws:sagemaker:eu-west-1:123456789012:training-plan/mine"
    ],
    "debugged by hand": [
        "job.request.InfraCheckConfig.EnableInfraCheck=true",
        "job.request.RemoteDebugConfig.EnableRemoteDebug=true",
        "job.request.SessionChainingConfig.EnableSessionTagChaining=true",
        "job.request.RetryStrategy.MaximumRetryAttempts=3",
        "job.request.EnableInterContainerTrafficEncryption=true",
        "job.request.TensorBoardOutputConfig=null",
        "job.request.CheckpointConfig=null",
    ],
    "warm pool": ["job.request.ResourceConfig.KeepAlivePeriodInSeconds=600"],
    "any member": [
        "job.request.AlgorithmSpecification.EnableSageMakerMetricsTimeSeries=true",
        "job.request.ResourceConfig.VolumeSizeInGB=77",
    ],
}
EVERY_JOB = {**JOBS, **ONLY_V3}
BEGIN = {"2": "fit", "3": "train"}
MAKE = "import sys\nfrom launch.notebook import trainer\nt = trainer(*sys.argv[1:])\n"
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
OTHER_SESSION = {
    sdk: f"""
import sys, boto3
from {module} import Session
from launch.notebook import trainer
keys = dict(aws_access_key_id="OTHER", aws_secret_access_key="other")
boto_session = boto3.Session(region_name="eu-west-1", **keys)
t = trainer(*sys.argv[1:], session=Session(boto_session=boto_session))
t.{BEGIN[sdk]}(wait=False)
"""
    for sdk, module in (("2", "sagemaker"), ("3", "sagemaker.core.helper.session_helper"))
}
TELEMETRY = {
    "2": "sagemaker.telemetry.telemetry_logging",
    "3": "sagemaker.core.telemetry.telemetry_logging",
}
OWN_CLASS = {
    "2": "sagemaker.estimator.Estimator",
    "3": "sagemaker.train.model_trainer.ModelTrainer",
}
CHANGES = {
    "2": """
from sagemaker.inputs import TrainingInput
t.set_hyperparameters(**{"optim.lr": "0.5"})
t.inputs["training"] = TrainingInput("s3://other/photos/", input_mode="File")
t.environment = {"X": "1"}
t.fit(wait=False)
""",
    "3": """
from sagemaker.train.configs import InputData
t.hyperparameters["optim.lr"] = 0.5
t.environment = {"X": "1"}
t.train([InputData(channel_name="training", data_source="s3://other/photos/")], wait=False)
""",
}
PIPELINE = {
    "2": """
import sys
from sagemaker.workflow.parameters import ParameterString
from sagemaker.workflow.pipeline import Pipeline
from sagemaker.workflow.pipeline_context import PipelineSession
from sagemaker.workflow.steps import TrainingStep
from launch.notebook import trainer
session = PipelineSession()
t = trainer(*sys.argv[1:], session=session)
rate = ParameterString("Rate", default_value="0.2")
t.set_hyperparameters(**{"optim.lr": rate})
steps = [TrainingStep("one", step_args=t.fit()), TrainingStep("two", step_args=t.fit())]
""",
    "3": """
import sys
from sagemaker.core.workflow.parameters import ParameterString
from sagemaker.core.workflow.pipeline_context import PipelineSession
from sagemaker.mlops.workflow.pipeline import Pipeline
from sagemaker.mlops.workflow.steps import TrainingStep
from launch.notebook import trainer
session = PipelineSession()
t = trainer(*sys.argv[1:], session=session)
rate = ParameterString("Rate", default_value="0.2")
t.hyperparameters["optim.lr"] = rate
steps = [TrainingStep(name=name, step_args=t.train()) for name in ("one", "two")]
""",
}
DEFINED = """
p = Pipeline(name="p", parameters=[rate], steps=steps, sagemaker_session=session)
first, second = p.definition(), p.definition()
assert first == second, "the definition changes"
print("DEFINITION", first)
"""
# The kernel: the SDK's environment, with the kernel's own packages behind.
KERNEL = (
    "import sys; sys.path.append(sys.argv.pop(1)); import runpy; "
    "runpy.run_module('ipykernel_launcher', run_name='__main__')"
)


def _as_sent(request: dict[str, Any]) -> dict[str, Any]:
    """A request without the defaults of the service that SDK v3 spells out, and empty members."""
    output = {k: v for k, v in request["OutputDataConfig"].items() if (k, v) != DEFAULT}
    members = {**request, "OutputDataConfig": output}
    return {key: member for key, member in members.items() if member not in ({}, [], None, False)}


DEFAULT = ("CompressionType", "GZIP")


@pytest.fixture
def job_role(aws_cli: Aws) -> str:
    """The ARN of the role that `make setup-aws` creates, whose permissions can be simulated."""
    aws_cli.push_image()
    exists = ["CreateBucket=false", "CreateRepository=false"]
    assert setup_aws.main([f"Bucket={BUCKET}", f"Repository={REPOSITORY}", *exists]) == 0
    answer_simulations(aws_cli)
    aws_cli.calls.clear()
    return str(role(aws_cli)["Arn"])


def test_the_readmes_lines_submit_a_job_that_the_image_can_run_and_that_keeps_its_work(
    aws: Aws, job_role: str, tmp_path: Path
) -> None:
    readme = (ROOT / "README.md").read_text()
    program = readme.partition("```python\n")[2].partition("```")[0]
    for theirs, ours in {
        "s3://my-bucket/": f"s3://{BUCKET}/",
        "arn:aws:iam::123456789012:role/managed-training-template": job_role,
        'photos/")])': 'photos/")], wait=False)',
    }.items():
        assert theirs in program
        program = program.replace(theirs, ours)
    done = run_python("3", aws, tmp_path, "-c", program)
    assert done.returncode == 0, done.stderr
    assert [call.operation for call in aws.calls].count("SimulatePrincipalPolicy") == 1
    (sent,) = aws.made("CreateTrainingJob")
    assert [channel["ChannelName"] for channel in sent["InputDataConfig"]] == ["training"]
    config, _ = load_train_config(decode(sent["HyperParameters"]))
    assert (config.model.name, config.trainer.epochs) == ("resnet50", 30)
    assert sent["StoppingCondition"]["MaxRuntimeInSeconds"] == Target.max_runtime_s
    output = sent["OutputDataConfig"]["S3OutputPath"]
    assert output.startswith(f"s3://{BUCKET}/")
    assert sent["CheckpointConfig"] == {"S3Uri": f"{output}/checkpoints", "LocalPath": CHECKPOINTS}


@pytest.mark.parametrize("use", ["training", "serving", "pipeline"])
def test_the_sdk_accepts_the_role_for(aws: Aws, job_role: str, tmp_path: Path, use: str) -> None:
    check = "from sagemaker.core.helper import resolve_and_validate_role as check\ncheck(*{})"
    program = check.format((job_role, use))
    done = run_python("3", aws, tmp_path, "-c", program)
    assert done.returncode == 0, done.stderr
    assert "Could not verify" not in done.stderr


@pytest.mark.parametrize(
    ("sdk", "job"),
    [*((sdk, job) for sdk in ENVIRONMENTS for job in JOBS), *(("3", job) for job in ONLY_V3)],
)
def test_an_object_sends_what_the_command_line_prints_and_makes_no_other_call(
    aws: Aws, tmp_path: Path, sdk: str, job: str
) -> None:
    arguments = [*COMMON, *EVERY_JOB[job], f"target.image={aws.push_image()}", "job.name=the-job"]
    command = ("-m", "launch.sagemaker", "train", *arguments)
    shown = json.loads(run_python(sdk, aws, tmp_path, *command, DRY_RUN="1").stdout)
    aws.calls.clear()
    program = f"{MAKE}t.{BEGIN[sdk]}(wait=False, logs=False)"
    done = run_python(sdk, aws, tmp_path, "-c", program, *arguments)
    assert done.returncode == 0, done.stderr
    (sent,) = aws.made("CreateTrainingJob")
    assert _as_sent(sent) == _as_sent(shown)
    code = f"/{BUCKET}/runs/code/"
    operations = {
        call.operation for call in aws.calls if not call.operation.startswith(f"PUT {code}")
    }
    assert operations <= {
        "CreateTrainingJob",
        "DescribeTrainingJob",
        f"HEAD /{BUCKET}",
        *([f"GET /{BUCKET}"] if job == "own code" else []),
    }


@pytest.mark.parametrize("job", ONLY_V3)
def test_v2_says_what_it_cannot_send(aws: Aws, tmp_path: Path, job: str) -> None:
    arguments = [*COMMON, *ONLY_V3[job], f"target.image={aws.push_image()}"]
    done = run_python("2", aws, tmp_path, "-c", MAKE, *arguments)
    line = "SageMaker SDK v2 cannot send it; use v3, or `make sagemaker-train`"
    # The SDK prints tracebacks by rich, in lines of the terminal's width.
    assert line in " ".join((done.stdout + done.stderr).split())
    assert not aws.made("CreateTrainingJob")


@pytest.mark.parametrize("sdk", ENVIRONMENTS)
def test_everything_is_checked_and_sent_with_the_account_of_the_given_session(
    aws: Aws, tmp_path: Path, sdk: str
) -> None:
    arguments = [*COMMON, *PHOTOS, f"target.image={aws.push_image()}"]
    aws.calls.clear()
    done = run_python(
        sdk, aws, tmp_path, "-c", OTHER_SESSION[sdk], *arguments, AWS_DEFAULT_REGION="us-east-1"
    )
    assert done.returncode == 0, done.stderr
    assert aws.made("CreateTrainingJob")
    assert {call.key for call in aws.calls} == {"OTHER"}


@pytest.mark.parametrize("sdk", ENVIRONMENTS)
def test_each_job_of_a_trainer_has_a_new_name_and_its_own_checkpoints(
    aws: Aws, tmp_path: Path, sdk: str
) -> None:
    program = TWO_JOBS.format(telemetry=TELEMETRY[sdk], begin=BEGIN[sdk])
    arguments = [*COMMON, *PHOTOS, f"target.image={aws.push_image()}"]
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
def test_what_the_user_changes_on_the_object_is_sent(aws: Aws, tmp_path: Path, sdk: str) -> None:
    arguments = [*COMMON, *PHOTOS, f"target.image={aws.push_image()}"]
    done = run_python(sdk, aws, tmp_path, "-c", MAKE + CHANGES[sdk], *arguments)
    assert done.returncode == 0, done.stderr
    (sent,) = aws.made("CreateTrainingJob")
    assert sent["HyperParameters"] == {"optim.lr": "0.5", "data": "folder"}
    assert sent["Environment"] == {"X": "1"}
    (channel,) = sent["InputDataConfig"]
    assert channel["DataSource"]["S3DataSource"]["S3Uri"] == "s3://other/photos/"


@pytest.mark.parametrize("sdk", ENVIRONMENTS)
def test_the_object_is_a_step_of_a_pipeline_whose_executions_share_no_checkpoints(
    aws: Aws, tmp_path: Path, sdk: str
) -> None:
    arguments = [*COMMON, *PHOTOS, f"target.image={aws.push_image()}"]
    if sdk == "3":
        arguments += ONLY_V3["any member"]
    done = run_python(sdk, aws, tmp_path, "-c", PIPELINE[sdk] + DEFINED, *arguments)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("DEFINITION "))
    one, two = (each["Arguments"] for each in json.loads(line[11:])["Steps"])
    prefixes = [each["CheckpointConfig"]["S3Uri"]["Std:Join"]["Values"] for each in (one, two)]
    for start, name, slash, execution, end in prefixes:
        assert (start, slash, end) == (f"s3://{BUCKET}/runs/", "/", "/checkpoints")
        assert name.startswith("image-training-")
        assert execution == {"Get": "Execution.PipelineExecutionId"}
    assert prefixes[0] != prefixes[1]
    assert one["HyperParameters"] == {"optim.lr": {"Get": "Parameters.Rate"}, "data": "folder"}
    assert "TrainingJobName" not in one
    if sdk == "3":
        assert one["AlgorithmSpecification"]["EnableSageMakerMetricsTimeSeries"] is True
        assert one["ResourceConfig"]["VolumeSizeInGB"] == 77
    assert not aws.made("CreateTrainingJob")


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("model.name=resnet34x", "model.name=resnet34x: must be a classification or segmentation"),
        ("job.output=s3://no-such-bucket/x", "there is no bucket no-such-bucket"),
    ],
)
def test_a_mistake_is_the_last_line_of_the_traceback(
    aws: Aws, tmp_path: Path, override: str, line: str
) -> None:
    arguments = [*COMMON, f"target.image={aws.push_image()}", override]
    done = run_python("3", aws, tmp_path, "-c", MAKE, *arguments)
    assert line in done.stderr.splitlines()[-1]
    assert not aws.made("CreateTrainingJob")


def test_without_an_sdk_the_command_line_works_and_the_notebook_says_what_to_install(
    aws: Aws, tmp_path: Path
) -> None:
    hide = (
        "import importlib.metadata as m\ndef v(name): raise m.PackageNotFoundError\nm.version=v\n"
    )
    arguments = [*COMMON, f"target.image={aws.push_image()}"]
    done = run_python("3", aws, tmp_path, "-c", hide + MAKE, *arguments)
    assert "%pip install 'sagemaker>=3.21,<4'" in done.stderr.splitlines()[-1]


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
    assert sent["HyperParameters"]["optim.lr"] == "0.05"
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    (trained,) = (cell for cell in cells if "t.train(wait" in cell.source)
    assert trained.outputs[-1].data["text/plain"] == repr(sent["TrainingJobName"])
    assert len(aws.made("CreateHyperParameterTuningJob")) == 1
    shown = [output.text for cell in cells for output in cell.outputs if "text" in output]
    assert any("model.name=resnet34x: must be" in text for text in shown)
