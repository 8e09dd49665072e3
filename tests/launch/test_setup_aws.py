"""Role, bucket and repository: one stack, created once, updated when something has changed."""

import json
import shlex
import shutil
from pathlib import Path
from urllib.parse import parse_qs

import boto3
import pytest
from moto.cloudformation.models import Stack

from entry_point.config import compose
from entry_point.job.program import ExitCode
from launch import setup_aws
from launch.sagemaker import __main__ as sagemaker
from launch.sagemaker.config import load_launch_config
from launch.setup_aws import STACK, TEMPLATE
from tests.launch.conftest import ACCOUNT, BUCKET, MINIMAL, REGION, REGISTRY, Aws, Terminal
from tests.launch.job_role import allows, create_stack, listed, role, statements

NEW = "bucket-to-be"
REPOSITORY = "training"
ARGUMENTS = [f"Bucket={NEW}", f"Repository={REPOSITORY}"]
KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/k"
# Some of its properties moto does not set.
PARSED = Stack.parse_template(TEMPLATE.read_text())
RESOURCES = PARSED["Resources"]


def test_everything_is_created_and_every_launch_reads_role_and_output(
    aws_cli: Aws, terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = terminal.out(setup_aws.main, *ARGUMENTS, "OutputPrefix=team/jobs")
    arn = role(aws_cli)["Arn"]
    assert f"job.role={arn} job.output=s3://{NEW}/team/jobs" in out
    push = f"make image push IMAGE={REPOSITORY}"
    assert f"`{push}` pushes the image to {REGISTRY}/{REPOSITORY}\n" in out
    shutil.copytree(compose.CONFIGS, tmp_path / "configs")
    shutil.copy(tmp_path / "mine.yaml", tmp_path / "configs/target/mine.yaml")
    monkeypatch.setattr(compose, "CONFIGS", tmp_path / "configs")
    config, _ = load_launch_config(["target=gpu_spot"])
    assert (config.job.role, config.job.output) == (arn, f"s3://{NEW}/team/jobs")
    assert config.target.spot
    config, _ = load_launch_config(["job.output=s3://other/jobs"])
    assert (config.job.role, config.job.output) == (arn, "s3://other/jobs")
    location = aws_cli.client("s3").get_bucket_location(Bucket=NEW)
    assert location["LocationConstraint"] == REGION
    aws_cli.client("ecr").describe_repositories(repositoryNames=[REPOSITORY])


def test_a_file_of_the_users_is_not_replaced(
    aws_cli: Aws, terminal: Terminal, tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text("instance_type: ml.g6.xlarge\n")
    line = terminal.refusal(setup_aws.main, *ARGUMENTS, code=ExitCode.USAGE)
    assert f"job.role={role(aws_cli)['Arn']} job.output=s3://" in line
    assert (tmp_path / "mine.yaml").read_text() == "instance_type: ml.g6.xlarge\n"


def refuse_change_sets(aws: Aws) -> None:
    refused = "<Code>AccessDenied</Code><Message>cloudformation:CreateChangeSet</Message>"
    aws.answers["CreateChangeSet"] = [
        (403, f"<ErrorResponse><Error>{refused}</Error></ErrorResponse>")
    ]


def test_an_update_keeps_the_parameters_that_it_does_not_name(aws_cli: Aws) -> None:
    create_stack(aws_cli, Bucket=NEW, Repository=REPOSITORY)
    refuse_change_sets(aws_cli)  # moto cannot update from previous values that are lists
    assert setup_aws.main([f"KmsKeys={KEY}"]) != 0
    body = next(c.body for c in reversed(aws_cli.calls) if c.operation == "CreateChangeSet")
    sent = {key: values[0] for key, values in parse_qs(body.decode()).items()}
    names = {sent[key]: key for key in sent if key.endswith(".ParameterKey")}
    assert sent[names["KmsKeys"].replace("ParameterKey", "ParameterValue")] == KEY
    kept = {
        n for n, key in names.items() if key.replace("ParameterKey", "UsePreviousValue") in sent
    }
    assert kept == {*names} - {"KmsKeys"} and {"Bucket", "Repository", "CreateBucket"} <= kept


def test_a_bucket_and_a_repository_that_exist_can_be_used(aws: Aws) -> None:
    aws.client("ecr").create_repository(repositoryName=REPOSITORY)
    exists = {"CreateBucket": "false", "CreateRepository": "false"}
    create_stack(aws, Bucket=BUCKET, Repository=REPOSITORY, **exists)
    assert statements(aws)["Write"]["Resource"] == f"arn:aws:s3:::{BUCKET}/jobs/*"


def test_each_region_can_have_a_stack(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    create_stack(aws, Bucket=NEW)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    create_stack(aws, Bucket=f"{NEW}-2")
    roles = aws.client("iam").list_roles()["Roles"]
    assert len([each for each in roles if STACK in each["RoleName"]]) == 2


def test_a_dry_run_prints_the_command_and_needs_no_aws_cli(
    aws: Aws, terminal: Terminal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DRY_RUN", "1")
    more = (f"KmsKeys={KEY},{KEY}2", "stack=second")
    command = shlex.split(terminal.out(setup_aws.main, *ARGUMENTS, *more))
    assert command[:3] == ["aws", "cloudformation", "deploy"]
    assert {"CAPABILITY_NAMED_IAM", "--no-fail-on-empty-changeset", "second"} <= {*command}
    assert command[-3:] == [*ARGUMENTS, f"KmsKeys={KEY},{KEY}2"]
    assert Path(command[command.index("--template-file") + 1]).resolve() == TEMPLATE
    assert not aws.calls


def test_what_aws_refuses_is_an_exit_code_beside_its_own_words(
    aws_cli: Aws, capfd: pytest.CaptureFixture[str]
) -> None:
    refuse_change_sets(aws_cli)
    assert setup_aws.main(ARGUMENTS) != 0
    told = capfd.readouterr()
    assert "cloudformation:CreateChangeSet" in told.err and "job.role" not in told.out


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("--vpc", "must be PARAMETER=VALUE"),
        ("ReadBuckets=arn:aws:s3:::a", "retired: use ManagedPolicies"),
        # The AWS CLI ignores it, and the rule of the bucket would delete checkpoints.
        ("CheckpointDay=0", "no such parameter, must be one of Bucket, CreateBucket, OutputPr"),
    ],
)
def test_a_word_that_is_no_parameter_is_one_line(
    word: str, reason: str, terminal: Terminal
) -> None:
    line = terminal.refusal(setup_aws.main, *ARGUMENTS, word, code=ExitCode.USAGE)
    assert f"{word}: {reason}" in line


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (None, "there is no command aws"),
        ("echo aws-cli/1.45.11 Python/3.11.7", "aws is version 1.45.11"),
        ("echo aws-cli/1.16.1 Python/2.7.5 >&2", "aws is version 1.16.1"),
        ("echo pyenv: aws: command not found >&2; exit 127", "there is no command aws"),
    ],
)
def test_without_version_2_of_the_aws_cli_one_line_says_where_to_get_it(
    script: str | None,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    terminal: Terminal,
) -> None:
    if script:
        (tmp_path / "aws").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "aws").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    line = terminal.refusal(setup_aws.main, *ARGUMENTS, code=ExitCode.USAGE)
    assert line.startswith(f"setup-aws: {words}: install version 2 of the AWS CLI, see https://")


