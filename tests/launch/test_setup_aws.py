"""Role, bucket and repository: created once, then only checked; never silently replaced."""

import json
from dataclasses import replace
from typing import Any

import boto3
import pytest

from launch import setup_aws
from launch.aws.job_role import Permissions
from launch.aws.s3.s3_bucket import BLOCK_PUBLIC_ACCESS
from launch.request.setup_config import SetupConfig
from tests.launch.conftest import ACCOUNT, REGION, REPOSITORY, Aws, refusal

BUCKET = "bucket-to-be"
CONFIG = SetupConfig(BUCKET, repository=REPOSITORY)
ARGUMENTS = [f"bucket={BUCKET}", "role=jobs", f"repository={REPOSITORY}"]


def error_line(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert setup_aws.main(arguments) == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    return line


def documents(out: str) -> list[dict[str, Any]]:
    """The JSON documents in the output."""
    decoder, found = json.JSONDecoder(), []
    while "{" in out:
        document, end = decoder.raw_decode(out := out[out.index("{") :])
        found.append(document)
        out = out[end:]
    return found


def state(aws: Aws) -> dict[str, Any]:
    """Everything that setup-aws creates, as AWS describes it."""
    iam, s3, ecr = (aws.client(service) for service in ("iam", "s3", "ecr"))
    lifecycle = s3.get_bucket_lifecycle_configuration(Bucket=BUCKET)
    return {
        "trust": iam.get_role(RoleName="jobs")["Role"]["AssumeRolePolicyDocument"],
        "policies": {
            name: iam.get_role_policy(RoleName="jobs", PolicyName=name)["PolicyDocument"]
            for name in iam.list_role_policies(RoleName="jobs")["PolicyNames"]
        },
        "attached": iam.list_attached_role_policies(RoleName="jobs")["AttachedPolicies"],
        "public": s3.get_public_access_block(Bucket=BUCKET)["PublicAccessBlockConfiguration"],
        "region": s3.get_bucket_location(Bucket=BUCKET)["LocationConstraint"],
        "lifecycle": lifecycle["Rules"],
        "repository": ecr.describe_repositories(repositoryNames=[REPOSITORY])["repositories"],
    }


def test_everything_is_created_and_the_settings_are_printed(
    aws: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    assert setup_aws.main(ARGUMENTS) == 0
    out = capsys.readouterr().out
    found = state(aws)
    assert documents(out) == [found["trust"], *found["policies"].values()]
    assert found["public"] == BLOCK_PUBLIC_ACCESS
    assert found["region"] == REGION
    assert found["lifecycle"][0]["AbortIncompleteMultipartUpload"]
    assert found["attached"] == []
    assert f"role: arn:aws:iam::{ACCOUNT}:role/jobs" in out
    assert f"output: s3://{BUCKET}/runs" in out


def test_second_run_changes_nothing(aws: Aws) -> None:
    assert setup_aws.main(ARGUMENTS) == 0
    before = state(aws)
    aws.calls.clear()
    assert setup_aws.main(ARGUMENTS) == 0
    assert state(aws) == before
    asked = b"\n".join(call.body for call in aws.calls)
    assert not any(word in asked for word in (b"Action=Create", b"Action=Put", b"Action=Update"))
    assert not [call for call in aws.calls if call.operation.startswith("PUT ")]


def test_incomplete_setup_is_completed(aws: Aws) -> None:
    trust = Permissions(CONFIG, ACCOUNT, REGION).trust()
    aws.client("iam").create_role(RoleName="jobs", AssumeRolePolicyDocument=json.dumps(trust))
    assert setup_aws.main(ARGUMENTS) == 0
    assert list(state(aws)["policies"]) == [f"jobs-{REGION}"]


def test_dry_run_prints_everything_and_does_not_call_aws(
    aws: Aws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("DRY_RUN", "1")
    assert setup_aws.main(ARGUMENTS) == 0
    shown = Permissions(CONFIG, "ACCOUNT", "REGION")
    assert documents(capsys.readouterr().out) == [shown.trust(), shown.policy()]
    assert not aws.calls


def test_role_with_other_policies_is_replaced_only_with_update(
    aws: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    assert setup_aws.main(ARGUMENTS) == 0
    wanted = state(aws)
    other = {**wanted["trust"], "Statement": [{**wanted["trust"]["Statement"][0], "Condition": {}}]}
    iam = aws.client("iam")
    iam.update_assume_role_policy(RoleName="jobs", PolicyDocument=json.dumps(other))
    wider = Permissions(SetupConfig(BUCKET, repository="*"), ACCOUNT, REGION).policy()
    iam.put_role_policy(
        RoleName="jobs", PolicyName=f"jobs-{REGION}", PolicyDocument=json.dumps(wider)
    )
    before = state(aws)
    line = error_line(capsys, *ARGUMENTS)
    assert (
        f"role=jobs: differs from the policies printed above: trust policy, policy jobs-{REGION}"
        in line
    )
    assert state(aws) == before
    assert setup_aws.main([*ARGUMENTS, "update=true"]) == 0
    assert state(aws) == wanted


def test_another_region_adds_a_policy_to_the_role(
    aws: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert setup_aws.main(ARGUMENTS) == 0
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    assert setup_aws.main([f"bucket={BUCKET}-2", *ARGUMENTS[1:]]) == 0
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    assert set(state(aws)["policies"]) == {f"jobs-{REGION}", "jobs-us-east-1"}


@pytest.mark.usefixtures("aws")
def test_bucket_in_another_region_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    elsewhere = "eu-central-1"
    boto3.client("s3", region_name=elsewhere).create_bucket(
        Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": elsewhere}
    )
    assert f"bucket={BUCKET}: is in eu-central-1" in error_line(capsys, *ARGUMENTS)


def test_bucket_of_another_account_is_refused(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    aws.answers[f"HEAD /{BUCKET}"] = [(403, "")]
    assert "belongs to another account" in error_line(capsys, *ARGUMENTS)


def test_missing_permission_is_named(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    aws.answers["CreateRepository"] = [refusal("AccessDeniedException", "ecr:CreateRepository")]
    line = error_line(capsys, *ARGUMENTS)
    assert "ecr:CreateRepository" in line and "ask for this permission" in line


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "bucket: has no value"),
        (["bucket=s3://b"], "bucket=s3://b"),
        (["bucket=Big"], "bucket=Big"),
        (["bucket=bbb", "read_buckets=[a_b]"], "read_buckets=a_b"),
        (["bucket=bbb", "role='arn:aws:iam::1:role/x'"], "a name, not an ARN"),
        (["bucket=bbb", "kms_keys=[alias/x]"], "kms_keys=alias/x"),
        (["bucket=bbb", "vcp=true"], "vcp"),
    ],
)
def test_invalid_setting_is_named(
    aws: Aws, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    assert reason in error_line(capsys, *arguments)
    assert not aws.calls


def test_role_is_limited_to_the_named_resources() -> None:
    plain = SetupConfig("own", repository="images")
    full = replace(plain, read_buckets=["shared"], kms_keys=["arn:aws:kms:r:1:key/k"], vpc=True)
    policy = Permissions(full, ACCOUNT, REGION).policy()
    by_sid = {statement["Sid"]: statement for statement in policy["Statement"]}
    everywhere = {sid for sid, statement in by_sid.items() if statement["Resource"] == ["*"]}
    assert everywhere == {"Registry", "Metrics", "Network"}  # whose actions take no resources
    assert not any("*" in action for s in by_sid.values() for action in s["Action"])
    shared = [s for s in by_sid.values() if any("shared" in arn for arn in s["Resource"])]
    assert {action for statement in shared for action in statement["Action"]} == {
        "s3:GetObject",
        "s3:ListBucket",
        "s3:GetBucketLocation",
    }
    assert by_sid["Image"]["Resource"] == [f"arn:aws:ecr:{REGION}:{ACCOUNT}:repository/images"]
    minimal = Permissions(plain, ACCOUNT, REGION).policy()
    assert {s["Sid"] for s in minimal["Statement"]}.isdisjoint({"OtherBuckets", "Keys", "Network"})
    assert len(json.dumps(policy, separators=(",", ":"))) < 10_240  # IAM's limit for a role
