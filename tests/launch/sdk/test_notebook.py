"""`launch.notebook` returns SDK v3's own objects: they send what the command line would, until the
user changes them, and are steps of a pipeline. The example notebooks run.

Against moto over HTTP.
"""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

from entry_point.__main__ import COMMANDS
from entry_point.config.compose import load_config
from entry_point.config.evaluate_config import EvaluateConfig
from entry_point.config.hyperparameters import decode
from entry_point.config.train_config import load_train_config
from entry_point.job.metrics_line import metric_regexes
from entry_point.job.run_folder import JOB_NAME, PER_JOB, RunFolder
from launch.sagemaker import __main__ as sagemaker
from launch.sagemaker.config import Target
from launch.sagemaker.training_request import WRITTEN
from tests.launch.conftest import BUCKET, IMAGE, MINIMAL, ROLE, ROOT, Aws, Terminal
from tests.launch.job_role import allows, answer_simulations, create_stack, role, statements
from tests.launch.sdk.environments import ENVIRONMENTS, run_python, submit

COMMON = [*MINIMAL, "optim.lr=0.1"]
PHOTOS = ["data=folder", f"job.channels.training=s3://{BUCKET}/photos/"]
JOBS = {
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
    "resumed, in a plan": [
        f"resume_from=s3://{BUCKET}/kept",
        "job.request.ResourceConfig.TrainingPlanArn="
        "arn:aws:sagemaker:eu-west-1:123456789012:training-plan/mine",
    ],
    "debugged": [
        *PHOTOS[:1],
        "job.channels.training.source.FileSystemDataSource={FileSystemId:fs-0123456789abcdef0,"
        "FileSystemType:FSxLustre,FileSystemAccessMode:ro,DirectoryPath:/x/photos}",
        "job.request.InfraCheckConfig.EnableInfraCheck=true",
        "job.request.RemoteDebugConfig.EnableRemoteDebug=true",
        "job.request.SessionChainingConfig.EnableSessionTagChaining=true",
        "job.request.RetryStrategy.MaximumRetryAttempts=3",
        "job.request.EnableInterContainerTrafficEncryption=true",
        "job.request.TensorBoardOutputConfig=null",
        "job.request.CheckpointConfig=null",
        "job.request.ResourceConfig.KeepAlivePeriodInSeconds=600",
        "job.request.ResourceConfig.VolumeSizeInGB=77",
    ],
    "choice of types": [
        "job.request.ResourceConfig={InstanceType:null,InstancePreferences:"
        "[{InstanceType:ml.c7i.2xlarge},{InstanceType:ml.m7i.2xlarge}]}",
    ],
    "groups": [
        "job.request.ResourceConfig={InstanceType:null,InstanceCount:null,InstanceGroups:"
        "[{InstanceGroupName:a,InstanceType:ml.c7i.large,InstanceCount:2}]}",
    ],
}
EXAMPLE = {"ROLE": ROLE, "IMAGE": IMAGE, "BUCKET": BUCKET}
MAKE = "import sys\nfrom launch.notebook import trainer\nt = trainer(*sys.argv[1:])\n"
TWO_JOBS = """
import os, sys, time
import sagemaker.core.telemetry.telemetry_logging as telemetry
telemetry._send_telemetry_request = lambda *_: print("TELEMETRY")
from launch.notebook import trainer
t = trainer(*sys.argv[1:])
print(type(t))
t.train()
time.sleep(1.1)  # the SDK's names have seconds
t.train(wait=False)
trainer(*sys.argv[1:]).train(wait=False)
print([name for name in os.environ if name.startswith("SAGEMAKER_")])
"""
OTHER_SESSION = """
import sys, boto3
from sagemaker.core.helper.session_helper import Session
from launch.notebook import trainer
keys = dict(aws_access_key_id="OTHER", aws_secret_access_key="other")
boto_session = boto3.Session(region_name="eu-west-1", **keys)
t = trainer(*sys.argv[1:], session=Session(boto_session=boto_session))
t.train(wait=False)
"""
CHANGES = """
from sagemaker.train.configs import InputData
t.hyperparameters["optim.lr"] = 0.5
t.environment["X"] = "1"
t.train([InputData(channel_name="training", data_source="s3://other/photos/")], wait=False)
"""
QUEUE = """
import sys
from sagemaker.train.aws_batch.training_queue import TrainingQueue
from launch.notebook import trainer
TrainingQueue("night").submit(trainer(*sys.argv[1:]), inputs=None)
"""
PIPELINE = """
import sys
from sagemaker.core.workflow.parameters import ParameterString
from sagemaker.core.workflow.pipeline_context import PipelineSession
from sagemaker.mlops.workflow.pipeline import Pipeline
from sagemaker.mlops.workflow.steps import TrainingStep
from launch.notebook import trainer
session = PipelineSession()
def build():
    t = trainer(*sys.argv[1:], session=session)
    rate = ParameterString("Rate", default_value="0.2")
    t.hyperparameters["optim.lr"] = rate
    steps = [TrainingStep(name=name, step_args=t.train()) for name in ("one", "two")]
    return Pipeline(name="p", parameters=[rate], steps=steps, sagemaker_session=session)
first, second = build().definition(), build().definition()
assert first == second, "the definition changes"
print("DEFINITION", first)
"""
# The kernel: the SDK's environment, with the kernel's own packages behind.
KERNEL = (
    "import sys; sys.path.append(sys.argv.pop(1)); import runpy; "
    "runpy.run_module('ipykernel_launcher', run_name='__main__')"
)


