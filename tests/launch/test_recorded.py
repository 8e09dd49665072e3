"""Dry runs and mistakes as recorded: what a launch sends, and what it says, changes on purpose.

`recorded_requests.json` holds what jobs with every kind of capacity, input and network send: the
request of `minimal`, and of the others what they change of it (null: they lack the member),
`recorded_mistakes.json` the lines that name the key, the value and the remedy, and what whoever
follows them launches. Both without what
differs between two launches: the job's name, the commit and the digest of the code.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from entry_point.config.hyperparameters import decode
from entry_point.job.metrics_line import metric_regexes
from launch.sagemaker import __main__ as sagemaker

HERE = Path(__file__).parent
ACCOUNT, REGION = "111122223333", "eu-west-1"
MINIMAL = {
    "job.role": f"arn:aws:iam::{ACCOUNT}:role/training",
    "job.output": "s3://my-bucket/runs",
    "target.image": f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/training@sha256:{'0' * 64}",
}
REQUESTS = json.loads((HERE / "recorded_requests.json").read_text())
MISTAKES = json.loads((HERE / "recorded_mistakes.json").read_text())


@pytest.fixture(autouse=True)
def dry_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRY_RUN", "1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)


def _launch(launch: dict[str, Any]) -> int:
    given = {**MINIMAL, **launch.get("minimal", {})}
    minimal = [f"{key}={value}" for key, value in given.items() if value is not None]
    return sagemaker.main([launch["command"], *minimal, *launch["overrides"]])


@pytest.mark.parametrize("name", REQUESTS)
def test_a_dry_run_prints_the_recorded_request(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _launch(REQUESTS[name]) == 0
    request = _normalized(json.loads(capsys.readouterr().out))
    minimal = REQUESTS["minimal"]["request"]
    assert _changes(minimal, request) == REQUESTS[name].get("changes", {})


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_with_the_recorded_lines(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _launch(MISTAKES[name]) == 1
    assert capsys.readouterr().err.splitlines() == MISTAKES[name]["says"]


@pytest.mark.parametrize("name", MISTAKES)
def test_whoever_follows_the_lines_has_a_request(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    then = MISTAKES[name]["then"]
    for variable, value in then.get("environment", {}).items():
        monkeypatch.setenv(variable, value)
    assert _launch({"command": MISTAKES[name]["command"], **then}) == 0, capsys.readouterr().err
    assert json.loads(capsys.readouterr().out)


def _changes(minimal: Any, member: Any) -> Any:
    if not (isinstance(minimal, dict) and isinstance(member, dict)):
        return member
    gone: dict[str, Any] = dict.fromkeys(minimal.keys() - member.keys())
    other = {name: each for name, each in member.items() if each != minimal.get(name)}
    return gone | {name: _changes(minimal.get(name), each) for name, each in other.items()}


def _normalized(request: dict[str, Any]) -> dict[str, Any]:
    """The request without what differs between two launches of the same job.

    Hyperparameters are compared as the overrides that they mean to the job; the expressions of the
    metrics are those of a classification.
    """
    if "HyperParameters" in request:
        request["HyperParameters"] = sorted(decode(request["HyperParameters"]))
    algorithm = request["AlgorithmSpecification"]
    metrics = {each["Name"]: each["Regex"] for each in algorithm["MetricDefinitions"]}
    assert metrics == metric_regexes("classification")
    algorithm["MetricDefinitions"] = "all"
    tags = {tag["Key"]: tag for tag in request["Tags"]}
    tags["commit"]["Value"] = "COMMIT"
    text = json.dumps(request).replace(request["TrainingJobName"], "NAME")
    text = re.sub(r"\b[0-9a-f]{16}\b", "CODE", text)
    normalized: dict[str, Any] = json.loads(text)
    return normalized
