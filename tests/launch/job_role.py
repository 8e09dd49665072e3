"""The role that launch/account.yaml creates, and what IAM's simulator says of it."""

import ast
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import parse_qs

from launch.setup_aws import STACK, TEMPLATE
from tests.launch.conftest import Aws


def create_stack(aws: Aws, **parameters: str) -> None:
    """Have CloudFormation create what `make setup-aws` asks it for."""
    aws.client("cloudformation").create_stack(
        StackName=STACK,
        TemplateBody=TEMPLATE.read_text(),
        Parameters=[{"ParameterKey": k, "ParameterValue": v} for k, v in parameters.items()],
        Capabilities=["CAPABILITY_NAMED_IAM"],
    )


def role(aws: Aws) -> dict[str, Any]:
    """Returns the role that the stack created, as AWS describes it."""
    roles = aws.client("iam").list_roles()["Roles"]
    (name,) = (each["RoleName"] for each in roles if each["RoleName"].startswith(STACK))
    found: dict[str, Any] = aws.client("iam").get_role(RoleName=name)["Role"]
    return found


def statements(aws: Aws) -> dict[str, dict[str, Any]]:
    """Returns every statement of the role's policies, by its Sid or its policy's name."""
    iam, name = aws.client("iam"), role(aws)["RoleName"]
    assert iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"] == []
    found: dict[str, dict[str, Any]] = {}
    for policy in iam.list_role_policies(RoleName=name)["PolicyNames"]:
        document = iam.get_role_policy(RoleName=name, PolicyName=policy)["PolicyDocument"]
        if isinstance(document, str):  # moto's form of a document in a template's role
            document = ast.literal_eval(document)
        found |= {each.get("Sid", policy): each for each in document["Statement"]}
    return found


def allows(
    statements: Iterable[Mapping[str, Any]],
    action: str,
    resource: str,
    context: Mapping[str, str] | None = None,
) -> bool:
    """Whether one of the statements, all of which allow, covers a request.

    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_condition_operators.html:
    a condition on a key that the context lacks fails, unless its operator ends in IfExists.
    """
    return any(
        action in listed(statement["Action"])
        and any(fnmatchcase(resource, each) for each in listed(statement["Resource"]))
        and all(
            any(fnmatchcase(given, each) for each in listed(wanted))
            if (given := (context or {}).get(key)) is not None
            else operator.endswith("IfExists")
            for operator, pairs in statement.get("Condition", {}).items()
            for key, wanted in pairs.items()
        )
        for statement in statements
    )


def listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def answer_simulations(aws: Aws) -> None:
    """Answer SimulatePrincipalPolicy, which moto lacks, from the statements of the stack's role."""
    found, arn = [*statements(aws).values()], role(aws)["Arn"]

    def simulate(body: bytes) -> tuple[int, str]:
        members = {key: values[0] for key, values in parse_qs(body.decode()).items()}
        assert members["PolicySourceArn"] == arn
        actions = [value for key, value in members.items() if key.startswith("ActionNames.")]
        resource = members.get("ResourceArns.member.1", "*")
        results = "".join(
            f"<member><EvalActionName>{action}</EvalActionName><EvalDecision>"
            f"{'allowed' if allows(found, action, resource) else 'implicitDeny'}"
            "</EvalDecision></member>"
            for action in actions
        )
        return 200, (
            "<SimulatePrincipalPolicyResponse><SimulatePrincipalPolicyResult><EvaluationResults>"
            f"{results}</EvaluationResults><IsTruncated>false</IsTruncated>"
            "</SimulatePrincipalPolicyResult></SimulatePrincipalPolicyResponse>"
        )

    aws.answers["SimulatePrincipalPolicy"] = [simulate]
