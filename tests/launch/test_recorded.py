"""What jobs with every kind of capacity, input and network send changes on purpose.

`recorded_requests.json` has the request of `minimal`, and of the others what they change of it
(null: they lack the member), without what differs between two launches: the job's name, the commit
and the digest of the code.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from entry_point.config.hyperparameters import decode
from entry_point.job.metrics_line import metric_regexes
from launch.sagemaker import __main__ as sagemaker
from tests.launch.conftest import MINIMAL, Terminal

REQUESTS = json.loads(Path(__file__).with_name("recorded_requests.json").read_text())


@pytest.mark.usefixtures("dry_run")
@pytest.mark.parametrize("name", REQUESTS)
def test_a_dry_run_prints_the_recorded_request(name: str, terminal: Terminal) -> None:
    printed = terminal.out(sagemaker.main, "train", *MINIMAL, *REQUESTS[name]["overrides"])
    minimal = REQUESTS["minimal"]["request"]
    assert _changes(minimal, _normalized(json.loads(printed))) == REQUESTS[name].get("changes", {})


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
