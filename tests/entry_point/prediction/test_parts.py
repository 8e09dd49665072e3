"""Prediction by part: divided, resumed, skipped, on several hosts."""

import json
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entry_point.config.compose import load_config
from entry_point.config.config_errors import ConfigError
from entry_point.config.part import Part
from entry_point.config.predict_config import PredictConfig
from entry_point.job.program import ExitCode
from tests import commands
from tests.entry_point.prediction.predicted import (
    arguments,
    assert_same,
    names,
    rows,
    run,
    start,
)
from tests.failing_disk import Disk
from tests.forkserver import Program

# After two batches, the process says so and waits for its end.
PAUSED = """
import pathlib, signal
from entry_point.model_folder import Model
calls, plain = [], Model.predict
def paused(*arguments):
    calls.append(1)
    if len(calls) > 3:  # the first is that of a black image
        pathlib.Path({mark!r}).touch()
        signal.pause()
    return plain(*arguments)
Model.predict = paused
"""


@given(images=st.integers(0, 10**9), count=st.integers(1, 2000))
def test_all_parts_together_have_each_image_once_in_order(images: int, count: int) -> None:
    end = 0
    for number in range(1, count + 1):
        places = Part(number, count).of(images)
        assert places.start == end and images // count <= len(places) <= images // count + 1
        end = places.stop
    assert end == images


@given(count=st.integers(1, 2000))
def test_the_files_of_the_parts_sort_in_the_order_of_the_parts(count: int) -> None:
    files = [Part(number, count).predictions for number in range(1, count + 1)]
    assert sorted(files) == files and len(set(files)) == count


@pytest.mark.parametrize("part", ["0/2", "3/2", "1/0", "1", "1/2/3", "-1/2", "a/b", "1.5/2"])
def test_a_wrong_part_is_an_error_that_says_what_is_allowed(part: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"part={part}: must be N/M with N from 1")):
        load_config("predict", PredictConfig, [f"part={part}"])


@pytest.mark.parametrize("count", [1, 5, 14])
def test_the_parts_of_a_folder_are_one_table_equal_to_that_of_a_whole_run(
    count: int, model: Path, images: Path, tmp_path: Path
) -> None:
    """Of fourteen parts of twelve images, two are empty."""
    whole, output = tmp_path / "whole", tmp_path / "parts"
    assert run(model, images, whole) == 0
    for number in reversed(range(1, count + 1)):
        assert run(model, images, output, f"part={number}/{count}") == 0
    expected = [f"{folder}/{number}.jpg" for folder in "abc" for number in range(4)]
    assert [row["path"] for row in rows(output)] == expected
    assert len(names(output)) == count
    assert_same(rows(output), rows(whole))


def paused(command: list[str], tmp_path: Path, before: str = "") -> Program:
    """A prediction that has run `before` and predicted two batches."""
    mark = tmp_path / "paused"
    process = start(command, tmp_path / "log", before + PAUSED.format(mark=str(mark)))
    while not mark.exists():
        assert process.poll() is None, process.communicate()
    return process


def test_a_killed_part_leaves_nothing_under_its_name_and_the_next_run_completes_it(
    model: Path, images: Path, tmp_path: Path
) -> None:
    command = arguments(model, images, output := tmp_path / "output", "batch_size=2")
    process = paused(command, tmp_path)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    left = names(output)
    assert left and all(name.startswith(".") for name in left)
    assert commands.predict(command) == 0
    assert list(names(output)) == ["part-1-of-1.parquet"]
    assert len(rows(output)) == 12


def test_a_part_that_is_asked_to_stop_leaves_no_file(
    model: Path, images: Path, tmp_path: Path
) -> None:
    exits = "import sys, signal\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
    command = arguments(model, images, tmp_path / "output", "batch_size=2")
    process = paused(command, tmp_path, exits)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 143
    assert not names(tmp_path / "output")


def test_a_part_that_does_not_fit_on_the_disk_is_one_line_and_leaves_no_file(
    model: Path, images: Path, tmp_path: Path
) -> None:
    """The limit of a file's size stands for a full disk."""
    code = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))\n"
    process = start(arguments(model, images, tmp_path / "output"), tmp_path / "log", code)
    error, _ = process.communicate()
    assert process.returncode == ExitCode.FAILED
    advice = "File too large: free up space and run the same command again"
    line = error.splitlines()[-1]
    assert line.startswith(f"predict: {tmp_path}/output/") and line.endswith(f": {advice}")
    assert "Traceback" not in error
    assert not names(tmp_path / "output")


