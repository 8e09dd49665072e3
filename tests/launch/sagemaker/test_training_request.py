"""Every setting reaches the request, and every override reaches the job unchanged."""

import json
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from entry_point.config import compose
from entry_point.config.config_errors import ConfigError
from entry_point.config.hyperparameters import decode, read_overrides
from entry_point.config.train_config import load_train_config
from entry_point.job.metrics_line import metric_regexes
from entry_point.job.program import UserError
from launch.revision import commit
from launch.sagemaker.config import load_launch_config
from launch.sagemaker.plan import plan
from tests.launch.conftest import BUCKET, ROLE
from tests.launch.minimal_job import IMAGE, planned, sent

TAGS = [
    {"Key": "project", "Value": "managed-training-template"},
    {"Key": "commit", "Value": commit()},
]


def test_minimal_request_has_only_required_members() -> None:
    request = sent()
    name = request["TrainingJobName"]
    regexes = metric_regexes("classification")
    assert re.fullmatch(r"image-training-\d{6}-\d{6}-\d{3}", name)
    assert request == {
        "TrainingJobName": name,
        "AlgorithmSpecification": {
            "TrainingImage": IMAGE,
            "TrainingInputMode": "File",
            "MetricDefinitions": [{"Name": n, "Regex": r} for n, r in regexes.items()],
        },
        "RoleArn": ROLE,
        "Tags": TAGS,
        "OutputDataConfig": {"S3OutputPath": f"s3://{BUCKET}/runs"},
        "ResourceConfig": {
            "InstanceType": "ml.c7i.2xlarge",
            "InstanceCount": 1,
            "VolumeSizeInGB": 50,
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": 86400},
        "CheckpointConfig": {
            "S3Uri": f"s3://{BUCKET}/runs/checkpoints/{name}",
            "LocalPath": "/opt/ml/checkpoints",
        },
        "TensorBoardOutputConfig": {
            "S3OutputPath": f"s3://{BUCKET}/runs/{name}/tensorboard",
            "LocalPath": "/opt/ml/output/data/tensorboard",
        },
    }


def test_every_setting_arrives_in_its_member() -> None:
    request = sent(
        "target=gpu_spot",
        "job.name=mine",
        f"job.channels.training=s3://{BUCKET}/data/",
        f"job.channels.extra={{s3:s3://{BUCKET}/list,mode:File,distribution:ShardedByS3Key}}",
        f"resume_from=s3://{BUCKET}/kept",
        "job.request.TensorBoardOutputConfig=null",
        "job.environment.LEVEL=info",
        "job.tags.team=vision",
        "job.network.VpcConfig={Subnets:[subnet-1],SecurityGroupIds:[sg-1]}",
        "job.kms_key=alias/ours",
        "job.network.EnableNetworkIsolation=true",
        "trainer.epochs=2",
    )
    assert request["TrainingJobName"] == "mine"
    assert request["EnableManagedSpotTraining"] is True
    assert request["StoppingCondition"]["MaxWaitTimeInSeconds"] == 86400 * 2
    training, extra = request["InputDataConfig"]
    assert training == {
        "ChannelName": "training",
        "InputMode": "FastFile",
        "DataSource": {
            "S3DataSource": {
                "S3DataType": "S3Prefix",
                "S3Uri": f"s3://{BUCKET}/data/",
                "S3DataDistributionType": "FullyReplicated",
            }
        },
    }
    assert extra["InputMode"] == "File"
    assert extra["DataSource"]["S3DataSource"]["S3DataDistributionType"] == "ShardedByS3Key"
    assert request["CheckpointConfig"]["S3Uri"] == f"s3://{BUCKET}/kept"
    assert "TensorBoardOutputConfig" not in request
    assert request["Environment"] == {"LEVEL": "info"}
    assert request["Tags"] == [*TAGS, {"Key": "team", "Value": "vision"}]
    assert request["VpcConfig"] == {"Subnets": ["subnet-1"], "SecurityGroupIds": ["sg-1"]}
    assert request["ResourceConfig"]["VolumeKmsKeyId"] == "alias/ours"
    assert request["OutputDataConfig"]["KmsKeyId"] == "alias/ours"
    assert request["EnableNetworkIsolation"] is True
    # A job that may train on the CPU would hide a GPU that does not work.
    assert decode(request["HyperParameters"]) == ["trainer.device=cuda", "trainer.epochs=2"]


def test_spot_job_waits_one_day_longer_than_its_max_runtime() -> None:
    request = sent("target=gpu_spot", "target.max_runtime_s=7200")
    assert request["StoppingCondition"]["MaxWaitTimeInSeconds"] == 7200 + 86400


def test_resumed_job_uses_the_checkpoints_of_the_earlier_job() -> None:
    request = sent("resume_from=before", "job.name=next")
    assert request["CheckpointConfig"]["S3Uri"] == f"s3://{BUCKET}/runs/checkpoints/before"
    assert request["TensorBoardOutputConfig"]["S3OutputPath"].endswith("next/tensorboard")


@pytest.mark.parametrize("mode", ["File", "FastFile"])
@pytest.mark.parametrize("first", [True, False])
def test_the_short_form_of_a_channel_takes_its_other_fields(first: bool, mode: str) -> None:
    both = ["job.channels.training='s3://b/it\\'s/'", f"job.channels.training.mode={mode}"]
    (channel,) = sent(*(both if first else both[::-1]), "data=folder")["InputDataConfig"]
    assert channel["DataSource"]["S3DataSource"]["S3Uri"] == "s3://b/it's/"
    assert channel["InputMode"] == mode


@pytest.mark.parametrize("short", ['"s3://b/other/"', "{s3: s3://b/other/}"])
def test_a_channel_of_a_file_is_replaced_on_the_command_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, short: str
) -> None:
    shutil.copytree(compose.CONFIGS, tmp_path / "configs")
    mine = tmp_path / "configs/target/mine.yaml"
    mine.write_text(f"# @package _global_\njob: {{channels: {{training: {short}}}}}\n")
    monkeypatch.setattr(compose, "CONFIGS", tmp_path / "configs")
    (channel,) = sent("data=folder")["InputDataConfig"]
    assert channel["DataSource"]["S3DataSource"]["S3Uri"] == "s3://b/other/"
    (channel,) = sent("data=folder", "job.channels.training=s3://b/mine/")["InputDataConfig"]
    assert channel["DataSource"]["S3DataSource"]["S3Uri"] == "s3://b/mine/"
    if short.startswith('"'):
        with pytest.raises(ConfigError, match=r"must have job\.channels\.training\.s3 or"):
            planned("job.channels.training.mode=File")


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("true", "true"),
        ("False", "False"),
        ("1.10", "1.10"),
        ("007", "007"),
        ("1e3", "1e3"),
        ("null", "null"),
        ("info", "info"),
        ("'a  b'", "a  b"),
    ],
)
def test_environment_and_tags_keep_values_as_typed(typed: str, value: str) -> None:
    request = sent(f"job.environment.X={typed}", f"job.tags.x={typed}")
    assert request["Environment"] == {"X": value}
    assert request["Tags"] == [*TAGS, {"Key": "x", "Value": value}]


