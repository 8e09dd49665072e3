"""Invalid requests are refused before they are sent, with the config key of each problem."""

from collections.abc import Iterator
from typing import Any

import pytest

from entry_point.contract.hyperparameters import VALUE_CHARACTERS, encode
from entry_point.contract.metrics_line import METRIC_REGEXES
from launch.request import config_keys, service_model, training_checks
from launch.request.launch_config import LaunchConfig
from launch.request.launch_errors import LaunchError
from tests.launch.conftest import ACCOUNT, BUCKET, REGION
from tests.launch.minimal_job import MINIMAL, built, checked

ECR = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com"
CHANNEL = f"job.channels.training=s3://{BUCKET}/data/"
GROUPS = "target.instance_groups=[{name:a,instance_type:ml.c7i.large}]"


# Members that no config key changes.
FIXED_MEMBERS = {
    "AlgorithmSpecification.TrainingInputMode",
    "CheckpointConfig.LocalPath",
    "TensorBoardOutputConfig.LocalPath",
    "EnableManagedSpotTraining",
} | {
    f"AlgorithmSpecification.MetricDefinitions[{number}].{member}"
    for number in range(len(METRIC_REGEXES))
    for member in ("Name", "Regex")
}


def refusal(*arguments: str, minimal: list[str] = MINIMAL) -> list[str]:
    """The lines of the error."""
    with pytest.raises(LaunchError) as caught:
        checked(*arguments, minimal=minimal)
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("overrides", "key", "reason"),
    [
        # Limits of the service: types, patterns, enums, minimums and maximums.
        (["job.name=-x"], "job.name=-x", "letters, digits and hyphens"),
        ([f"job.name={'x' * 64}"], "job.name=xxx", "1 to 63 letters"),
        ([f"job.base_name={'x' * 50}"], "job.base_name=xxx", "63 letters"),
        (["job.base_name=under_score"], "job.base_name=under_score", "letters, digits and hyphens"),
        (["job.role=training"], "job.role=training", "must be the ARN of a role, arn:aws:iam::"),
        (["job.output=/tmp/x"], "job.output=/tmp/x", "must be an S3 prefix, s3://bucket/prefix"),
        (["target.instance_type=ml.c7i.3xlarge"], "target.instance_type", "ml.c7i.xlarge"),
        (["target.volume_gb=-1"], "target.volume_gb=-1", "at least 0"),
        (["target.max_runtime_s=0"], "target.max_runtime_s=0", "at least 1"),
        (["target.max_runtime_s=2419201"], "target.max_runtime_s=2419201", "28 days"),
        (["job.output=s3://My_Bucket/x"], "job.output=s3://My_Bucket/x", "lowercase"),
        (["job.channels.x=s3://ab/x/"], "job.channels.x.s3=s3://ab/x/", "3 to 63"),
        (["job.checkpoints=s3://-a-/x"], "job.checkpoints=s3://-a-/x", "bucket's name"),
        (["job.checkpoints=disk"], "job.checkpoints=disk", "auto or none"),
        (["target.keep_alive_s=21601"], "target.keep_alive_s=21601", "at most 21600"),
        (["job.retries=31"], "job.retries=31", "at most 30"),
        (["job.volume_kms_key='a b!'"], "job.volume_kms_key", "must match"),
        (["job.environment.a-b=1"], "job.environment.a-b", "must match"),
        ([f"job.environment.A={'x' * 513}"], "job.environment.A", "at most 512"),
        (["job.tags.a='?'"], "job.tags", "must match"),
        ([f"job.channels.{'x' * 65}=s3://b/x/"], "job.channels.xxx", "at most 64"),
        (["job.channels.x=b/x/"], "job.channels.x.s3=b/x/", "must be an S3 prefix"),
        (["job.channels.x={s3:s3://b/,mode:Slow}"], "job.channels.x.mode=Slow", "FastFile"),
        (["job.channels.x={s3:s3://b/,type:Y}"], "job.channels.x.type=Y", "S3Prefix"),
        (["job.channels.x={s3:s3://b/,distribution:Y}"], "job.channels.x.distribution", "Sharded"),
        (["job.subnets=['?']", "job.security_groups=[sg]"], "job.subnets[0]=?", "match"),
        (
            [GROUPS.replace("large", "tiny")],
            "target.instance_groups[0].instance_type",
            "must be one of",
        ),
        # Rules across keys.
        (["target.max_wait_s=90000"], "target.max_wait_s=90000", "only for spot jobs"),
        (["target.spot=true", "target.max_wait_s=9"], "target.max_wait_s=9", "max_runtime_s=86400"),
        (["target.spot=true", "job.checkpoints=none"], "job.checkpoints=none", "interruption"),
        (
            ["target.spot=true", "target.keep_alive_s=60"],
            "target.keep_alive_s=60",
            "for spot jobs",
        ),
        (["resume_from=a", "job.checkpoints=none"], "resume_from=a", "needs checkpoints"),
        (["resume_from=a", "job.name=a"], "job.name=a", "must differ"),
        (["job.channels.x=s3://b/data"], "job.channels.x.s3=s3://b/data", "must end in /"),
        (["job.channels.x={s3:s3://b/,mode:Pipe}"], "job.channels.x.mode=Pipe", "FastFile"),
        (
            ["job.channels.x={s3:s3://b/a.json,type:AugmentedManifestFile}"],
            "job.channels.x.type=AugmentedManifestFile",
            "data=manifest",
        ),
        (
            ["job.channels.x={s3:s3://b/,instance_groups:[b]}", GROUPS],
            "job.channels.x.instance_groups=['b']",
            "must be names from target.instance_groups",
        ),
        (
            ["job.channels.x={s3:s3://b/,instance_groups:[a]}", CHANNEL, GROUPS],
            "job.channels",
            "every channel",
        ),
        ([GROUPS, "target.keep_alive_s=60"], "target.keep_alive_s=60", "instance_groups"),
        (["target.instance_count=0"], "target.instance_count=0", "at least 1"),
        (["target.device=tpu"], "target.device=tpu", "cpu or gpu"),
        (["target.device=gpu"], "target.instance_type=ml.c7i.2xlarge", "must be a GPU type"),
        (["target.instance_type=ml.g6.xlarge"], "target.instance_type=ml.g6", "must be a CPU type"),
        (["target.instance_type=ml.trn1.2xlarge"], "target.instance_type=ml.trn1", "NVIDIA"),
        (
            [GROUPS.replace("c7i.large", "g6.xlarge")],
            "target.instance_groups[0].instance_type",
            "a CPU type",
        ),
        (["target.image=pytorch:latest"], "target.image=pytorch:latest", "make push"),
        ([f"target.image='{ECR.replace(REGION, 'us-east-1')}/ab:1'"], "target.image", "us-east-1"),
        ([f"target.image='{ECR}/ab:gpu-1'"], "target.image", "tag is for gpu"),
        ([f"target.image='{ECR}/a:1'"], f"target.image={ECR}/a:1", "at least 2 characters"),
        (["job.subnets=[subnet-1]"], "job.security_groups", "together with job.subnets"),
        (["job.security_groups=[sg-1]"], "job.subnets", "together with job.security_groups"),
    ],
    ids=lambda value: value[0].split("=", 1)[-1][:40] if isinstance(value, list) else None,
)
def test_wrong_value_is_reported_by_its_config_key(
    overrides: list[str], key: str, reason: str
) -> None:
    lines = refusal(*overrides)
    assert any(line.startswith(key) and reason in line for line in lines), lines