@pytest.mark.parametrize("number", [1, 2])
def test_a_folder_never_mixes_parts_of_different_work(
    number: int,
    model: Path,
    images: Path,
    photo_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Neither for the finished part, which the same work skips, nor for the other one."""
    output, other = tmp_path / "output", tmp_path / "model"
    assert run(model, images, output, "part=1/2") == 0
    before = names(output)
    assert run(model, images, output, "part=1/2", "batch_size=1") == 0
    assert names(output) == before
    assert capsys.readouterr().err.count("is already complete") == 1
    shutil.copytree(model, other)
    (other / "classes.json").write_text('["a", "b", "c"]')
    same_names = shutil.copytree(images, tmp_path / "images of another day")
    this, others = f"part={number}/2", "was made from other images"
    for work, settings, reason in (
        ((model, images), [f"part={number}/3"], "is not one of 3 parts"),
        ((model, images), [this, "output=features"], others),
        ((other, images), [this], others),
        ((model, photo_folder / "val"), [this], others),
        ((model, same_names), [this], others),
    ):
        assert run(*work, output, *settings) == ExitCode.USAGE
        error = capsys.readouterr().err
        assert reason in error and "choose another output_dir" in error and error.count("\n") == 1
    assert names(output) == before
    (images / "c/4.jpg").write_bytes(b"a new file moves the cuts between parts")
    assert run(model, images, output, this) == ExitCode.USAGE


@pytest.mark.parametrize("replace", [shutil.copyfile, shutil.copy2])
def test_no_part_is_skipped_whose_images_have_changed(
    replace: Callable[[Path, Path], object],
    model: Path,
    images: Path,
    photo_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A new file, and one that keeps an older time, as those of rsync and archives do."""
    output = tmp_path / "output"
    for part in ("part=1/2", "part=2/2"):
        assert run(model, images, output, part) == 0
    before = names(output)
    replace(photo_folder / "val/cat/000.jpg", images / "c/3.jpg")
    assert run(model, images, output, "part=1/2") == 0
    capsys.readouterr()
    assert run(model, images, output, "part=2/2") == ExitCode.USAGE
    error = capsys.readouterr().err
    assert f"an image of {output}/part-2-of-2.parquet has changed since it was" in error
    assert names(output) == before


def test_a_dataset_that_was_packed_again_is_another(
    model: Path, packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset, output = shutil.copytree(packed, tmp_path / "packed"), tmp_path / "output"
    assert run(model, dataset, output) == run(model, dataset, output) == 0
    min((dataset / "val").glob("*.tar")).touch()
    assert run(model, dataset, output) == ExitCode.USAGE
    assert "has changed since it was predicted" in capsys.readouterr().err


def host(root: Path, number: int, hosts: int, distribution: str) -> None:
    """The files of a Processing job on one of its hosts."""
    algos = [f"algo-{host + 1}" for host in range(hosts)]
    resources = {"current_host": algos[number], "hosts": algos}
    source = {
        "S3Uri": "s3://bucket/images",
        "LocalPath": str(root / "processing/input"),
        "S3DataDistributionType": distribution,
    }
    (root / "config").mkdir(parents=True)
    (root / "config/resourceconfig.json").write_text(json.dumps(resources))
    job = {"ProcessingInputs": [{"InputName": "images", "S3Input": source}]}
    (root / "config/processingjobconfig.json").write_text(json.dumps(job))


@pytest.mark.parametrize("distribution", ["ShardedByS3Key", "FullyReplicated"])
def test_the_hosts_of_a_processing_job_predict_one_part_each(
    distribution: str,
    model: Path,
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A host that has only its share of the images predicts all of it; one may have none."""
    output = tmp_path / "s3"
    output.mkdir()
    for number in range(3):
        root = tmp_path / f"host-{number}"
        host(root, number, 3, distribution)
        if distribution == "FullyReplicated":
            shutil.copytree(images, root / "processing/input")
        else:
            (root / "processing/input").mkdir(parents=True)
            if number:
                shutil.copytree(images / "abc"[number], root / "processing/input" / "abc"[number])
        monkeypatch.setenv("ML_ROOT", str(root))
        settings = arguments(model, images, output)
        own = [each for each in settings if not each.startswith(("input=", "output_dir="))]
        assert commands.predict(own) == 0
        for file in (root / "processing/output").iterdir():
            shutil.copy(file, output)
    assert sorted(names(output)) == [f"part-{number}-of-3.parquet" for number in (1, 2, 3)]
    found = [row["path"] for row in rows(output)]
    folders = "bc" if distribution == "ShardedByS3Key" else "abc"
    assert found == [f"{folder}/{number}.jpg" for folder in folders for number in range(4)]


def test_hosts_that_predict_a_folder_of_their_image_divide_it(
    model: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host(root := tmp_path / "host", 1, 2, "FullyReplicated")
    (root / "config/processingjobconfig.json").write_text('{"ProcessingInputs": null}')
    monkeypatch.setenv("ML_ROOT", str(root))
    assert run(model, images, tmp_path / "output") == 0
    assert [*names(tmp_path / "output")] == ["part-2-of-2.parquet"]
    assert len(rows(tmp_path / "output")) == 6


def test_prediction_writes_no_row_for_what_a_failing_disk_kept(
    model: Path,
    photo_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images, output = photo_folder / "val/cat", tmp_path / "predictions"
    disk = Disk(monkeypatch)
    disk.fails("val/cat/001.jpg")
    assert run(model, images, output) == ExitCode.FAILED
    assert "val/cat/001.jpg: could not be read" in capsys.readouterr().err
    assert not [*output.rglob("*.parquet*")]
    disk.times = 2
    assert run(model, images, output) == ExitCode.FINISHED
    assert [row["error"] for row in rows(output)] == [None] * len([*images.iterdir()])