# Hydra reads the words true and false, in any case, as what they mean.
_TEXTS = st.text(max_size=60).filter(lambda text: text.lower() not in ("true", "false"))
_OVERRIDES = st.one_of(
    _TEXTS.map(lambda text: decode({"data.root": text})[0]),
    st.floats(1e-9, 10).map(lambda rate: f"optim.lr={rate!r}"),
    st.booleans().map(lambda on: f"trainer.report={on}"),
    st.sampled_from(["trainer.nproc_per_host=null", "model=resnet50", "experiment=debug"]),
    st.lists(st.floats(0.01, 1), min_size=3, max_size=3).map(lambda v: f"data.std={v}"),
    st.integers(1, 512).map(lambda size: f"data.image_size={size}"),
)


@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_OVERRIDES, min_size=1, max_size=6))
def test_overrides_make_the_same_config_in_the_container_as_locally(
    tmp_path_factory: pytest.TempPathFactory, overrides: list[str]
) -> None:
    overrides = ["data=folder", "data.resize=512", *overrides]
    contract: Path = tmp_path_factory.mktemp("config")
    request = plan(overrides, None).request
    (contract / "hyperparameters.json").write_text(json.dumps(request["HyperParameters"]))
    assert load_train_config(read_overrides(contract)) == load_train_config(overrides)


def test_first_part_of_the_key_separates_launch_and_job_overrides() -> None:
    of_job = ["model=resnet50", "+data.x=1", "~optim.momentum", "experiment=debug"]
    config, job = load_launch_config([*of_job, "job.name=a", "target=gpu", "job.tags.t=1"])
    assert (config.job.name, config.target.instance_type) == ("a", "ml.g6.4xlarge")
    assert job == of_job


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("jbo.role=x", r"^jbo\.role=x: no such key; did you mean job\.role\?$"),
        ("role=x", r"^role=x: no such key; did you mean job\.role\?$"),
        ("instance_type=ml.m5.large", r"did you mean target\.instance_type\?$"),
        ("resume_form=x", r"did you mean resume_from\?$"),
        ("job.rolle=x", r"^job\.rolle=x: no such key; did you mean job\.role\?$"),
        ("target=gpuu", "^target=gpuu: must be one of cpu, gpu, .*; did you mean gpu"),
        ("job=training", "^job=training: is a group of settings: set job.name=training"),
        ("target.instance_count=many", "target.instance_count"),
        ("job.channels.training={s3:s3://b/x,modus:File}", "modus"),
        ("job.channels=s3://b/x", "job.channels"),
        ("optim.lr=0.1,0.2", r"^optim\.lr=0\.1,0\.2: has several values"),
        ("a=[1", r"a=\[1: not an override"),
        ("job", "not an override"),
        ("resume_from=/tmp/run", "^resume_from=/tmp/run: must be the name of a job"),
        ("job.channels.x={mode:File}", r"^job\.channels\.x: must have job\.channels\.x\.s3 or"),
        ("job.channels.x={s3:s3://b/,source:{A:{}}}", r"^job\.channels\.x: .* and not both"),
        ("job.channels.training={s3:s3://b/a/,mode:Pipe}", "Input should be 'File' or 'FastFile'"),
    ],
)
def test_invalid_override_is_named(override: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason) as caught:
        planned(override)
    assert "\n" not in str(caught.value)
