"""Create the role, bucket and repository for jobs: ``make setup-aws ARGS="bucket=NAME"``.

``python -m launch.setup_aws`` prints the role's policies, creates what is missing and checks what
exists; running it again changes nothing. ``DRY_RUN=1`` prints everything without calling AWS.
Credentials, profile and region come from boto3.
"""

import json
import sys
from collections.abc import Sequence

from entry_point.config.compose import load_config
from launch.aws.job_role import Permissions, ensure_role
from launch.request.setup_config import SetupConfig
from launch.sagemaker.aws import aws_client, is_dry_run, open_session, run_and_explain


def main(arguments: Sequence[str]) -> int:
    """Exit code 0 if the account is set up, else 1."""
    return run_and_explain(lambda: _run(arguments))


def _run(arguments: Sequence[str]) -> int:
    from launch.aws.ecr import ensure_repository
    from launch.aws.s3.s3_bucket import ensure_bucket

    config = load_config("setup_aws", SetupConfig, arguments)
    if is_dry_run():
        _show(Permissions(config, "ACCOUNT", "REGION"))
        return 0
    session = open_session(None)
    region = session.region_name
    account = aws_client(session, "sts").get_caller_identity()["Account"]
    permissions = Permissions(config, account, region, session.get_partition_for_region(region))
    _show(permissions)
    role, done = ensure_role(aws_client(session, "iam"), permissions)
    _say(f"role {config.role}: {done}, policies as printed above")
    done = ensure_bucket(aws_client(session, "s3"), config.bucket, region)
    _say(f"bucket {config.bucket}: {done}")
    ensure_repository(config.repository)
    _say(f"repository {config.repository}: exists; `make push` pushes the image to it")
    _say(
        "next: set these in configs/launch.yaml, below job:\n"
        f"  role: {role}\n  output: s3://{config.bucket}/runs"
    )
    return 0


def _show(permissions: Permissions) -> None:
    config = permissions.config
    _say(
        f"bucket {config.bucket}: private; a new bucket deletes parts of incomplete uploads after "
        "7 days"
    )
    _say(
        f"repository {config.repository}: a new repository scans images on push and deletes "
        "untagged images after 14 days"
    )
    _say(f"role {config.role}: trust policy\n{json.dumps(permissions.trust(), indent=2)}")
    _say(f"role {config.role}: permissions\n{json.dumps(permissions.policy(), indent=2)}")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
