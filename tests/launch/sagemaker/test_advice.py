"""What a launch advises leads on: each case meets the line, follows it, and prints a request."""

import json
import re

import pytest

from launch.sagemaker import __main__ as sagemaker
from tests.launch.test_recorded import MINIMAL, REGION

Overrides = list[str]
GIVEN = [f"{key}={value}" for key, value in MINIMAL.items()]
PACK = ["source=s3://bucket/photos", "output=s3://my-bucket/runs/packed"]
TRAINING = "job.channels.training"

# The command, what is given, the advice, and what whoever follows it gives instead.
LAUNCHES = [
    (
        "train",
        ["data=folder", f"{TRAINING}={{s3:s3://b/a/,mode:Pipe}}"],
        "Input should be 'File' or 'FastFile'",
        ["data=folder", f"{TRAINING}={{s3:s3://b/a/,mode:File}}"],
    ),
    (
        "train",
        ["data=folder", "data.root=photos"],
        "add job.channels.NAME=s3://bucket/prefix/ data.root=/opt/ml/input/data/NAME",
        None,
    ),
    (
        "train",
        ["data=folder", "data.root=s3://bucket/photos"],
        "job.channels.NAME=s3://bucket/photos/ data.root=/opt/ml/input/data/NAME",
        None,
    ),
    (
        "train",
        ["data=manifest", "data.root=s3://bucket/lists/rows.csv"],
        "job.channels.NAME=s3://bucket/lists/ data.root=/opt/ml/input/data/NAME/rows.csv",
        None,
    ),
    (
        "train",
        ["model.weights=s3://bucket/weights/best.pth"],
        "job.channels.NAME=s3://bucket/weights/ model.weights=/opt/ml/input/data/NAME/best.pth",
        None,
    ),
    (
        "train",
        ["data=folder", "data.root=/opt/ml/input/data/photos"],
        "add job.channels.photos=s3://bucket/prefix/",
        None,
    ),
    (
        "train",
        ["model.weights=pretrained"],
        "add job.channels.pretrained=s3://bucket/prefix/",
        None,
    ),
    ("train", ["job.code=yes"], "Input should be a valid boolean", ["job.code=true"]),
    ("dataset", ["source=photos", PACK[1]], "must be s3://bucket/prefix", PACK),
    ("dataset", [PACK[0], "output=s3://bucket/photos/packed"], "choose another prefix", PACK),
    ("dataset", [*PACK, "output_format=index"], "drop it", PACK),
    ("dataset", [*PACK, "part=1/2"], "drop it", PACK),
    ("dataset", [*PACK, "target.spot=true"], "drop it", PACK),
]


def launch(command: str, overrides: Overrides, capsys: pytest.CaptureFixture[str]) -> str:
    """The lines of a dry run; nothing if it prints a request."""
    given = [each for each in GIVEN if each.partition("=")[0] not in "".join(overrides)]
    code = sagemaker.main([command, *given, *overrides])
    output = capsys.readouterr()
    assert code == bool(output.err) and (code or json.loads(output.out))
    return output.err


@pytest.mark.parametrize(
    ("command", "given", "advice", "then"), LAUNCHES, ids=lambda each: str(each)[:60]
)
def test_a_launch_as_advised_prints_a_request(
    command: str,
    given: Overrides,
    advice: str,
    then: Overrides | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DRY_RUN", "1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    assert advice in launch(command, given, capsys)
    if then is None:  # the settings that the line prints
        added = re.findall(r"[a-z_.]+\.(?:NAME|\w+)=\S+", advice.replace("NAME", "extra"))
        keys = {each.partition("=")[0] for each in added}
        then = [each for each in given if each.partition("=")[0] not in keys] + added
    assert launch(command, then, capsys) == ""
