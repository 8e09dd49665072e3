"""What a model of each task answers: the whole JSON and all headers, which clients depend on."""

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

from entry_point.job.program import ExitCode
from tests import commands
from tests.chromium import Browser
from tests.entry_point.prediction.predicted import rows, score_names
from tests.entry_point.serving.conftest import Serve
from tests.entry_point.serving.served_model import (
    ALONE,
    CLASSES,
    Answer,
    Served,
    as_json,
    encoded,
    serving,
    write_model,
)
from tests.entry_point.serving.test_page import ROWS

# Answers the same to every image: its outputs are its weights.
FIXED = """
import torch
from torch import nn

class fixed_net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.outputs = nn.Parameter(torch.zeros(num_classes))

    def forward(self, images):
        return self.outputs.expand(len(images), -1)

class fixed_mask(fixed_net):
    def forward(self, images):
        return self.outputs[:, None, None].expand(len(images), -1, 16, 16)
"""
SIZE = (50, 40)
ONE_OF_THREE = {"cat, big": 0.125, "dog": 0.25, "fish": 0.625}
ANSWERS: dict[str, tuple[list[float], dict[str, Any]]] = {
    "classification": (
        [1, 2, 5],
        {"class": "fish", "probability": 0.625, "probabilities": ONE_OF_THREE},
    ),
    "multilabel": (
        [1, 3, 1 / 7],
        {
            "labels": ["cat, big", "dog"],
            "probabilities": {"cat, big": 0.5, "dog": 0.75, "fish": 0.125},
        },
    ),
    "regression": ([1, 1, 1], {"values": {"cat, big": 5e5, "dog": 5e5, "fish": 5e5}}),
    "segmentation": (
        [1, 2, 5],
        {"mask": "a PNG", "shares": {"cat, big": 0.0, "dog": 0.0, "fish": 1.0}},
    ),
}
"""By task: the powers of the model's outputs, and the whole prediction."""
KINDS = {
    "classification": "class",
    "multilabel": "labels",
    "regression": "numbers",
    "segmentation": "targets",
}


def write_fixed_model(root: Path, task: str, outputs: list[float]) -> Path:
    network = nn.Module()
    network.outputs = nn.Parameter(torch.tensor(outputs).log())
    name = "project.net.fixed_mask" if task == "segmentation" else "project.net.fixed_net"
    settings = (f"task={task}", f"model.name={name}")
    return write_model(root, *settings, kind=KINDS[task], network=network, code=FIXED)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model folder of each task."""
    return {
        task: write_fixed_model(tmp_path_factory.mktemp(task), task, outputs)
        for task, (outputs, _) in ANSWERS.items()
    }


def with_mask_of(answer: Answer, mode: str = "P") -> Any:
    """The JSON of an answer; a mask of fish in it, of the image's size, becomes `a PNG`."""
    document = answer.json()
    for prediction in document["predictions"]:
        if "mask" in prediction:
            mask = Image.open(io.BytesIO(base64.b64decode(prediction["mask"], validate=True)))
            assert (mask.format, mask.mode, mask.size) == ("PNG", mode, SIZE)
            assert mask.getextrema() == (2, 2)
            prediction["mask"] = "a PNG"
    return document


def headers_of(answer: Answer, kind: str) -> dict[str, str]:
    """All that are sent with an answer of this type."""
    expected = {"content-type": kind, "content-length": str(len(answer.body))}
    return {"date": answer.headers["date"], **expected}


@pytest.mark.parametrize("task", ANSWERS)
def test_the_whole_answer_of_each_task(
    task: str, folders: dict[str, Path], serve: Serve, tmp_path: Path, chromium: Browser
) -> None:
    """Its keys, their order, its numbers and its headers; and the page shows it."""
    server = serve(f"model_dir={folders[task]}")
    prediction = ANSWERS[task][1]
    for count, body, kind in (
        (1, encoded("PNG", SIZE), "image/png"),
        (2, as_json([encoded(size=SIZE)] * 2), "application/json"),
    ):
        answer = server.invoke(body, kind)
        found = with_mask_of(answer)
        assert json.dumps(found) == json.dumps({"predictions": [prediction] * count})
        assert answer.headers == headers_of(answer, "application/json")
    refused = server.invoke(b"damaged")
    assert refused.headers == headers_of(refused, "application/json")
    image = tmp_path / "photo.png"
    image.write_bytes(encoded("PNG", SIZE))
    chromium.open(f"http://127.0.0.1:{server.port}/")
    chromium.wait_for("document.querySelector('#drop') !== null")
    chromium.drop(image, 100, 150)
    chromium.wait_for(f"{ROWS}.length === {len(CLASSES)}")
    shown = {row[0]: row[1] for row in chromium.evaluate(ROWS)}
    bold = "[...document.querySelectorAll('.found')].map((row) => row.cells[0].innerText)"
    found = chromium.evaluate(bold)
    shares = prediction.get("probabilities") or prediction.get("shares")
    if shares:
        assert shown == {name: f"{100 * share:.1f} %" for name, share in shares.items()}
        named = [prediction["class"]] if "class" in prediction else prediction.get("labels", [])
        assert sorted(found) == sorted(named)
    else:
        assert {name: float(value) for name, value in shown.items()} == prediction["values"]


