"""What a finished run leaves: a program that deploys, a report, and predictions made with them."""

import csv
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from PIL import Image

from entry_point import inference, predict
from entry_point.config.train_config import load_train_config
from entry_point.contract import exit_codes
from entry_point.training.results.model_files import export
from entry_point.training.results.plot import draw
from tests.entry_point.training import forked
from tests.entry_point.training.training_jobs import read_records
from tests.own_models import tiny_net

DEPLOYED = """
import json, sys
sys.path.insert(0, sys.argv[1] + "/code")
import inference
model = inference.model_fn(sys.argv[1])
body = open(sys.argv[2], "rb").read()
data = inference.input_fn(body, "image/jpeg")
print(inference.output_fn(inference.predict_fn(data, model), "application/json"))
print(inference.output_fn(inference.predict_fn(data, model), "text/csv"))
print(sorted(name for name in sys.modules if name.startswith(("entry_point", "custom_op"))))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, photo_folder: Path) -> Path:
    root = tmp_path_factory.mktemp("run")
    overrides = [
        "model.name=tests.own_models.tiny_net_with_state",
        "trainer.report=true",
        "trainer.epochs=8",
        "trainer.evaluate_every_epochs=8",
        "optim.lr=0.05",
        "data.resize=36",
    ]
    assert forked.run(root, photo_folder, overrides) == 0, (root / "log").read_text()
    return root


def test_the_model_folder_deploys_with_its_four_functions_alone(
    run: Path, photo_folder: Path, tmp_path: Path
) -> None:
    image = next((photo_folder / "val").rglob("*.jpg"))
    command = [sys.executable, "-c", DEPLOYED, str(run / "model"), str(image)]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    answer, line, _, ours = printed.stdout.splitlines()
    prediction = json.loads(answer)["predictions"][0]
    assert sum(prediction["probabilities"].values()) == pytest.approx(1, abs=1e-4)
    assert line.split(",")[0] == prediction["class"]
    assert ours == "[]"


@pytest.mark.parametrize(
    "transform", [(), ("data.transform=stall", "data.mean=[0,0,0]", "data.std=[1,1,1]")]
)
def test_a_program_remembers_no_cpu_once_it_was_moved(
    transform: tuple[str, ...], tmp_path: Path
) -> None:
    """A checked or constant CPU tensor in it would fail the first prediction on a GPU."""
    config, _ = load_train_config(["data=folder", "data.image_size=32", *transform])
    path = tmp_path / "model.pt2"
    torch.export.save(export(tiny_net(3), config.data), path)
    meta = inference.load_program(path, torch.device("meta"), torch.__version__)
    assert isinstance(meta, torch.fx.GraphModule)
    assert not [node for node in meta.graph.nodes if "cpu" in f"{node.args} {node.kwargs}"]
    assert meta(torch.zeros(5, 3, 32, 32, dtype=torch.uint8, device="meta")).shape == (5, 3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_predicts_as_the_cpu_does(run: Path) -> None:
    model = inference.model_fn(str(run / "model"))
    assert model.device.type == "cuda"
    cpu = inference.load_program(run / "model" / "model.pt2", torch.device("cpu"), "")
    batch = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    torch.testing.assert_close(inference.predict_batch(batch, model), cpu(batch), atol=1e-3, rtol=0)


def test_a_program_that_cannot_be_loaded_names_both_versions(run: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(run / "model", model)
    (model / "model.pt2").write_bytes(b"of another torch")
    settings = json.loads((model / "inference.json").read_text())
    (model / "inference.json").write_text(json.dumps({**settings, "torch": "9.9"}))
    with pytest.raises(RuntimeError, match=rf"torch 9\.9 .* torch {re.escape(torch.__version__)}"):
        inference.model_fn(str(model))


@pytest.mark.parametrize(
    ("file", "content", "hint"),
    [
        ("model.pt2", b"PK cut short", "copy the model again"),
        ("inference.json", b"{", "copy the model again"),
        ("inference.json", b"{}", "has no 'torch': another version of this code wrote it"),
        ("classes.json", None, "copy the model again"),
    ],
)
def test_a_damaged_model_folder_is_one_line_that_names_it(
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
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("predict: ") and str(model) in said and file in said
    assert hint in said


def test_what_cannot_be_exported_costs_the_program_alone(
    tmp_path: Path, photo_folder: Path
) -> None:
    overrides = [
        "model.name=tests.own_models.untraceable_net",
        "trainer.report=true",
    ]
    assert forked.run(tmp_path, photo_folder, overrides) == 0
    assert "no model.pt2: " in (tmp_path / "log").read_text()
    assert (tmp_path / "model" / "model.pt").is_file()
    assert (tmp_path / "output" / "data" / "report.html").is_file()


@pytest.mark.parametrize("engine", ["threads", "pillow"])
def test_predictions_for_the_validation_split_are_the_evaluation(
    engine: str, run: Path, photo_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [f"model_dir={run / 'model'}", f"input={photo_folder / 'val'}", f"engine={engine}"]
    assert predict.main(arguments) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    right = sum(Path(row["path"]).parent.name == row["class"] for row in rows)
    accuracy = next(r for r in reversed(read_records(run)) if "val_accuracy" in r)["val_accuracy"]
    assert len(rows) == 24
    assert right / len(rows) == pytest.approx(accuracy, abs=1e-6)


def test_bad_files_are_listed_and_fail_the_exit_code_unless_allowed(
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
    said = capsys.readouterr().err
    assert f"{images / 'bad.jpg'}: not an image" in said
    counts = "predict: 2 images classified, 1 damaged"
    assert said.endswith(f"{counts} (allow_bad=true accepts them); written to {output}\n")
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [Path(line["path"]).name for line in lines] == ["good.png", "tiny.gif"]
    assert predict.main([*arguments, "allow_bad=true"]) == 0
    assert capsys.readouterr().err.endswith(f"{counts}; written to {output}\n")
    unwritable = output.with_name("x" * 255)  # the temporary name is longer
    assert predict.main([*arguments, f"output={unwritable}"]) == exit_codes.FAILED
    assert capsys.readouterr().err == f"predict: {unwritable}: File name too long\n"


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
def test_a_wrong_request_is_one_line(
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


class _Page(HTMLParser):
    VOID = ("meta", "img", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_plot_shows_every_loss_and_says_of_what_the_training_loss_is() -> None:
    train = [
        {"step": step, "loss": 2 / step, "images_per_s": 9.0, "data_wait_pct": 0.0}
        for step in (10, 20)
    ]
    figure = draw([*train, {"step": 10, "val_loss": 15.0, "val_accuracy": 0.1}], "a", "smoothed")
    low, high = figure.axes[0].get_ylim()
    assert low < 0.1 and high > 15
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["smoothed", "validation"]


def text_of(page: Path) -> str:
    parsed = _Page()
    parsed.feed(page.read_text())
    return parsed.text


def test_the_report_is_one_whole_page_that_needs_nothing_else(run: Path) -> None:
    page = _Page()
    page.feed((run / "output" / "data" / "report.html").read_text())
    assert page.open == []
    assert f"{run.name}: tests.own_models.tiny_net_with_state" in page.text
    assert re.search(r"ended\d{4}-\d\d-\d\d \d\d:\d\d UTC", page.text)
    for fact in ("code revision", "processor", "trained for"):
        assert fact in page.text
    assert page.sources
    assert all(source.startswith("data:image/") for source in page.sources)
    classes = json.loads((run / "model" / "classes.json").read_text())
    for part in [*classes, "Confusion matrix", "Worst mistakes", "Stall meter", "torchvision"]:
        assert part in page.text
    assert "image_size: 32" in page.text


def test_a_finished_run_started_again_only_writes_its_outputs_anew(
    run: Path, photo_folder: Path
) -> None:
    before = torch.load(run / "model" / "model.pt", weights_only=True)
    (run / "model" / "model.pt").unlink()
    records = read_records(run)
    page = run / "output" / "data" / "report.html"
    reported, log = text_of(page), (run / "log").read_text()
    overrides = [
        "model.name=tests.own_models.tiny_net_with_state",
        "trainer.report=true",
        "trainer.epochs=8",
        "trainer.evaluate_every_epochs=8",
        "optim.lr=0.05",
        "data.resize=36",
    ]
    assert forked.run(run, photo_folder, overrides) == 0
    after = torch.load(run / "model" / "model.pt", weights_only=True)
    assert all(torch.equal(after[key], value) for key, value in before.items())
    assert read_records(run) == records
    # Nothing that the first process reported is lost; only its single steps are not known now.
    exact = re.compile(r"\d+ % of each step|Milliseconds that.*?Confusion", re.S)
    assert exact.sub("", text_of(page)) == exact.sub("", reported)
    said = (run / "log").read_text().removeprefix(log)
    assert "\nFinished before, results written anew in " in said
    for row in ("training speed", "waiting for data", "ms at p50", "verdict"):
        (line,) = (line for line in said.splitlines() if line.startswith(f"  {row}"))
        assert " 0 images/s" not in line and "e+" not in line
    assert "in the middle one of the epochs" in text_of(page) and "Milliseconds that" in reported
