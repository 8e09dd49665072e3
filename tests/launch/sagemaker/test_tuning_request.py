"""`make sagemaker-sweep`: values as `make sweep` takes them, checked, in one request."""

import pytest

from entry_point.config.train_config import load_train_config
from entry_point.contract.hyperparameters import decode
from entry_point.contract.program import UserError
from entry_point.sweep import combinations as combinations_of_sweep
from launch.sagemaker.checks import require_sendable
from launch.sagemaker.tuning import OPERATION, TuningSpec, combinations, load_tuning, split_sweep
from tests.launch.conftest import BUCKET
from tests.launch.minimal_job import MINIMAL

SWEPT = ["optim.lr=0.01,0.1", "model=resnet18,resnet50", "trainer.epochs=range(1,4)"]


def spec(*arguments: str) -> TuningSpec:
    return load_tuning([*MINIMAL, *arguments])


def test_trials_are_the_runs_of_a_local_sweep() -> None:
    _, ranges = split_sweep(SWEPT)
    locally = combinations_of_sweep(["model=resnet18,resnet50", "trainer.epochs=range(1,4)"])
    assert combinations(ranges) == 12 == 2 * len(locally)
    values = {each["Name"]: each["Values"] for each in ranges["CategoricalParameterRanges"]}
    assert values == {
        "optim.lr": ["0.01", "0.1"],
        "model": ["resnet18", "resnet50"],
        "trainer.epochs": ["1", "2", "3"],
    }


@pytest.mark.parametrize(
    ("swept", "one", "alone"),
    [
        ("model.name=resnet18,'timm/resnet50.a1_in1k'", 1, "model.name='timm/resnet50.a1_in1k'"),
        ("data.std=choice([1,1,1],[0.5,0.5,0.5])", 1, "data.std=[0.5,0.5,0.5]"),
        ("trainer.report=true,false", 1, "trainer.report=false"),
        ("model.weights=null,/opt/a.pth", 0, "model.weights=null"),
        ("optim.lr=1e-3,0.10", 1, "optim.lr=0.10"),
    ],
)
def test_a_value_means_in_the_trial_what_it_means_locally(swept: str, one: int, alone: str) -> None:
    (listed,) = split_sweep([swept])[1]["CategoricalParameterRanges"]
    arrived = decode({listed["Name"]: listed["Values"][one]})
    assert load_train_config(arrived) == load_train_config([alone])


def test_the_request_has_what_the_training_request_has() -> None:
    swept = spec("optim.lr=0.01,0.1", "trainer.epochs=2", "job.tags.team=vision", "job.name=rates")
    request = swept.request()
    training = swept.training.request("rates")
    assert request["HyperParameterTuningJobName"] == "rates"
    assert request["Tags"] == [{"Key": "team", "Value": "vision"}]
    definition = request["TrainingJobDefinition"]
    assert definition.pop("StaticHyperParameters") == training["HyperParameters"]
    assert decode(training["HyperParameters"]) == ["trainer.epochs=2"]
    assert definition["CheckpointConfig"]["S3Uri"] == f"s3://{BUCKET}/runs/rates/checkpoints"
    assert definition == {key: training[key] for key in definition}
    left_out = {"TrainingJobName", "HyperParameters", "Tags", "TensorBoardOutputConfig"}
    assert {*training} - {*definition} == left_out
    config = request["HyperParameterTuningJobConfig"]
    assert config["Strategy"] == "Grid"
    assert config["ResourceLimits"] == {"MaxNumberOfTrainingJobs": 2, "MaxParallelTrainingJobs": 2}
    objective = {"Type": "Maximize", "MetricName": "validation:accuracy"}
    assert config["HyperParameterTuningJobObjective"] == objective


def test_an_interval_is_searched_for_as_many_trials_as_asked() -> None:
    config = spec(
        "optim.lr=tag(log,interval(0.001,1))",
        "tuning.max_jobs=20",
        "tuning.request.HyperParameterTuningJobConfig.TrainingJobEarlyStoppingType=Auto",
        "task=regression",
        "tuning.parallel=4",
    ).request()["HyperParameterTuningJobConfig"]
    assert (config["Strategy"], config["TrainingJobEarlyStoppingType"]) == ("Bayesian", "Auto")
    (searched,) = config["ParameterRanges"]["ContinuousParameterRanges"]
    assert searched == {
        "Name": "optim.lr",
        "MinValue": "0.001",
        "MaxValue": "1.0",
        "ScalingType": "Logarithmic",
    }
    objective = {"Type": "Minimize", "MetricName": "validation:mae"}
    assert config["HyperParameterTuningJobObjective"] == objective


def test_an_interval_with_whole_ends_is_of_whole_numbers() -> None:
    _, ranges = split_sweep(["trainer.epochs=interval(1,9)"])
    (searched,) = ranges["IntegerParameterRanges"]
    assert (searched["MinValue"], searched["MaxValue"]) == ("1", "9")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["optim.lr=0.1,-1"], "optim.lr=-1: must be above 0"),
        (["+data.x=1,2"], "+data.x=1,2: must vary an existing key"),
        (["model.name=resnet18,resnet34x"], "model.name=resnet34x: must be a classification"),
        (["optim.lr=0.1,1", "resume_from=a"], "resume_from=a: not for a sweep"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], line: str) -> None:
    with pytest.raises(UserError) as caught:
        spec(*arguments)
    assert any(each.startswith(line) for each in str(caught.value).splitlines()), caught.value


def test_boto3_would_send_the_request_but_not_one_without_trials_at_a_time() -> None:
    require_sendable(spec("optim.lr=0.1,1").request(), OPERATION)
    with pytest.raises(UserError, match="MaxParallelTrainingJobs"):
        require_sendable(spec("optim.lr=0.1,1", "tuning.parallel=0").request(), OPERATION)