DEFAULT = ("CompressionType", "GZIP")


def _as_sent(request: dict[str, Any]) -> dict[str, Any]:
    """A request without the defaults of the service that the SDK spells out, empty members, and
    what has the job's or the object's name."""
    output = {k: v for k, v in request["OutputDataConfig"].items() if (k, v) != DEFAULT}
    environment = {k: v for k, v in request.get("Environment", {}).items() if k != PER_JOB}
    members = {**request, "OutputDataConfig": output, "Environment": environment}
    del members["TrainingJobName"]
    for member, key in (("CheckpointConfig", "S3Uri"), ("TensorBoardOutputConfig", "S3OutputPath")):
        if member in members:
            prefix = re.sub(r"/the-job[^/]*", "/JOB", members[member][key])
            members[member] = {**members[member], key: prefix}
    return {key: member for key, member in members.items() if member not in ({}, [], None, False)}


@pytest.fixture(autouse=True)
def _inputs(aws: Aws) -> None:
    """What the channels and `resume_from` of these jobs name."""
    for key in ("photos/train/a/0.jpg", "x/0", "kept/step-1"):
        aws.client("s3").put_object(Bucket=BUCKET, Key=key, Body=b"x")
    aws.calls.clear()


@pytest.fixture
def job_role(aws: Aws) -> str:
    """The ARN of the role that `make setup-aws` creates, whose permissions can be simulated."""
    create_stack(aws, Bucket=BUCKET, CreateBucket="false")
    answer_simulations(aws)
    aws.calls.clear()
    return str(role(aws)["Arn"])


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
    submit("3", aws, tmp_path, program)
    assert [call.operation for call in aws.calls].count("SimulatePrincipalPolicy") == 1
    (sent,) = aws.made("CreateTrainingJob")
    assert [channel["ChannelName"] for channel in sent["InputDataConfig"]] == ["training"]
    config, _ = load_train_config(decode(sent["HyperParameters"]))
    assert (config.model.name, config.trainer.epochs) == ("resnet50", 30)
    assert sent["StoppingCondition"]["MaxRuntimeInSeconds"] == Target.max_runtime_s
    output = sent["OutputDataConfig"]["S3OutputPath"]
    assert output.startswith(f"s3://{BUCKET}/")
    prefix, _, run = output.rpartition("/")
    assert sent["CheckpointConfig"]["S3Uri"] == f"{prefix}/checkpoints/{run}"
    assert sent["CheckpointConfig"]["LocalPath"] == WRITTEN["CheckpointConfig"]


ROLE_FOR = """
import sys
from sagemaker.core.helper import resolve_and_validate_role as check
for use in ("training", "serving", "pipeline"):
    check(sys.argv[1], use)
"""


def test_the_sdk_accepts_the_role_for_jobs_endpoints_and_pipelines(
    aws: Aws, job_role: str, tmp_path: Path
) -> None:
    done = run_python("3", aws, tmp_path, ROLE_FOR, job_role)
    assert done.returncode == 0 and "Could not verify" not in done.stderr, done.stderr


