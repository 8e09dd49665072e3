"""SDK v3's tuner sends the request that DRY_RUN=1 prints; v2 says that it has none."""

import json
from pathlib import Path

from launch.aws.sdk.send import differences
from tests.launch.conftest import BUCKET, ROLE, Aws
from tests.launch.sdk.environments import run_python

JOB = [
    f"job.role={ROLE}",
    f"job.output=s3://{BUCKET}/runs",
    "data=folder",
    f"job.channels.training=s3://{BUCKET}/photos/",
    "job.environment.Team=Vision",
    "job.tags.team=vision",
    "job.name=rates",
    "trainer.epochs=2",
]
PROGRAM = """
import sys
from sagemaker.core.parameter import CategoricalParameter, ContinuousParameter
from launch.notebook import trainer, tuner
t = trainer(*sys.argv[1:])
ranges = {"optim.lr": ContinuousParameter(0.01, 0.1), "model": CategoricalParameter(["resnet18"])}
search = tuner(t, ranges, objective="validation:accuracy", max_jobs=3)
print([kind.__module__ + "." + kind.__name__ for kind in type(search).__mro__][1])
search.tune(wait=False)
"""


def test_the_sweep_sends_the_dry_run_request_and_shows_its_trials(aws: Aws, tmp_path: Path) -> None:
    image = f"target.image={aws.push_image()}"
    arguments = ["-m", "launch.sagemaker", "sweep", *JOB, image, "optim.lr=0.01,0.1"]
    arguments += ["model=resnet18,resnet50"]
    shown = json.loads(run_python("3", aws, tmp_path, *arguments, DRY_RUN="1").stdout)
    aws.calls.clear()
    done = run_python("3", aws, tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    assert "tuning job rates created" in done.stdout
    (sent,) = aws.made("CreateHyperParameterTuningJob")
    assert differences(sent, shown) == []
    assert {call.operation for call in aws.calls} <= {
        "DescribeImages",
        "GetProducts",
        "CreateHyperParameterTuningJob",
        "DescribeHyperParameterTuningJob",
        f"HEAD /{BUCKET}",
        "POST /",
    }


def test_a_tuner_in_a_notebook_is_the_sdks_own_with_metrics_and_channels(
    aws: Aws, tmp_path: Path
) -> None:
    done = run_python("3", aws, tmp_path, "-c", PROGRAM, *JOB, f"target.image={aws.push_image()}")
    assert done.returncode == 0, done.stderr
    assert "sagemaker.train.tuner.HyperparameterTuner" in done.stdout
    (sent,) = aws.made("CreateHyperParameterTuningJob")
    config, definition = sent["HyperParameterTuningJobConfig"], sent["TrainingJobDefinition"]
    (searched,) = config["ParameterRanges"]["ContinuousParameterRanges"]
    assert (searched["Name"], searched["MinValue"]) == ("optim.lr", "0.01")
    assert config["ResourceLimits"]["MaxNumberOfTrainingJobs"] == 3
    metrics = definition["AlgorithmSpecification"]["MetricDefinitions"]
    assert "validation:accuracy" in {metric["Name"] for metric in metrics}
    assert definition["Environment"] == {"Team": "Vision"}
    assert [channel["ChannelName"] for channel in definition["InputDataConfig"]] == ["training"]


def test_v2_says_that_a_sweep_needs_v3(aws: Aws, tmp_path: Path) -> None:
    arguments = ["-m", "launch.sagemaker", "sweep", *JOB, "optim.lr=0.01,0.1"]
    done = run_python("2", aws, tmp_path, *arguments, f"target.image={aws.push_image()}")
    assert done.returncode == 1
    assert "a tuning job needs SageMaker SDK v3, this is v2; leave out SDK=2" in done.stderr
    assert not aws.made("CreateHyperParameterTuningJob")