def test_missing_settings_are_reported_with_a_hint() -> None:
    lines = refusal(minimal=[])
    assert len(lines) == 3
    found = dict(line.split(" is missing; ") for line in lines)
    assert set(found) == {"target.image", "job.role", "job.output"}
    assert "make push" in found["target.image"]
    assert "make setup-aws" in found["job.role"]


@pytest.mark.parametrize("setting", ["job.role=training", "job.output=/tmp/x", "job.name=_"])
def test_a_wrong_setting_is_told_once_and_without_a_regular_expression(setting: str) -> None:
    (line,) = refusal(setting)
    assert line.startswith(f"{setting}: must be ") and not set(line) & set("[\\*")


def test_all_problems_are_reported_at_once() -> None:
    assert len(refusal("target.volume_gb=-1", "job.retries=99", "target.device=tpu")) == 3


def test_image_region_is_not_checked_while_the_job_region_is_unknown() -> None:
    request, config = built(f"target.image='{ECR.replace(REGION, 'us-east-1')}/ab:1'")
    training_checks.check(request, config, None)


@pytest.mark.parametrize(
    "overrides",
    [
        ["target=gpu"],
        ["target=gpu_spot"],
        ["target=multi_gpu"],
        ["target=gpu", "target.keep_alive_s=600"],
        [
            f"target.image={ECR}/a/b:cpu-1",
            CHANNEL,
            "job.subnets=[subnet-1]",
            "job.security_groups=[sg-1]",
        ],
        [f"target.image={ECR}/gpu-team/b"],
    ],
)
def test_valid_overrides_pass(overrides: list[str]) -> None:
    assert checked(*overrides)["TrainingJobName"]


