"""What a model of each kind answers: in Python, in JSON, on the command line, on the page."""

import json
from pathlib import Path

import pytest
import torch

from entry_point.model_folder import load_model
from entry_point.serving import formats
from tests import commands
from tests.chromium import browser
from tests.entry_point.prediction.predicted import center_crop, rows, score_names
from tests.entry_point.serving.conftest import Serve
from tests.entry_point.serving.served_model import CLASSES, write_model
from tests.entry_point.serving.test_invocations import encoded
from tests.entry_point.serving.test_page import ROWS
from tests.entry_point.training.tasks.label_sources import CPU

KINDS = {"classification": "class", "multilabel": "labels", "regression": "numbers"}
ANSWERS = torch.tensor([[0.25, 0.5, 0.75], [0.1, 0.2, 0.1234567]])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model folder of each kind."""
    roots = {kind: tmp_path_factory.mktemp(kind) for kind in KINDS}
    return {
        kind: write_model(roots[kind], f"task={kind}", kind=takes) for kind, takes in KINDS.items()
    }


@pytest.mark.parametrize(
    ("kind", "answers"),
    [
        (
            "classification",
            [
                {"class": "fish", "probability": 0.75},
                {"class": "dog", "probability": 0.2},
            ],
        ),
        (
            "multilabel",
            [{"labels": ["dog", "fish"]}, {"labels": []}],
        ),
        (
            "regression",
            [
                {"values": {"cat, big": 0.25, "dog": 0.5, "fish": 0.75}},
                {"values": {"cat, big": 0.1, "dog": 0.2, "fish": 0.1234567}},
            ],
        ),
    ],
)
def test_the_answers_of_a_kind(
    kind: str, answers: list[dict[str, object]], folders: dict[str, Path]
) -> None:
    model = load_model(folders[kind], CPU)
    described = [formats.describe(answer, model) for answer in ANSWERS]
    for found, expected in zip(described, answers, strict=True):
        assert {key: found[key] for key in expected} == expected
        if kind != "regression":
            assert list(found["probabilities"]) == CLASSES
    answer = formats.format_predictions(described, formats.JSON)
    assert json.loads(answer)["predictions"] == described


def test_probabilities_are_rounded_as_python_rounds(folders: dict[str, Path]) -> None:
    model = load_model(folders["classification"], CPU)
    ties = (torch.arange(99) + 0.5) / 2**20  # some lie in the middle between two
    answers = torch.cat([torch.rand(90_000), 1e-4 * torch.rand(9_900), ties])
    described = [formats.describe(each, model) for each in answers.view(-1, len(CLASSES))]
    found = [value for each in described for value in each["probabilities"].values()]
    assert found == [round(value, 6) for value in answers.tolist()]


def test_a_model_of_many_classes_answers_the_best_unless_all_are_wanted(
    folders: dict[str, Path],
) -> None:
    names = [f"class {number}" for number in range(101)]
    model = load_model(folders["classification"], CPU)
    model.task.names = names
    answer = torch.rand(len(names), generator=torch.Generator().manual_seed(0))
    ranked = [names[place] for place in answer.argsort(descending=True)]
    for top, expected in ((None, ranked[:10]), (3, ranked[:3]), (101, names), (10**6, names)):
        found = formats.describe(answer, model, top=top)
        assert found["class"] == ranked[0]
        assert list(found["probabilities"]) == expected
    model.task.names = names[:100]
    assert list(formats.describe(answer[:100], model)["probabilities"]) == names[:100]


@pytest.mark.parametrize(
    ("accept", "top"),
    [("*/*", None), ("application/json;q=0.5; Top=7", 7), ("application/json;top=all", None)],
)
def test_a_request_chooses_how_many_names_are_answered(accept: str, top: int | None) -> None:
    found = formats.read_accept(accept)
    assert found.kind == formats.JSON
    assert found.top == top or ("all" in accept and (found.top or 0) > 10**6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_is_an_error_and_not_an_answer(
    kind: str, value: float, folders: dict[str, Path]
) -> None:
    answer = torch.tensor([0.25, value, 0.5])
    with pytest.raises(formats.RequestError, match="NaN or infinite") as refused:
        formats.describe(answer, load_model(folders[kind], CPU))
    assert refused.value.status_code == 500


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_line_answers_as_the_model(
    kind: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    image, output = tmp_path / "photo.png", tmp_path / "output"
    image.write_bytes(encoded("PNG"))
    model = load_model(folders[kind], CPU)
    pixels = center_crop(image.read_bytes(), model.image_size, model.resize)
    expected = formats.describe(model.predict(pixels[None])[0], model)
    settings = ("pipeline=pillow", "pipeline.num_workers=0")
    arguments = [f"model_dir={folders[kind]}", f"input={image}", f"output_dir={output}", *settings]
    assert commands.predict(arguments) == 0
    (row,) = rows(output)
    names = score_names(output)
    scores = dict(zip(names, row.pop("scores"), strict=True))
    key = "values" if kind == "regression" else "probabilities"
    rounded = {key: pytest.approx(scores, rel=1e-6, abs=1e-6)}
    if kind == "classification":
        assert names[row.pop("class_index")] == row["class"]
        row["probability"] = pytest.approx(row["probability"], abs=1e-6)
    assert row.pop("path") == image.name and row.pop("error") is None
    assert expected == row | rounded


@pytest.mark.parametrize("kind", ["multilabel", "regression"])
def test_the_page_shows_them(
    kind: str, folders: dict[str, Path], serve: Serve, tmp_path: Path
) -> None:
    image = tmp_path / "photo.png"
    image.write_bytes(encoded("PNG"))
    server = serve(f"model_dir={folders[kind]}")
    server.wait_until_ready()
    (answer,) = server.invoke(image.read_bytes(), "image/png").json()["predictions"]
    with browser(f"http://127.0.0.1:{server.port}/", tmp_path / "profile") as page:
        page.wait_for("document.querySelector('#drop') !== null")
        page.drop(image, 100, 150)
        page.wait_for(f"{ROWS}.length === {len(CLASSES)}")
        shown = {row[0]: row[1] for row in page.evaluate(ROWS)}
        found = page.evaluate(
            "[...document.querySelectorAll('.found')].map((row) => row.cells[0].innerText)"
        )
    if kind == "multilabel":
        assert shown == {n: f"{100 * p:.1f} %" for n, p in answer["probabilities"].items()}
        assert sorted(found) == sorted(answer["labels"])
    else:
        assert {name: float(value) for name, value in shown.items()} == answer["values"]