@pytest.mark.parametrize(
    ("accept", "is_png"),
    [
        ("image/png", True),
        ("IMAGE/PNG;q=0.5, */*", True),
        ("application/json, image/png", False),
        ("*/*", False),
    ],
)
def test_a_mask_is_a_png_for_those_who_accept_it(
    accept: str, is_png: bool, segmentation: Served
) -> None:
    answer = segmentation.invoke(encoded(size=SIZE), Accept=accept)
    assert answer.headers == headers_of(answer, "image/png" if is_png else "application/json")
    if is_png:
        mask = Image.open(io.BytesIO(answer.body))
        assert mask.size == SIZE and mask.getextrema() == (2, 2)
    else:
        assert with_mask_of(answer) == {"predictions": [ANSWERS["segmentation"][1]]}


def test_masks_of_several_images_are_json(segmentation: Served) -> None:
    body = as_json([encoded(size=SIZE)] * 2)
    answer = segmentation.invoke(body, "application/json", Accept="image/png")
    assert with_mask_of(answer) == {"predictions": [ANSWERS["segmentation"][1]] * 2}


@pytest.fixture(scope="module")
def segmentation(
    folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(log, [f"model_dir={folders['segmentation']}"], {}) as served:
        served.wait_until_ready()
        yield served


def test_a_model_of_many_classes_answers_its_ten_best(serve: Serve, tmp_path: Path) -> None:
    names = [f"class {number}" for number in range(101)]
    outputs = [1.0] * 101
    outputs[40:50] = range(110, 100, -1)
    model = write_fixed_model(tmp_path, "classification", outputs)
    (model / "classes.json").write_text(json.dumps(names))
    (answer,) = serve(f"model_dir={model}").invoke(encoded()).json()["predictions"]
    assert list(answer["probabilities"]) == names[40:50]
    assert answer["class"] == names[40]


def write_own_answers(root: Path, answer: str) -> Path:
    """A model whose own task describes an `answer` so."""
    model = write_fixed_model(root, "classification", [1, 2, 5])
    (model / "code/project/answers.py").write_text(
        "from entry_point.training.tasks.classification import Classification\n\n"
        "class Own(Classification):\n"
        f"    def describe(self, answer, size, top):\n        return {answer}\n"
    )
    config = (model / "config.yaml").read_text()
    named = config.replace("name: classification", "name: project.answers.Own")
    (model / "config.yaml").write_text(named)
    return model


def test_an_own_answer_may_hold_numbers_of_numpy_and_of_torch(serve: Serve, tmp_path: Path) -> None:
    own = "{'most': answer.numpy().max() > 0.6, 'all': 8 * answer.round(decimals=3)}"
    model = write_own_answers(tmp_path, own)
    (answer,) = serve(f"model_dir={model}", *ALONE).invoke(encoded()).json()["predictions"]
    assert answer == {"most": True, "all": [1.0, 2.0, 5.0]}


def test_a_task_whose_answer_is_no_json_is_never_ready(serve: Serve, tmp_path: Path) -> None:
    model = write_own_answers(tmp_path, "{'best': (each for each in answer)}")
    server = serve(f"model_dir={model}", *ALONE, becomes_ready=False)
    assert server.process.wait(60) == ExitCode.USAGE, server.log()
    line = server.log().splitlines()[-1]
    assert "describe() of task.name=project.answers.Own answers with generator, which is" in line


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_is_an_error_and_not_an_answer(value: float, serve: Serve, tmp_path: Path) -> None:
    """Only of the image that the model answers so."""
    network = nn.Module()
    network.outputs = nn.Parameter(torch.zeros(3))
    code = FIXED.replace("return self.outputs.expand(len(images), -1)",
        f"return torch.where(images.mean((1, 2, 3))[:, None] > 1, float('{value}'), 0.0)"
        " * torch.ones(3)")  # fmt: skip
    settings = ("task=regression", "model.name=project.net.fixed_net")
    model = write_model(tmp_path, *settings, kind="numbers", network=network, code=code)
    server = serve(f"model_dir={model}")
    black, white = (encoded_color(color) for color in ("black", "white"))
    assert server.invoke(black, "image/png").status == 200
    answer = server.invoke(white, "image/png")
    assert answer.status == 500 and "NaN or infinite" in answer.json()["error"]
    assert server.invoke(black, "image/png").status == 200


def encoded_color(color: str) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (40, 40), color).save(out, "PNG")
    return out.getvalue()


@pytest.mark.parametrize("task", ["classification", "multilabel", "regression"])
def test_the_command_line_answers_as_the_server(
    task: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    image, output = tmp_path / "photo.png", tmp_path / "output"
    image.write_bytes(encoded("PNG"))
    settings = ("pipeline=pillow", "pipeline.num_workers=0")
    arguments = [f"model_dir={folders[task]}", f"input={image}", f"output_dir={output}", *settings]
    assert commands.predict(arguments) == 0
    (row,) = rows(output)
    expected = dict(ANSWERS[task][1])
    names = score_names(output)
    scores = dict(zip(names, row.pop("scores"), strict=True))
    named = "values" if task == "regression" else "probabilities"
    assert scores == pytest.approx(expected.pop(named), rel=1e-6, abs=1e-6)
    if task == "classification":
        assert names[row.pop("class_index")] == row["class"]
        row["probability"] = pytest.approx(row["probability"], abs=1e-6)
    assert row.pop("path") == image.name and row.pop("error") is None
    assert expected == row
