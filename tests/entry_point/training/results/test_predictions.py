"""`entry_point.predict` with a finished run's model."""

import shutil
from pathlib import Path

import pytest
from PIL import Image

from entry_point.job.program import ExitCode
from tests import commands

NAMED = ("input={model}", "model_dir={model}", "output_dir={latest}/output")


@pytest.mark.parametrize(
    ("file", "content", "hint"),
    [
        ("model.safetensors", b"cut short", "copy the model again"),
        ("config.yaml", b"model: {name: ", "copy the model again"),
        ("config.yaml", b"model: {nam: resnet18}", "use the image that trained it"),
        ("classes.json", None, "copy the model again"),
    ],
)
def test_the_error_for_a_damaged_model_folder_is_one_line_that_names_the_file(
    file: str,
    content: bytes | None,
    hint: str,
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = tmp_path / "model"
    shutil.copytree(run / "model", model)
    if content is None:
        (model / file).unlink()
    else:
        (model / file).write_bytes(content)
    arguments = [f"model_dir={model}", f"input={run}", f"output_dir={tmp_path / 'output'}"]
    assert commands.predict(arguments) == ExitCode.USAGE
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("predict: ") and str(model) in error and file in error
    assert hint in error


def test_damaged_images_are_listed(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, output = tmp_path / "images", tmp_path / "output"
    images.mkdir()
    Image.new("L", (1, 1)).save(images / "tiny.gif")
    for number in range(21):
        (images / f"{number}.jpg").write_bytes(b"\xff\xd8\xff")
    arguments = [f"model_dir={run / 'model'}", f"input={images}", "pipeline.num_workers=1"]
    assert commands.predict([*arguments, f"output_dir={output}"]) == ExitCode.FINISHED
    error = capsys.readouterr().err
    assert f"{images / '0.jpg'}: not a JPEG" in error
    assert error.count(": not a JPEG") == 20
    assert "damaged, but not listed: 1, see the column error" in error
    counts = "predict: 1 image predicted, 21 damaged"
    file = output / "part-1-of-1.parquet"
    assert error.endswith(f"{counts}; written to {file}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*NAMED, "input=/no/such"], "input=/no/such"),
        ([*NAMED, "model_dir=/no/such"], "model_dir=/no/such"),
        (["model_dir={model}"], "input: has no value"),
        (["input={model}", "model_dir={model}"], "output_dir: has no value; add output_dir=PATH"),
        (["output=logits"], "'scores' or 'features'"),
        ([*NAMED, "output_dir={model}/model.safetensors"], "is a file; name a folder"),
        ([*NAMED, "model_dir={latest}/model"], "({latest} points to other-run)"),
    ],
)
def test_the_error_for_a_wrong_request_is_one_line(
    arguments: list[str],
    message: str,
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    latest = tmp_path / "latest"
    latest.symlink_to("other-run")
    paths = {"model": run / "model", "latest": latest}
    filled = [argument.format(**paths) for argument in arguments]
    assert commands.predict(filled) == ExitCode.USAGE
    error = capsys.readouterr().err
    assert message.format(**paths) in error
    assert error.count("\n") == 1