@pytest.mark.parametrize("job", JOBS)
def test_an_object_sends_what_the_command_line_prints_and_makes_no_other_call(
    aws_cli: Aws,
    tmp_path: Path,
    job: str,
    terminal: Terminal,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    aws = aws_cli  # which uploads the code
    arguments = [*COMMON, *JOBS[job], "job.name=the-job"]
    monkeypatch.setenv("DRY_RUN", "1")
    shown = json.loads(terminal.out(sagemaker.main, "train", *arguments))
    submit("3", aws, tmp_path, f"{MAKE}t.train(wait=False, logs=False)", *arguments)
    (sent,) = aws.made("CreateTrainingJob")
    assert _as_sent(sent) == _as_sent(shown)
    assert sent["TrainingJobName"].startswith("the-job-")
    operations = {call.operation for call in aws.calls}
    assert {each for each in operations if not each.startswith(f"PUT /{BUCKET}/runs/code/")} <= {
        "CreateTrainingJob",
        "DescribeTrainingJob",
        "ListTrainingJobs",
        f"HEAD /{BUCKET}",
        f"GET /{BUCKET}",  # lists what the channels name, and the code that is there
    }


def test_what_cannot_be_sent_is_refused_by_name_in_the_last_lines_of_the_traceback(
    aws: Aws, tmp_path: Path
) -> None:
    metrics = "AlgorithmSpecification.EnableSageMakerMetricsTimeSeries"
    for member, value in {"ExperimentConfig": ".ExperimentName=a", metrics: "=true"}.items():
        given = f"job.request.{member}{value}"
        said = run_python("3", aws, tmp_path, MAKE, *COMMON, given).stderr
        line = f"job.request.{member}: ModelTrainer has no argument for it"
        assert line in said.splitlines()[-1]
    said = run_python("3", aws, tmp_path, MAKE, *COMMON, "model.nam=x").stderr
    assert "model.nam=x: no such key; did you mean model.name?" in said.splitlines()[-1]
    assert not aws.made("CreateTrainingJob")


def test_everything_is_checked_and_sent_with_the_account_of_the_given_session(
    aws_cli: Aws, tmp_path: Path
) -> None:
    arguments = [*COMMON, *PHOTOS, "job.code=true"]
    submit("3", aws_cli, tmp_path, OTHER_SESSION, *arguments, AWS_DEFAULT_REGION="us-east-1")
    assert aws_cli.made("CreateTrainingJob")
    assert {call.key for call in aws_cli.calls} == {"OTHER"}


def checkpoints_of(request: dict[str, Any], root: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where in S3 the container of this job finds the checkpoints to resume from."""
    for name, value in request.get("Environment", {}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(JOB_NAME, request["TrainingJobName"])
    folder = RunFolder(root).checkpoints.relative_to(root / "checkpoints")
    return f"{request['CheckpointConfig']['S3Uri']}/{folder}"


def test_each_job_of_a_trainer_and_of_another_one_starts_without_checkpoints(
    aws: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = submit("3", aws, tmp_path, TWO_JOBS, *COMMON, *PHOTOS)
    assert "'sagemaker.train.model_trainer.ModelTrainer'" in out
    assert "TELEMETRY" not in out and out.splitlines()[-1] == "[]"
    jobs = aws.made("CreateTrainingJob")
    assert all(sent["TrainingJobName"].startswith("image-training-") for sent in jobs)
    one, two, other = (sent["CheckpointConfig"]["S3Uri"] for sent in jobs)
    assert one == two != other and one.startswith(f"s3://{BUCKET}/runs/checkpoints/image-training-")
    assert len({checkpoints_of(sent, tmp_path, monkeypatch) for sent in jobs}) == 3
    assert all("{" not in sent["TensorBoardOutputConfig"]["S3OutputPath"] for sent in jobs)


def test_a_long_name_leaves_room_for_the_time_that_makes_each_jobs_name_new(
    aws: Aws, tmp_path: Path
) -> None:
    name = f"job.name={'n' * 63}"
    submit("3", aws, tmp_path, f"{MAKE}t.train(wait=False)", *COMMON, *PHOTOS, name)
    (sent,) = aws.made("CreateTrainingJob")
    assert re.fullmatch(r"n{48}-\d{14}", sent["TrainingJobName"])


def test_what_the_user_changes_on_the_object_is_sent(aws: Aws, tmp_path: Path) -> None:
    submit("3", aws, tmp_path, MAKE + CHANGES, *COMMON, *PHOTOS)
    (sent,) = aws.made("CreateTrainingJob")
    assert sent["HyperParameters"] == {"optim.lr": "0.5", "data": "folder"}
    assert sent["Environment"]["X"] == "1"
    (channel,) = sent["InputDataConfig"]
    assert channel["DataSource"]["S3DataSource"]["S3Uri"] == "s3://other/photos/"


def test_the_sdks_queue_takes_the_object(aws: Aws, tmp_path: Path) -> None:
    answer = {"jobArn": "arn:aws:batch:x", "jobName": "mine", "jobId": "1234-abcd"}
    aws.answers["POST /v1/submitservicejob"] = [(200, answer)]
    submit("3", aws, tmp_path, QUEUE, *COMMON, *PHOTOS, "job.tags.team=a")
    (sent,) = aws.made("POST /v1/submitservicejob")
    payload = json.loads(sent["serviceRequestPayload"])
    assert sent["jobQueue"] == "night" and sent["tags"]["team"] == "a"
    assert payload["HyperParameters"] == {"optim.lr": "0.1", "data": "folder"}
    assert payload["Environment"][PER_JOB] == "true"


def test_the_object_is_a_step_of_a_pipeline_whose_executions_share_no_checkpoints(
    aws: Aws, tmp_path: Path
) -> None:
    out = submit("3", aws, tmp_path, PIPELINE, *COMMON, *PHOTOS)
    (line,) = (line for line in out.splitlines() if line.startswith("DEFINITION "))
    one, two = (each["Arguments"] for each in json.loads(line[11:])["Steps"])
    for step in (one, two):
        start, execution = step["CheckpointConfig"]["S3Uri"]["Std:Join"]["Values"]
        assert start == f"s3://{BUCKET}/runs/checkpoints/image-training"
        assert execution == {"Get": "Execution.PipelineExecutionId"}
        # So the two steps of an execution do not meet, either.
        assert step["Environment"] == {PER_JOB: "true"}
    assert one["HyperParameters"] == {"optim.lr": {"Get": "Parameters.Rate"}, "data": "folder"}
    assert "TrainingJobName" not in one
    assert not aws.made("CreateTrainingJob")


def test_the_documented_install_has_no_torch() -> None:
    (name,) = set(re.findall(r"pip install -r (\S+?\.txt)", (ROOT / "docs/launch.md").read_text()))
    packages = {line.partition("==")[0] for line in (ROOT / name).read_text().splitlines()}
    assert "sagemaker" in packages and not {"torch", "torchvision"} & packages


def test_with_sdk_v2_the_notebook_says_what_to_install(aws: Aws, tmp_path: Path) -> None:
    done = run_python("2", aws, tmp_path, MAKE, *COMMON)
    said = " ".join((done.stdout + done.stderr).split())
    assert "%pip install 'sagemaker>=3.21,<4'; for SDK v2 see examples/estimator_v2.py" in said


# The examples


def test_the_example_of_sdk_v2_starts_jobs_that_fetch_no_other_jobs_checkpoints(
    aws: Aws, tmp_path: Path
) -> None:
    example = 'import runpy; runpy.run_module("examples.estimator_v2", run_name="__main__")'
    for _ in range(2):
        out = submit("2", aws, tmp_path, example, "optim.lr=0.1", "task=segmentation", **EXAMPLE)
    one, two = aws.made("CreateTrainingJob")
    assert one["TrainingJobName"] != two["TrainingJobName"] == out.splitlines()[-1]
    for sent in (one, two):  # SageMaker copies all that is below the prefix into the container
        name, checkpoints = sent["TrainingJobName"], sent["CheckpointConfig"]["S3Uri"]
        assert checkpoints == f"s3://{BUCKET}/jobs/checkpoints/{name}"
    config, _ = load_train_config(decode(one["HyperParameters"]))
    assert (config.optim.lr, config.data.format) == (0.1, "folder")
    metrics = {each["Name"] for each in one["AlgorithmSpecification"]["MetricDefinitions"]}
    assert "validation:miou" in metrics and "validation:accuracy" not in metrics
    assert one["TrainingJobName"].startswith("image-training-")
    assert one["ProfilerConfig"] == {"DisableProfiler": True} and "DebugHookConfig" not in one


def cells_of(name: str) -> str:
    """The program that an example notebook is."""
    notebook: Any = nbformat.read(ROOT / "examples" / name, as_version=4)
    program = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    assert 'sys.path.insert(0, "..")  # the clone' in program
    return program


def test_the_example_of_a_pipeline_registers_what_is_good_enough(
    aws: Aws, job_role: str, tmp_path: Path
) -> None:
    submit("3", aws, tmp_path, cells_of("pipeline.ipynb"), **{**EXAMPLE, "ROLE": job_role})
    (created,) = aws.made("CreatePipeline")
    assert len(aws.made("StartPipelineExecution")) == 1
    train, evaluate, condition = json.loads(created["PipelineDefinition"])["Steps"]
    assert train["Arguments"]["Environment"] == {PER_JOB: "true"}
    command, *overrides = evaluate["Arguments"]["AppSpecification"]["ContainerArguments"]
    assert command in COMMANDS
    load_config("evaluate", EvaluateConfig, overrides)
    (output,) = evaluate["Arguments"]["ProcessingOutputConfig"]["Outputs"]
    prefix = output["S3Output"]["S3Uri"]["Std:Join"]["Values"][0]
    key = f"arn:aws:s3:::{prefix.removeprefix('s3://')}/x/evaluation.json"
    assert allows([*statements(aws).values()], "s3:PutObject", key)
    (asked,) = condition["Arguments"]["Conditions"]
    assert asked["LeftValue"]["Std:JsonGet"]["Path"] == "metrics.accuracy"
    (register,) = condition["Arguments"]["IfSteps"]
    (container,) = register["Arguments"]["InferenceSpecification"]["Containers"]
    assert container["ModelDataUrl"] == {"Get": "Steps.train.ModelArtifacts.S3ModelArtifacts"}


def test_the_example_of_a_tuner_starts_one(aws: Aws, tmp_path: Path) -> None:
    submit("3", aws, tmp_path, cells_of("tuner.ipynb"), **EXAMPLE)
    (sent,) = aws.made("CreateHyperParameterTuningJob")
    trial = sent["TrainingJobDefinition"]
    assert trial["StaticHyperParameters"]["data"] == "folder"
    algorithm = trial["AlgorithmSpecification"]
    assert algorithm["TrainingImage"] == IMAGE
    metrics = {each["Name"]: each["Regex"] for each in algorithm["MetricDefinitions"]}
    assert metrics == metric_regexes("classification")
    objective = sent["HyperParameterTuningJobConfig"]["HyperParameterTuningJobObjective"]
    assert objective == {"Type": "Maximize", "MetricName": "validation:accuracy"}
    (channel,) = trial["InputDataConfig"]
    assert channel["DataSource"]["S3DataSource"]["S3Uri"] == f"s3://{BUCKET}/photos/"
    # A job finds SageMaker's hyperparameter of a tuning job, and keeps checkpoints below its name.
    prefix = f"s3://{BUCKET}/jobs/checkpoints/image-training-"
    assert trial["CheckpointConfig"]["S3Uri"].startswith(prefix)


def test_the_notebook_names_the_packages_that_launch_needs_for_it() -> None:
    named = (ROOT / "requirements/launch-v3.in").read_text().splitlines()
    (line,) = re.findall(r"%pip install ([^`]+)", (ROOT / "examples/notebook.ipynb").read_text())
    assert {*shlex.split(line)} == {each for each in named if each[:1] not in ("#", "-")}


def test_the_example_notebook_runs_in_a_kernel(
    aws: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in {**EXAMPLE, "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    notebook: Any = nbformat.read(ROOT / "examples/notebook.ipynb", as_version=4)
    manager = KernelManager()
    assert manager.kernel_spec
    (packages,) = (path for path in sys.path if path.endswith("site-packages"))
    python = str(ENVIRONMENTS["3"] / "bin" / "python")
    manager.kernel_spec.argv = [python, "-c", KERNEL, packages, "-f", "{connection_file}"]
    resources = {"metadata": {"path": ROOT / "examples"}}
    NotebookClient(notebook, km=manager, resources=resources, timeout=120).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    (sent,) = aws.made("CreateTrainingJob")
    assert sent["HyperParameters"]["optim.lr"] == "0.05"
    (trained,) = (cell for cell in cells if "t.train(wait" in cell.source)
    assert trained.outputs[-1].data["text/plain"] == repr(sent["TrainingJobName"])
    shown = [output.text for cell in cells for output in cell.outputs if "text" in output]
    assert any("optim.learning_rate=0.1: no such key" in text for text in shown)