def test_the_role_is_limited_to_the_named_resources_and_sagemaker(aws: Aws) -> None:
    create_stack(aws, Bucket=NEW, Repository=REPOSITORY, KmsKeys=KEY)
    found, place = statements(aws), f"{REGION}:{ACCOUNT}"
    actions = [action for each in found.values() for action in listed(each["Action"])]
    assert actions and not any("*" in action for action in actions)
    assert {sid: each["Resource"] for sid, each in found.items()} == {
        # Most of these actions take no resources.
        **dict.fromkeys(("Registry", "Metrics", "Network"), "*"),
        "Read": f"arn:aws:s3:::{NEW}/*",
        "Write": f"arn:aws:s3:::{NEW}/jobs/*",
        "Bucket": f"arn:aws:s3:::{NEW}",
        "Keys": [KEY],
        "Grants": [KEY],
        "Image": f"arn:aws:ecr:{place}:repository/{REPOSITORY}",
        "Logs": f"arn:aws:logs:{place}:log-group:/aws/sagemaker/*",
    }
    assert found["Read"]["Action"] == "s3:GetObject"
    assert len(json.dumps(found, separators=(",", ":"))) < 10_240  # IAM's limit for a role
    for action, resource, key, given, expected in (
        ("cloudwatch:PutMetricData", "*", "cloudwatch:namespace", "/aws/sagemaker/Endpoints", True),
        ("cloudwatch:PutMetricData", "*", "cloudwatch:namespace", "AWS/EC2", False),
        ("ec2:CreateNetworkInterface", "*", "aws:RequestedRegion", REGION, True),
        ("ec2:CreateNetworkInterface", "*", "aws:RequestedRegion", "us-east-1", False),
        ("kms:CreateGrant", KEY, "kms:GrantIsForAWSResource", "true", True),
        ("kms:CreateGrant", KEY, "kms:GrantIsForAWSResource", "false", False),
        ("kms:CreateGrant", KEY, "any", "", False),
        ("kms:GenerateDataKey", KEY, "any", "", True),
        ("kms:Decrypt", "another-key", "any", "", False),
    ):
        assert allows(found.values(), action, resource, {key: given}) is expected
    (trust,) = role(aws)["AssumeRolePolicyDocument"]["Statement"]
    assert trust["Principal"] == {"Service": "sagemaker.amazonaws.com"}
    assert trust["Condition"] == {"StringEquals": {"aws:SourceAccount": ACCOUNT}}


