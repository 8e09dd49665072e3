"""What docker-train refuses before a container starts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from entry_point.contract.own_code import PROGRAM
from launch import docker
from launch.request.job_config import training_problems
from launch.request.known.image_extras import LABEL
from launch.request.launch_config import Target
from launch.request.launch_errors import LaunchError
from tests.launch.containers.conftest import IDLE, IMAGE, FakeEngine

OVERRIDES = [
    ["model.name=project.models.small_nett"],
    ["model.name=project.model.small_net"],
    ["model.name=project.models.small_net", "model.kwargs.widht=8"],
    ["task.name=project.tasks.Ordered"],
    ["loggers=[tensorboard,project.loggers.Csv]"],
]


def with_extras(extras: str | None) -> str:
    labels = None if extras is None else {LABEL: extras}
    return IDLE.replace('{"Id": "x"}', json.dumps({"Id": "x", "Config": {"Labels": labels}}))


@pytest.mark.parametrize("overrides", OVERRIDES, ids=" ".join)
def test_wrong_own_code_is_told_in_the_words_of_the_sagemaker_launch(
    start_folder: Path, fake_engine: FakeEngine, overrides: list[str]
) -> None:
    calls = fake_engine(with_extras(""))
    with pytest.raises(LaunchError) as caught:
        docker.train([*overrides, "name=own"])
    target = Target(instance_type="ml.c5.xlarge", device="cpu")
    assert str(caught.value) in training_problems([*overrides, "data=demo"], ["training"], target)
    assert "create" not in calls.read_text() and not (start_folder / "runs").exists()


def test_own_code_that_is_there_starts(start_folder: Path, fake_engine: FakeEngine) -> None:
    assert start_folder
    fake_engine(with_extras(""))
    # An argument of the model that is missing here may be in a file of configs/.
    assert docker.train(["model.name=project.models.small_net", "name=own"]) == 0
    assert docker.train(["model=mine", "model.kwargs={widht:8}", "name=other"]) == 0


@pytest.mark.parametrize(
    ("override", "extra"),
    [
        ("pipeline=dali", "dali"),
        ("pipeline.engine=dali", "dali"),
        ("model.name=timm/resnet50", "timm"),
        ("loggers=[tensorboard,mlflow]", "mlflow"),
        ("++trainer.onnx=true", "onnx"),
    ],
)
def test_an_image_without_an_extra_is_refused_before_the_container_starts(
    start_folder: Path, fake_engine: FakeEngine, override: str, extra: str
) -> None:
    assert start_folder
    others = " ".join({"dali", "timm", "mlflow", "onnx"} - {extra})
    calls = fake_engine(with_extras(others))
    with pytest.raises(LaunchError) as caught:
        docker.train([override])
    (line,) = str(caught.value).splitlines()
    assert f": the image {IMAGE} was built without {extra}; build it with `make image " in line
    assert line.endswith(f'EXTRAS="{others} {extra}"`') and "create" not in calls.read_text()
    fake_engine(with_extras(extra))
    assert docker.train([override]) == 0


def test_an_image_without_the_label_is_a_warning(
    start_folder: Path, fake_engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start_folder
    fake_engine(with_extras(None))
    assert docker.train(["pipeline=dali"]) == 0
    assert f"the image {IMAGE}: could not read whether it has dali" in capsys.readouterr().out


def test_docker_train_needs_only_pythons_standard_library() -> None:
    command = [sys.executable, "-S", "-c", "import launch.docker"]
    done = subprocess.run(command, cwd=PROGRAM, capture_output=True, text=True)
    assert not done.returncode, done.stderr
