"""What docker-train refuses before a container starts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from entry_point.contract.own_code import PROGRAM
from launch import docker
from launch.command_line import LaunchError
from launch.image_extras import LABEL
from tests.launch.containers.conftest import IDLE, IMAGE, FakeEngine


def with_extras(extras: str | None) -> str:
    labels = None if extras is None else {LABEL: extras}
    return IDLE.replace('{"Id": "x"}', json.dumps({"Id": "x", "Config": {"Labels": labels}}))


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
