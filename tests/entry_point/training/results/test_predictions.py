"""`entry_point.predict` with a finished run's model."""

import csv
import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from entry_point import predict
from entry_point.contract import exit_codes
from tests.entry_point.training.training_jobs import read_records


@pytest.mark.parametrize(
    ("file", "content", "hint"),
    [
        ("model.pt2", b"PK cut short", "copy the model again"),
        ("inference.json", b"{", "copy the model again"),
        ("inference.json", b"{}", "has no 'torch': another version of this code wrote it"),
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
    assert predict.main([f"model_dir={model}", f"input={run}"]) == exit_codes.USAGE
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("predict: ") and str(model) in error and file in error
    assert hint in error


@pytest.mark.parametrize("engine", ["threads", "pillow"])
def test_predictions_for_the_validation_split_match_the_evaluation(
    engine: str, run: Path, photo_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [f"model_dir={run / 'model'}", f"input={photo_folder / 'val'}", f"engine={engine}"]
    assert predict.main(arguments) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    right = sum(Path(row["path"]).parent.name == row["class"] for row in rows)
    accuracy = next(r for r in reversed(read_records(run)) if "val_accuracy" in r)["val_accuracy"]
    assert len(rows) == 24
    assert right / len(rows) == pytest.approx(accuracy, abs=1e-6)


def test_damaged_images_are_listed_and_fail_the_command_unless_allowed(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = tmp_path / "images"
    (images / "deep").mkdir(parents=True)
    Image.new("RGBA", (50, 40)).save(images / "deep" / "good.png")
    Image.new("L", (1, 1)).save(images / "tiny.gif")
    (images / "bad.jpg").write_bytes(b"\xff\xd8\xff")
    (images / "notes.txt").write_text("not an image")
    (images / "paper.pdf").write_bytes(b"Pillow writes these, and reads none")
    output = tmp_path / "predictions.jsonl"
    arguments = [
        f"model_dir={run / 'model'}",
        f"input={images}",
        "format=jsonl",
        f"output={output}",
        "num_workers=0",
    ]
    assert predict.main(arguments) == exit_codes.FAILED
    error = capsys.readouterr().err
    assert f"{images / 'bad.jpg'}: not an image" in error
    counts = "predict: 2 images predicted, 1 damaged"
    assert error.endswith(f"{counts} (allow_bad=true accepts them); written to {output}\n")
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [Path(line["path"]).name for line in lines] == ["good.png", "tiny.gif"]
    assert predict.main([*arguments, "allow_bad=true"]) == 0
    assert capsys.readouterr().err.endswith(f"{counts}; written to {output}\n")
    unwritable = output.with_name("x" * 255)  # the temporary name is longer
    assert predict.main([*arguments, f"output={unwritable}"]) == exit_codes.FAILED
    assert capsys.readouterr().err == f"predict: {unwritable}: File name too long\n"


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_names_that_are_not_utf8_or_command_the_terminal_are_escaped(
    kind: str, run: Path, photo_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for name in ("caf\udce9.jpg", "\x1b[31mred.jpg", "plain.jpg"):
        shutil.copy(photo_folder / "val/cat/000.jpg", images / name)
        (images / f"bad {name}").write_bytes(b"no image")
    output = tmp_path / "predictions"
    arguments = [f"model_dir={run / 'model'}", f"input={images}", f"format={kind}", "num_workers=0"]
    assert predict.main([*arguments, f"output={output}"]) == exit_codes.FAILED
    printed = capsys.readouterr().err
    assert predict.main(arguments) == exit_codes.FAILED
    written = output.read_text()
    assert capsys.readouterr().out == written and "\x1b" not in written + printed
    lines = written.splitlines()
    rows = csv.DictReader(lines) if kind == "csv" else map(json.loads, lines)
    names = [Path(row["path"]).name for row in rows]
    assert names == [r"\x1b[31mred.jpg", r"caf\udce9.jpg", "plain.jpg"]
    assert r"bad caf\udce9.jpg: not an image" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["input=/no/such", "model_dir={model}"], "input=/no/such"),
        (["input=/tmp", "model_dir=/no/such"], "model_dir=/no/such"),
        (["model_dir={model}"], "input: has no value"),
        (["input={model}", "model_dir={model}", "format=xml"], "csv, jsonl"),
        (["input={model}", "model_dir={model}", "engine=dali"], "engine=dali"),
        (["input={model}", "model_dir={model}", "output={model}"], "is a folder; name a file"),
        (["input={model}", "model_dir={model}", "output={model}/x/y"], "no folder {model}/x;"),
        (["input={model}", "model_dir={latest}/model"], "({latest} points to other-run)"),
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
    assert predict.main(filled) == exit_codes.USAGE
    error = capsys.readouterr().err
    assert message.format(**paths) in error
    assert error.count("\n") == 1
