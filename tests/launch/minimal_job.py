"""The smallest launch config, and the jobs planned from it."""

from typing import Any

from launch.sagemaker.checks import problems
from launch.sagemaker.plan import Plan, plan
from tests.launch.conftest import ACCOUNT, BUCKET, REGION, ROLE

IMAGE = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/training@sha256:{'0' * 64}"
MINIMAL = [f"job.role={ROLE}", f"job.output=s3://{BUCKET}/runs", f"target.image={IMAGE}"]


def planned(*arguments: str) -> Plan:
    return plan([*MINIMAL, *arguments], None)


def refused(*arguments: str) -> list[str]:
    """The problems of a launch in the tests' region."""
    return list(problems(planned(*arguments), REGION))


def sent(*arguments: str) -> dict[str, Any]:
    """The request of a launch without problems."""
    made = planned(*arguments)
    assert list(problems(made, REGION)) == []
    return made.request