def _overrides_of_chunks(count: int) -> list[str]:
    # The JSON list around one override adds two brackets and two quotes.
    return [f"+x={'y' * (count * VALUE_CHARACTERS - len('+x=') - 4)}"]


def test_100_hyperparameters_of_2500_characters_pass_and_101_fail() -> None:
    full = _overrides_of_chunks(100)
    assert [len(value) for value in encode(full).values()] == [2500] * 100
    assert len(checked(*full)["HyperParameters"]) == 100
    (line,) = refusal(*_overrides_of_chunks(101))
    assert line.startswith("the job's overrides")
    assert line.endswith("101 entries, must have at most 100")


def _with_wrong_leaf(request: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """For each leaf: its path, and the request with a wrong type at that leaf."""
    if not isinstance(request, dict | list):
        yield path, object()
        return
    for key, member in request.items() if isinstance(request, dict) else enumerate(request):
        inner = f"{path}[{key}]" if isinstance(request, list) else f"{path}.{key}".strip(".")
        for where, changed in _with_wrong_leaf(member, inner):
            copy = request.copy()
            copy[key] = changed
            yield where, copy


def test_every_configurable_member_has_a_config_key() -> None:
    request, config = built(
        "target=gpu_spot", CHANNEL, "job.tags.a=1", "job.retries=2", "job.environment.A=1", "a=1"
    )
    for path, wrong in _with_wrong_leaf(request):
        (problem,) = service_model.problems(wrong, "CreateTrainingJob")
        assert problem.path == path
        key = config_keys.config_key(path, config)
        assert key[0].islower() or path in FIXED_MEMBERS, path


@pytest.mark.parametrize(
    ("members", "path", "reason"),
    [
        ({"TrainingJobName": 3}, "TrainingJobName", "must be of type string"),
        ({"EnableNetworkIsolation": "yes"}, "EnableNetworkIsolation", "must be of type boolean"),
        ({"ResourceConfig": {"InstanceCount": True}}, "ResourceConfig.InstanceCount", "integer"),
        ({"Colour": "red"}, "Colour", "not a member"),
        ({}, "RoleArn", "is missing"),
    ],
)
def test_service_model_check_finds_what_botocore_does_not_check(
    members: dict[str, object], path: str, reason: str
) -> None:
    found = service_model.problems(members, "CreateTrainingJob")
    assert any(problem.path == path and reason in problem.reason for problem in found)


def test_config_defaults_equal_those_of_the_yaml() -> None:
    _, config = built(minimal=[])
    plain = LaunchConfig()
    assert config == plain
