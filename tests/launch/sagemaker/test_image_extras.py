"""What a job needs of its image: the packages that its label names."""

import boto3
import pytest

from entry_point.config.train_config import load_train_config
from entry_point.contract.program import UserError
from launch.sagemaker.config import Target
from launch.sagemaker.ecr import LABEL, needed_extras, require_extras
from tests.launch.conftest import ROOT, Aws

DALI, _ = load_train_config(["pipeline=dali"])


def labelled(aws: Aws, labels: dict[str, str] | None) -> Target:
    """A target whose image has these labels in its config, which the registry hands out."""
    aws.answers["GetDownloadUrlForLayer"] = [(200, {"downloadUrl": f"{aws.url}/config.json"})]
    aws.answers["GET /config.json"] = [(200, {"config": {"Labels": labels}})]
    return Target(image=aws.push_image())


@pytest.mark.parametrize(
    ("overrides", "extras"),
    [
        ([], []),
        (["pipeline=dali"], ["dali"]),
        (
            ["model.name=timm/resnet50", "loggers=[mlflow]", "trainer.onnx=true"],
            ["timm", "mlflow", "onnx"],
        ),
    ],
)
def test_settings_name_the_extras_of_the_image(overrides: list[str], extras: list[str]) -> None:
    train, _ = load_train_config(overrides)
    found = needed_extras(train)
    assert list(found) == extras
    assert all((ROOT / "requirements" / f"{extra}.in").is_file() for extra in found)


def test_an_image_without_the_package_is_refused(aws: Aws) -> None:
    target = labelled(aws, {LABEL: "mlflow"})
    with pytest.raises(UserError) as caught:
        require_extras(target, DALI, boto3.Session())
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"pipeline=dali: target.image={target.image} was built without dali;")
    assert '`make image EXTRAS="mlflow dali"`' in line


def test_an_image_with_the_package_passes(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    require_extras(labelled(aws, {LABEL: "mlflow dali"}), DALI, boto3.Session())
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("labels", [None, {}])
def test_an_image_without_the_label_is_a_warning(
    aws: Aws, capsys: pytest.CaptureFixture[str], labels: dict[str, str] | None
) -> None:
    require_extras(labelled(aws, labels), DALI, boto3.Session())
    assert "could not read whether it has dali; pipeline=dali needs it" in capsys.readouterr().err


def test_who_may_not_read_the_image_is_warned(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    target = labelled(aws, {LABEL: ""})
    aws.refuse("BatchGetImage", "AccessDeniedException")
    require_extras(target, DALI, boto3.Session())
    assert "could not read" in capsys.readouterr().err


def test_a_job_that_needs_nothing_asks_nothing(aws: Aws) -> None:
    plain, _ = load_train_config([])
    require_extras(Target(image="any"), plain, boto3.Session())
    assert not aws.calls


def test_the_image_carries_the_label() -> None:
    assert f'LABEL {LABEL}="${{EXTRAS}}"' in (ROOT / "Dockerfile").read_text()
