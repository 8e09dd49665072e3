"""Both SDKs send exactly the request that DRY_RUN=1 prints.

Each SDK runs in its own environment, against moto over HTTP.
"""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from launch.aws.sdk.send import differences, without_harmless
from tests.launch.conftest import BUCKET, ROLE, Aws
from tests.launch.sdk.environments import ENVIRONMENTS, run_python

COMMON = [f"job.role={ROLE}", f"job.output=s3://{BUCKET}/runs", "optim.lr=0.1"]
JOBS = {
    "plain": [*COMMON],
    "spot": [
        *COMMON,
        "data=folder",
        "target=gpu_spot",
        "target.instance_count=2",
        f"job.channels.training=s3://{BUCKET}/data/",
        f"job.channels.extra={{s3:s3://{BUCKET}/x,mode:File,distribution:ShardedByS3Key}}",
        "job.environment.OPT_OUT_TRACKING='true'",
        "job.tags.team=vision",
        "job.subnets=[subnet-1,subnet-2]",
        "job.security_groups=[sg-1]",
        "job.volume_kms_key=alias/volumes",
        "job.output_kms_key=alias/results",
        "job.encrypt_traffic=true",
        "job.network_isolation=true",
        "job.retries=3",
        "data.root='/opt/ml/input/data/training/it\\'s \"quoted\", $HOME ü'",
    ],
    "warm groups": [
        *COMMON,
        "data=folder",
        "target.instance_groups=[{name:a,instance_type:ml.c7i.large,instance_count:2},"
        "{name:b,instance_type:ml.m7i.large}]",
        f"job.channels.training={{s3:s3://{BUCKET}/data/,instance_groups:[a,b]}}",
        "job.tensorboard=false",
        "job.checkpoints=none",
        "trainer.batch_size=96",
    ],
    "own code": [*COMMON, "job.code=true", "job.tags.team=vision"],
    "warm pool": [*COMMON, "target.keep_alive_s=600", f"job.checkpoints=s3://{BUCKET}/kept"],
}


V3_JOBS = {
    "debugged": [
        *COMMON,
        "data=folder",
        "target.instance_types=[ml.c7i.2xlarge,ml.m7i.2xlarge]",
        "target.health_check=true",
        "job.remote_debug=true",
        "job.session_chaining=true",
        "job.mlflow=arn:aws:sagemaker:eu-west-1:123456789012:mlflow-app/mine",
        "loggers=[mlflow]",
        "job.environment.Team=Vision",
        "job.channels.training={file_system:fs-0123456789abcdef0,type:FSxLustre,path:/x/photos}",
        "job.subnets=[subnet-1]",
        "job.security_groups=[sg-1]",
    ],
    "planned": [
        *COMMON,
        "target.training_plan=arn:aws:sagemaker:eu-west-1:123456789012:training-plan/mine",
    ],
}
EVERY_JOB = {**JOBS, **V3_JOBS}


@pytest.mark.parametrize("job", V3_JOBS)
def test_v2_says_which_setting_needs_v3_and_sends_nothing(
    aws: Aws, tmp_path: Path, job: str
) -> None:
    arguments = ["train", *V3_JOBS[job], f"target.image={aws.push_image()}"]
    done = run_python("2", aws, tmp_path, "-m", "launch.sagemaker", *arguments)
    assert done.returncode == 1
    assert "needs SageMaker SDK v3, this is v2; leave out SDK=2" in done.stderr
    assert not aws.made("CreateTrainingJob")


