"""What a run says would make the rest of it faster, and how many cores its input needs."""

import io
import logging
import math
import re
import shlex
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import custom_op
from entry_point.config.train_config import TrainConfig, load_train_config
from entry_point.data.loader import build_decoder, open_training_set
from entry_point.data.packing.encode import RejectedError
from entry_point.data.sources.source import Encoded, Source, read_image, read_images
from entry_point.job.devices import Devices
from entry_point.job.metrics_line import STEP_PARTS
from entry_point.job.program import ReadError
from entry_point.training.input import loader_spec
from entry_point.training.results import advice
from entry_point.training.results.advice import Advice, advise_compile, advise_shrinking
from entry_point.training.results.headspace import cores_needed
from entry_point.training.results.times import Times
from tests import commands

CPU = Devices(torch.device("cpu"), None)
SIDE, ENOUGH = 32, 160
"""The smallest crop of `data.scale`, 8 % of an image of 4:3, has 32 x 32 pixels from 131 on."""


def times(*steps: tuple[float, float, float, float]) -> Times:
    return np.array(steps, dtype=np.float32).reshape(-1, len(STEP_PARTS))


def write_photos(root: Path, width: int, height: int) -> None:
    noise = np.random.default_rng(0)
    for number in range(8):
        path = root / ("train" if number < 6 else "val") / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = noise.integers(0, 256, (height, width, 3), np.uint8)
        Image.fromarray(pixels).save(path, quality=90)


def opened(root: Path, *overrides: str) -> tuple[TrainConfig, Source]:
    config, _ = load_train_config([f"data.root={root}", f"data.image_size={SIDE}", *overrides])
    dataset = open_training_set(config.data, Path())
    return replace(config, data=dataset.data), dataset.source("train")


