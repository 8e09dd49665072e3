"""Role, bucket and repository: one stack, created once, updated when something has changed."""

import json
from collections.abc import Sequence
from typing import Any

import boto3
import pytest
from moto.cloudformation.models import Event, Stack

from launch import setup_aws
from launch.setup_aws import STACK, TEMPLATE
from tests.launch.conftest import ACCOUNT, BUCKET, REGION, REPOSITORY, Aws
from tests.launch.job_role import allows, listed, role, statements

NEW = "bucket-to-be"
ARGUMENTS = [f"Bucket={NEW}", f"Repository={REPOSITORY}"]
KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/k"


def error_line(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert setup_aws.main(arguments) == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    return line


def test_everything_is_created_and_printed_as_overrides(
    aws: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    assert setup_aws.main(ARGUMENTS) == 0
    out = capsys.readouterr().out
    assert f"job.role={role(aws)['Arn']} job.output=s3://{NEW}/runs" in out
    assert f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/{REPOSITORY}" in out
    location = aws.client("s3").get_bucket_location(Bucket=NEW)
    assert location["LocationConstraint"] == REGION
    aws.client("ecr").describe_repositories(repositoryNames=[REPOSITORY])


def test_a_second_run_changes_nothing_and_says_so(
    aws: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    assert setup_aws.main(ARGUMENTS) == 0
    before = role(aws), statements(aws)
    capsys.readouterr()
    aws.calls.clear()
    # moto always finds a difference in a parameter that is a list.
    unchanged = "<Code>ValidationError</Code><Message>No updates are to be performed.</Message>"
    aws.answers["UpdateStack"] = [
        (400, f"<ErrorResponse><Error>{unchanged}</Error></ErrorResponse>")
    ]
    aws.answers["UpdateStack"].append(None)
    assert setup_aws.main(ARGUMENTS) == 0
    out = capsys.readouterr().out
    assert f"stack {STACK}: unchanged" in out and "job.role=" in out
    assert [call.operation for call in aws.calls] == ["UpdateStack", "DescribeStacks"]
    assert (role(aws), statements(aws)) == before


def test_a_changed_parameter_updates_the_stack(
    aws: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    assert setup_aws.main(ARGUMENTS) == 0
    assert setup_aws.main([*ARGUMENTS, f"KmsKeys={KEY}"]) == 0
    assert f"stack {STACK}: updated" in capsys.readouterr().out
    assert statements(aws)["Keys"]["Resource"] == [KEY]


def test_a_bucket_and_a_repository_that_exist_can_be_used(aws: Aws) -> None:
    aws.push_image()
    exists = ["CreateBucket=false", "CreateRepository=false"]
    assert setup_aws.main([f"Bucket={BUCKET}", f"Repository={REPOSITORY}", *exists]) == 0
    assert statements(aws)["Objects"]["Resource"] == f"arn:aws:s3:::{BUCKET}/*"


def test_each_region_can_have_a_stack(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    assert setup_aws.main(ARGUMENTS) == 0
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    assert setup_aws.main([f"Bucket={NEW}-2", *ARGUMENTS[1:]]) == 0
    roles = aws.client("iam").list_roles()["Roles"]
    assert len([each for each in roles if STACK in each["RoleName"]]) == 2


def test_a_dry_run_prints_the_parameters_and_the_template_and_does_not_call_aws(
    aws: Aws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("DRY_RUN", "1")
    assert setup_aws.main([*ARGUMENTS, f"KmsKeys={KEY}"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Bucket={NEW}\nRepository={REPOSITORY}\nKmsKeys={KEY}\n\n")
    assert out.endswith(TEMPLATE.read_text())
    assert not aws.calls


def fail(stack: Stack, status: str, failures: Sequence[tuple[str, str]]) -> None:
    """End the stack as AWS does when these resources fail."""
    for resource, reason in failures:
        stack.events.append(
            Event(
                stack_id=stack.stack_id,
                stack_name=stack.name,
                logical_resource_id=resource,
                physical_resource_id=resource,
                resource_type="AWS::S3::Bucket",
                resource_status="CREATE_FAILED",
                resource_status_reason=reason,
                resource_properties=None,
            )
        )
    stack._add_stack_event(status)
    stack.status = status


@pytest.mark.usefixtures("aws")
def test_a_stack_that_fails_says_the_first_reason_and_is_not_in_the_way_of_the_next(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons = [
        ("DataBucket", f"{NEW} already exists"),
        ("JobRole", "Resource creation cancelled"),
    ]
    with monkeypatch.context() as patch:
        patch.setattr(
            Stack, "create_resources", lambda stack: fail(stack, "ROLLBACK_COMPLETE", reasons)
        )
        assert error_line(capsys, *ARGUMENTS) == (
            f"stack {STACK}: DataBucket: {NEW} already exists; "
            "CreateBucket=false or CreateRepository=false uses one that exists\n"
        )
    assert setup_aws.main(ARGUMENTS) == 0
    assert f"stack {STACK}: created" in capsys.readouterr().out


@pytest.mark.usefixtures("aws")
def test_an_update_that_fails_does_not_tell_an_earlier_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failed_update(stack: Stack, *_: Any, **__: Any) -> None:
        fail(stack, "UPDATE_ROLLBACK_COMPLETE", [("DataBucket", "an earlier reason")])
        stack._add_stack_event("UPDATE_IN_PROGRESS", resource_status_reason="User Initiated")
        fail(stack, "UPDATE_ROLLBACK_COMPLETE", [("JobRole", "not\nauthorized")])

    assert setup_aws.main(ARGUMENTS) == 0
    monkeypatch.setattr(Stack, "update", failed_update)
    line = error_line(capsys, *ARGUMENTS, f"KmsKeys={KEY}")
    assert line == f"stack {STACK}: JobRole: not authorized\n"


def test_a_missing_permission_is_named(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    refused = "<Code>AccessDenied</Code><Message>cloudformation:UpdateStack</Message>"
    aws.answers["UpdateStack"] = [(403, f"<ErrorResponse><Error>{refused}</Error></ErrorResponse>")]
    line = error_line(capsys, *ARGUMENTS)
    assert "cloudformation:UpdateStack" in line and "ask for this permission" in line


@pytest.mark.usefixtures("aws")
def test_what_cloudformation_refuses_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Bucket" in error_line(capsys)
    assert "--vpc: must be PARAMETER=VALUE" in error_line(capsys, *ARGUMENTS, "--vpc")


def test_the_role_is_limited_to_the_named_resources(aws: Aws) -> None:
    read = "ReadBuckets=arn:aws:s3:::shared,arn:aws:s3:::shared/*"
    assert setup_aws.main([*ARGUMENTS, read, f"KmsKeys={KEY}"]) == 0
    found = statements(aws)
    everywhere = {sid for sid, each in found.items() if each["Resource"] == "*"}
    assert everywhere == {
        "Registry",
        "Metrics",
        "Network",
    }  # most of these actions take no resources
    actions = [action for each in found.values() for action in listed(each["Action"])]
    assert actions and not any("*" in action for action in actions)
    assert found["Objects"]["Resource"] == f"arn:aws:s3:::{NEW}/*"
    assert found["Bucket"]["Resource"] == f"arn:aws:s3:::{NEW}"
    assert found["read-buckets"]["Resource"] == ["arn:aws:s3:::shared", "arn:aws:s3:::shared/*"]
    assert found["read-buckets"]["Action"] == [
        "s3:GetObject",
        "s3:ListBucket",
        "s3:GetBucketLocation",
    ]
    assert found["Keys"]["Resource"] == found["Grants"]["Resource"] == [KEY]
    place = f"{REGION}:{ACCOUNT}"
    assert found["Image"]["Resource"] == f"arn:aws:ecr:{place}:repository/{REPOSITORY}"
    assert found["Logs"]["Resource"] == f"arn:aws:logs:{place}:log-group:/aws/sagemaker/*"
    assert len(json.dumps(found, separators=(",", ":"))) < 10_240  # IAM's limit for a role


def test_metrics_network_interfaces_and_grants_depend_on_their_requests(aws: Aws) -> None:
    assert setup_aws.main([*ARGUMENTS, f"KmsKeys={KEY}"]) == 0
    found = [*statements(aws).values()]
    for namespace, expected in {"/aws/sagemaker/TrainingJobs": True, "AWS/EC2": False}.items():
        context = {"cloudwatch:namespace": namespace}
        assert allows(found, "cloudwatch:PutMetricData", "*", context) is expected
    for region, expected in {REGION: True, "us-east-1": False}.items():
        context = {"aws:RequestedRegion": region}
        assert allows(found, "ec2:CreateNetworkInterface", "*", context) is expected
    for given, expected in {"true": True, "false": False, None: False}.items():
        context = {"kms:GrantIsForAWSResource": given} if given else {}
        assert allows(found, "kms:CreateGrant", KEY, context) is expected
    assert allows(found, "kms:GenerateDataKey", KEY) and not allows(found, "kms:Decrypt", "other")


def test_only_sagemaker_may_assume_the_role_and_only_for_this_account(aws: Aws) -> None:
    assert setup_aws.main(ARGUMENTS) == 0
    (statement,) = role(aws)["AssumeRolePolicyDocument"]["Statement"]
    assert statement["Principal"] == {"Service": "sagemaker.amazonaws.com"}
    assert statement["Condition"] == {"StringEquals": {"aws:SourceAccount": ACCOUNT}}
    assert {*statements(aws)}.isdisjoint({"read-buckets", "Keys", "Grants"})


def test_the_template_keeps_data_private_and_never_deletes_it() -> None:
    # moto does not set these properties.
    resources = Stack.parse_template(TEMPLATE.read_text())["Resources"]
    bucket, repository = resources["DataBucket"], resources["ImageRepository"]
    for resource in (bucket, repository):
        assert resource["DeletionPolicy"] == "RetainExceptOnCreate"
        assert resource["UpdateReplacePolicy"] == "Retain"
    assert set(bucket["Properties"]["PublicAccessBlockConfiguration"].values()) == {True}
    assert len(bucket["Properties"]["PublicAccessBlockConfiguration"]) == 4
    (rule,) = bucket["Properties"]["LifecycleConfiguration"]["Rules"]
    assert rule["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 7}
    assert repository["Properties"]["ImageScanningConfiguration"] == {"ScanOnPush": True}
    assert repository["Properties"]["ImageTagMutability"] == "IMMUTABLE"
    assert "LifecyclePolicy" not in repository["Properties"]