@pytest.mark.parametrize(
    ("sdk", "job"),
    [*((sdk, job) for sdk in ENVIRONMENTS for job in JOBS), *(("3", job) for job in V3_JOBS)],
)
def test_sdk_sends_the_dry_run_request_and_makes_no_other_call(
    aws: Aws, tmp_path: Path, sdk: str, job: str
) -> None:
    job_of_test = [*EVERY_JOB[job], f"target.image={aws.push_image()}", "job.name=the-job"]
    arguments = ["-m", "launch.sagemaker", "train", *job_of_test]
    shown = json.loads(run_python(sdk, aws, tmp_path, *arguments, DRY_RUN="1").stdout)
    aws.calls.clear()
    done = run_python(sdk, aws, tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    (sent,) = aws.made("CreateTrainingJob")
    assert differences(without_harmless(sent, shown), shown) == []
    code = f"/{BUCKET}/runs/code/"
    operations = {
        call.operation for call in aws.calls if not call.operation.startswith(f"PUT {code}")
    }
    assert operations <= {
        "DescribeImages",
        "GetProducts",
        "CreateTrainingJob",
        "DescribeTrainingJob",
        f"HEAD /{BUCKET}",
        "POST /",
        *([f"GET /{BUCKET}"] if job == "own code" else []),
        *(["BatchGetImage", "GetDownloadUrlForLayer"] if "loggers=[mlflow]" in job_of_test else []),
    }
    questions = [call.body for call in aws.calls if call.operation == "POST /"]
    assert questions and all(b"Action=GetRole" in body for body in questions)


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("ResourceLimitExceeded", "Service Quotas"),
        ("ResourceInUse", "the name is taken"),
        ("ExpiredTokenException", "aws sso login"),
    ],
)
@pytest.mark.parametrize("sdk", ENVIRONMENTS)
def test_service_error_passes_through_the_sdk_as_one_line(
    aws: Aws, tmp_path: Path, sdk: str, code: str, advice: str
) -> None:
    arguments = ["-m", "launch.sagemaker", "train", *COMMON, f"target.image={aws.push_image()}"]
    aws.refuse("CreateTrainingJob", code)
    done = run_python(sdk, aws, tmp_path, *arguments)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr + done.stdout
    line = done.stderr.splitlines()[-1]
    assert line.startswith("CreateTrainingJob failed: ") and advice in line
    # v2 also prints, once, that its support ends.
    assert done.stderr.count("\n") == (2 if sdk == "2" else 1)
    assert ("ends on 2027-07-06" in done.stderr) is (sdk == "2")


@pytest.mark.parametrize("sdk", ENVIRONMENTS)
def test_every_command_runs_in_the_sdk_environment(
    aws: Aws, bucket: Any, tmp_path: Path, sdk: str
) -> None:
    photos = tmp_path / "photos" / "train" / "a"
    photos.mkdir(parents=True)
    (photos / "1.jpg").write_bytes(b"x")
    image = f"target.image={aws.push_image()}"
    role = f"job.role={ROLE}"

    def run(module: str, *arguments: str) -> str:
        command = ("-m", f"launch.{module}", *arguments)
        done = run_python(sdk, aws, tmp_path, *command, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "bucket-of-setup: created" in run("setup_aws", "bucket=bucket-of-setup")
    source = f"s3://{BUCKET}/photos"
    assert "uploaded 1 files" in run("upload", f"source={tmp_path / 'photos'}", f"s3={source}")
    packing = [f"source={source}", f"output=s3://{BUCKET}/packed", "job.name=pack", "--no-wait"]
    assert "job pack created" in run("dataset", *packing, image, role)
    assert "pack" in run("sagemaker", "status")
    assert "pack: Completed" in run("sagemaker", "status", "pack")
    assert "already ended" in run("sagemaker", "stop", "pack")
    assert run("sagemaker", "logs", "pack") == ""
    training = ["job.name=train", image, role, f"job.output=s3://{BUCKET}/runs", "--wait"]
    assert "train: Completed" in run("sagemaker", "train", *training)
    archive = tmp_path / "model.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(photos / "1.jpg", "model.pt")
    described = aws.client("sagemaker").describe_training_job(TrainingJobName="train")
    key = described["ModelArtifacts"]["S3ModelArtifacts"].removeprefix(f"s3://{BUCKET}/")
    bucket.upload_file(str(archive), BUCKET, key)
    run("sagemaker", "download", "train")
    assert (tmp_path / "runs" / "train" / "model" / "model.pt").read_bytes() == b"x"


@pytest.mark.parametrize("sdk", ENVIRONMENTS)
def test_sdk_that_would_send_a_different_request_sends_nothing(
    aws: Aws, tmp_path: Path, sdk: str
) -> None:
    program = (
        f"import sys, launch.aws.sdk.v{sdk} as sdk\n"
        "inner = sdk.bind\n"
        "def bind(*arguments):\n"
        "    trainer = inner(*arguments)\n"
        "    trainer.environment = {'LEAKED': '1'}\n"
        "    return trainer\n"
        "sdk.bind = bind\n"
        "from launch.sagemaker import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    arguments = ["train", *COMMON, f"target.image={aws.push_image()}"]
    done = run_python(sdk, aws, tmp_path, "-c", program, *arguments)
    assert done.returncode == 1
    assert "would send a different request (Environment); nothing was sent" in done.stderr
    assert "Traceback" not in done.stderr
    assert not aws.made("CreateTrainingJob")