@pytest.fixture
def by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding takes as long as its files are large."""

    def seconds(_decoder: object, photos: Encoded, *_: object) -> float:
        return sum(len(file) for file in photos.files) / 1e6

    monkeypatch.setattr(advice, "_decoding_seconds", seconds)


@pytest.mark.usefixtures("by_bytes")
@pytest.mark.parametrize("pipeline", ["threads", "pillow"])
def test_large_photographs_lead_to_a_command_after_which_nothing_is_advised(
    pipeline: str, tmp_path: Path
) -> None:
    write_photos(tmp_path / "photos", 640, 480)
    config, source = opened(tmp_path / "photos", f"pipeline={pipeline}")
    line = advise_shrinking(source, loader_spec(config, CPU, "train"), 0.62)
    assert line is not None
    assert line.startswith("input-bound: training waits for data 62 % of the time")
    assert "of 640 x 480 pixels" in line and "as JPEGs of quality 95" in line
    found = re.search(r'`make dataset ARGS="(.*?)"`', line)
    assert found is not None and commands.optimize(shlex.split(found[1])) == 0
    packed = tmp_path / f"photos-{ENOUGH}"
    config, shrunk = opened(packed)
    sizes = {
        Image.open(io.BytesIO(read_image(shrunk, i).numpy().tobytes())).size
        for i in range(len(shrunk))
    }
    assert len(shrunk) == len(source) == 6 and sizes == {(ENOUGH, 120)}
    assert advise_shrinking(shrunk, loader_spec(config, CPU, "train"), 0.62) is None


@pytest.mark.usefixtures("by_bytes")
@pytest.mark.parametrize("kind", ["one folder", "packed", "table"])
def test_the_advised_command_keeps_the_splits(kind: str, tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", 640, 480)
    root, overrides = tmp_path / "photos", []
    if kind == "one folder":
        root, overrides = root / "train", ["data.val_fraction=0.4"]
    elif kind == "packed":
        assert commands.optimize([f"source={root}", f"output={tmp_path / 'packed'}"]) == 0
        root = tmp_path / "packed"
    else:
        files = sorted(root.rglob("*.jpg"))
        rows = [f"{file},{file.parent.name},{file.parents[1].name}" for file in files]
        root = tmp_path / "labels.csv"
        root.write_text("\n".join(["path,label,split", *rows]))
    config, source = opened(root, *overrides)
    line = advise_shrinking(source, loader_spec(config, CPU, "train"), 0.62)
    assert line is not None
    found = re.search(r'`make dataset ARGS="(.*?)"`', line)
    assert found is not None
    assert ("FOLDER" in line) == (kind == "packed")  # what it was packed from
    command = found[1].replace("FOLDER", str(tmp_path / "photos"))
    assert commands.optimize(shlex.split(command)) == 0
    _, shrunk = opened(root.with_name(f"{root.stem}-{ENOUGH}"))
    assert len(shrunk) == len(source)


def test_decoding_is_measured_on_the_images_themselves(tmp_path: Path) -> None:
    write_photos(tmp_path, 640, 480)
    config, source = opened(tmp_path)
    spec = loader_spec(config, CPU, "train")
    decoder = build_decoder(spec)
    numbers = np.arange(4)
    photos = read_images(source, numbers)
    assert advice._decoding_seconds(decoder, photos, numbers, spec) > 0


@pytest.mark.usefixtures("by_bytes")
def test_the_first_waiting_steps_are_enough_and_it_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_photos(tmp_path, 640, 480)
    config, source = opened(tmp_path)
    said = Advice(config, CPU, source, loader_spec(config, CPU, "train"))
    computing, waiting = [(0.0, 0.0, 0.1, 0.1)] * 20, [(0.2, 0.0, 0.1, 0.3)] * 20
    caplog.clear()
    with caplog.at_level(logging.INFO):
        said.after_interval(times(*waiting[:10]))  # the pipeline fills
        said.after_interval(times(*computing))
        assert not caplog.messages
        said.after_interval(times(*waiting))
        said.after_interval(times(*waiting))
        said.after_epoch(times(*waiting), 1)
        for thread in threading.enumerate():
            if thread.name == "advice":
                thread.join()
    assert len(caplog.messages) == 1 and "max_side=160" in caplog.messages[0]


@pytest.mark.usefixtures("by_bytes")
def test_small_photographs_are_left_as_they_are(tmp_path: Path) -> None:
    write_photos(tmp_path, 200, 150)
    config, source = opened(tmp_path)
    assert advise_shrinking(source, loader_spec(config, CPU, "train"), 0.62) is None


@pytest.mark.usefixtures("by_bytes")
@pytest.mark.parametrize(
    "error",
    [custom_op.BuildError("no compiler"), ReadError("the disk failed"), RejectedError("damaged")],
    ids=lambda error: type(error).__name__,
)
def test_a_photo_that_cannot_be_shrunk_here_does_not_end_the_job(
    error: Exception,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(advice, "encode", fail)
    write_photos(tmp_path, 640, 480)
    config, source = opened(tmp_path, "pipeline=pillow")
    caplog.clear()
    with caplog.at_level(logging.INFO):
        Advice(config, CPU, source, loader_spec(config, CPU, "train"))._say(0.62)
    assert not caplog.messages


def test_compiling_is_advised_where_it_would_pay() -> None:
    epoch = times(*[(0.0, 0.0, 0.1, 0.1)] * 1000)  # 100 s
    advised = advise_compile(epoch, 89)
    assert advised is not None
    assert advised.startswith("trainer.compile=default usually makes such steps 1.2 to 1.4 times")
    assert advised.endswith("worth it for more than about 5 minutes, and about 148 are left")
    assert advise_compile(epoch, 2) is None
    assert advise_compile(times(*[(0.01, 0.0, 0.1, 0.1)] * 1000), 89) is None  # input-bound
    assert advise_compile(times(), 89) is None


@pytest.mark.parametrize(
    ("step", "speedup", "ranks", "expected"),
    [
        ((0.0, 0.0, 0.1, 0.1), None, 1, "2,560 images/s need 2.0 cores for input; 16 available"),
        # Half of each step waits: without it, steps come twice as fast.
        ((0.1, 0.0, 0.1, 0.2), None, 1, "2,560 images/s need 2.0 cores for input; 16 available"),
        (
            (0.0, 0.0, 8.0, 8.0),
            None,
            1,
            "32 images/s need less than 0.05 cores for input; 16 available",
        ),
        ((0.0, 0.0, 0.1, 0.1), 1.5, 1, "3,840 images/s need 3.0 cores for input; 16 available"),
        (
            (0.0, 0.0, 0.1, 0.1),
            None,
            2,
            "2,560 images/s per rank need 2.0 cores for input; 16 available",
        ),
    ],
)
def test_the_cores_are_those_of_steps_that_do_not_wait(
    step: tuple[float, float, float, float],
    speedup: float | None,
    ranks: int,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    headspace = "entry_point.training.results.headspace"
    monkeypatch.setattr(f"{headspace}.cores_per_rank", lambda: 16)
    assert cores_needed(times(*[step] * 10), 256, 0.2, speedup, ranks) == expected


def test_nothing_is_said_of_cores_that_are_not_known() -> None:
    assert cores_needed(times(), 256, 0.2) == ""
    assert cores_needed(times((0.0, 0.0, 0.1, 0.1)), 256, math.nan) == ""