def test_without_keys_the_role_may_use_none(aws: Aws) -> None:
    create_stack(aws, Bucket=NEW)
    assert {*statements(aws)}.isdisjoint({"Keys", "Grants"})


def test_the_template_keeps_data_private_and_never_deletes_it() -> None:
    bucket, repository = RESOURCES["DataBucket"], RESOURCES["ImageRepository"]
    for resource in (bucket, repository):
        assert resource["DeletionPolicy"] == "RetainExceptOnCreate"
        assert resource["UpdateReplacePolicy"] == "Retain"
    assert set(bucket["Properties"]["PublicAccessBlockConfiguration"].values()) == {True}
    assert len(bucket["Properties"]["PublicAccessBlockConfiguration"]) == 4
    parts, tiers, _ = bucket["Properties"]["LifecycleConfiguration"]["Rules"]
    assert parts["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 7}
    assert tiers["Prefix"] == {"Fn::Sub": "${OutputPrefix}/"} and "ExpirationInDays" not in tiers
    assert repository["Properties"]["ImageScanningConfiguration"] == {"ScanOnPush": True}
    assert repository["Properties"]["ImageTagMutability"] == "IMMUTABLE"
    assert "LifecyclePolicy" not in repository["Properties"]


@pytest.mark.parametrize("more", [["job.name=mine"], ["resume_from=earlier"]])
@pytest.mark.usefixtures("dry_run")
def test_a_rule_of_the_bucket_deletes_the_checkpoints_of_every_job_and_nothing_else(
    more: list[str], terminal: Terminal
) -> None:
    rules = RESOURCES["DataBucket"]["Properties"]["LifecycleConfiguration"]["Rules"]
    condition, rule, otherwise = rules[2]["Fn::If"]
    assert (condition, otherwise) == ("DeletesCheckpoints", {"Ref": "AWS::NoValue"})
    assert PARSED["Conditions"][condition] == {
        "Fn::Not": [{"Fn::Equals": [{"Ref": "CheckpointDays"}, 0]}]
    }
    assert rule["ExpirationInDays"] == {"Ref": "CheckpointDays"}
    deleted = f"s3://{BUCKET}/{rule['Prefix']['Fn::Sub']}".replace("${OutputPrefix}", "team/jobs")
    output = f"job.output=s3://{BUCKET}/team/jobs"
    request = json.loads(terminal.out(sagemaker.main, "train", *MINIMAL, output, *more))
    assert request.pop("CheckpointConfig")["S3Uri"].startswith(deleted)
    assert "/checkpoints/" not in json.dumps(request)


def test_policies_for_what_else_jobs_use_are_attached() -> None:
    policies = RESOURCES["JobRole"]["Properties"]["ManagedPolicyArns"]
    nothing = {"Ref": "AWS::NoValue"}
    assert policies == {"Fn::If": ["HasPolicies", {"Ref": "ManagedPolicies"}, nothing]}
    assert PARSED["Parameters"]["ManagedPolicies"]["Default"] == ""


def test_a_new_bucket_refuses_requests_without_tls() -> None:
    (statement,) = RESOURCES["TlsOnly"]["Properties"]["PolicyDocument"]["Statement"]
    assert [statement[key] for key in ("Effect", "Principal", "Action")] == ["Deny", "*", "s3:*"]
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    bucket = {"Fn::Sub": "arn:${AWS::Partition}:s3:::${Bucket}"}
    assert statement["Resource"] == [bucket, {"Fn::Sub": f"{bucket['Fn::Sub']}/*"}]
