"""Your own task answers in its own form: in the report, the predictions and the server's JSON."""

import io
import json
import re
import shutil
from pathlib import Path

import polars as pl
import pytest
from PIL import Image

from tests.boxed_shapes import HEIGHT, WIDTH, write_boxes
from tests.entry_point.serving.served_model import serving
from tests.test_removal import ROOT, TRAIN, copy_without, run

# All that a new task is: a class and a config file.
RANKED = '''
import io
from collections.abc import Sequence
from typing import Any

import polars as pl
from PIL import Image
from torch import Tensor

from entry_point.training.tasks.classification import Classification
from entry_point.training.tasks.task import Metric, Size


class Ranked(Classification):
    """Answers the names, the likeliest first, and a picture of the image's size."""

    answers_png = True

    def __init__(self, train, config, device):
        super().__init__(train, config, device)
        self.metrics = [Metric("first", "right at once", percent=True), *self.metrics]

    def measure(self, scores: Tensor) -> dict[str, float]:
        found = super().measure(scores)
        return {**found, "first": found["accuracy"]}

    def describe(self, answer: Tensor, size: Size, top: int | None) -> dict[str, Any]:
        file = io.BytesIO()
        Image.new("L", size[::-1], int(255 * answer.max())).save(file, "PNG")
        order = answer.argsort(descending=True)[:top].tolist()
        ranking = [self.names[place] for place in order]
        return {"ranking": ranking, "size": size, "picture": file.getvalue()}

    def rows(self, answers: Tensor, sizes: Sequence[Size]) -> pl.DataFrame:
        pairs = zip(answers, sizes, strict=True)
        found = [self.describe(answer, size, None) for answer, size in pairs]
        types = {"ranking": pl.List(pl.String), "size": pl.Array(pl.Int32, 2), "picture": pl.Binary}
        return pl.DataFrame(found, types)
'''
CONFIG = """
# The names of the classes, the likeliest first.
name: project.ranked.Ranked
metrics: [first]
"""


def test_a_new_task_is_a_class_and_a_config_file(tmp_path: Path) -> None:
    copy = copy_without((), tmp_path / "copy")
    (copy / "project" / "ranked.py").write_text(RANKED)
    (copy / "configs" / "task" / "ranked.yaml").write_text(CONFIG)
    demo, model = tmp_path / "demo", tmp_path / "run" / "model"
    place = {"ML_ROOT": str(model.parent), "DEMO_DATA": str(demo)}
    log = run(copy, ["-m", "entry_point.train", *TRAIN, "task=ranked"], **place)
    assert "val_first=" in log and "right at once" in log
    where = [f"model_dir={model}", f"input={demo / 'val'}", f"output_dir={tmp_path / 'answers'}"]
    broken = min(path for path in (demo / "val").rglob("*") if path.is_file())
    broken.write_bytes(b"no image")
    run(copy, ["-m", "entry_point", "predict", *where, "batch_size=1", "csv=true"])
    table = pl.read_parquet(tmp_path / "answers" / "*.parquet")
    assert table.columns == ["path", "ranking", "size", "picture", "error"] and len(table) == 10
    (bad,) = table.filter(pl.col("error").is_not_null()).rows(named=True)
    assert bad["ranking"] is None and bad["picture"] is None
    row = table.filter(pl.col("error").is_null()).row(0, named=True)
    photo = demo / "val" / row["path"]
    size = Image.open(photo).size
    assert row["picture"] == f"pictures/{row['path']}.png"
    (sheet,) = (tmp_path / "answers").glob("*.csv")
    cells = pl.read_csv(sheet).row(by_predicate=pl.col("path") == row["path"], named=True)
    assert cells["ranking"] == "|".join(row["ranking"])
    assert (cells["size.1"], cells["size.0"]) == size
    assert Image.open(tmp_path / "answers" / row["picture"]).size == size
    with serving(tmp_path / "log", [f"model_dir={model}"], {}) as served:
        served.wait_until_ready()
        (answer,) = served.invoke(photo.read_bytes()).json()["predictions"]
        assert answer.keys() == {"ranking", "size", "picture"}
        assert answer["ranking"] == row["ranking"]
        picture = served.invoke(photo.read_bytes(), accept="image/png")
    assert picture.headers["content-type"] == "image/png"
    assert Image.open(io.BytesIO(picture.body)).size == size


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the tree, images with boxes in `root` as YOLO has them, and a run of
    the documents' command on them in `run`."""
    folder = tmp_path_factory.mktemp("boxes")
    copy, root = (
        copy_without((), folder / "copy", ["examples"]),
        write_boxes(folder / "root", train=24),
    )
    page = (ROOT / "docs" / "data.md").read_text()
    command = re.search(r'cp examples/boxes.py project/\nmake local-train ARGS="([^"]+)"', page)
    assert command, "docs/data.md shows no command for boxes"
    shutil.copy(copy / "examples" / "boxes.py", copy / "project" / "boxes.py")
    settings = command[1].replace("\\\n", "").replace("$BOXES", str(root)).split()
    settings += ["data.image_size=64", "task.metrics=[found]", "trainer.device=cpu"]
    settings += ["trainer.batch_size=4", "trainer.epochs=4", "optim=adamw", "optim.lr=1e-3"]
    settings += ["optim.warmup_epochs=0", "loggers=[]"]
    run(copy, ["-m", "entry_point.train", *settings], ML_ROOT=str(folder / "run"))
    return folder


def test_the_documents_command_learns_boxes_of_yolos_folders(boxes: Path) -> None:
    lines = (boxes / "run" / "output" / "data" / "metrics.jsonl").read_text().splitlines()
    losses = [row["val_loss"] for row in map(json.loads, lines) if "val_loss" in row]
    assert losses[-1] < 0.9 * losses[0]


def test_the_report_draws_boxes(boxes: Path) -> None:
    page = (boxes / "run" / "output" / "data" / "report.html").read_text()
    assert "The image, its target, and the model's answer." in page
    assert page.count("<figure>") == 8 and "training samples" in page


def test_boxes_are_predicted_and_served_in_pixels_of_the_image(boxes: Path) -> None:
    model, photos = boxes / "run" / "model", boxes / "root" / "images" / "val"
    where = [f"model_dir={model}", f"input={photos}", f"output_dir={boxes / 'answers'}"]
    run(boxes / "copy", ["-m", "entry_point", "predict", *where, "csv=true"])
    table = pl.read_parquet(boxes / "answers" / "*.parquet")
    assert table.columns == ["path", "boxes", "error"] and len(table) == 8
    (sheet,) = (boxes / "answers").glob("*.csv")
    assert [*map(json.loads, pl.read_csv(sheet)["boxes"])] == table["boxes"].to_list()
    found = table.explode("boxes").unnest("boxes").drop_nulls("class")
    assert len(found) and set(found["class"]) <= {"blue", "red"}
    corners = found["box"].to_numpy()
    assert 64 < corners[:, 2].max() <= WIDTH and corners[:, 3].max() <= HEIGHT
    with serving(boxes / "log", [f"model_dir={model}"], {}) as served:
        served.wait_until_ready()
        row = table.row(0, named=True)
        answer = served.invoke((photos / row["path"]).read_bytes())
        (prediction,) = answer.json()["predictions"]
    assert set(prediction) == {"boxes"}
    assert [each["class"] for each in prediction["boxes"]] == [b["class"] for b in row["boxes"]]
    for one, other in zip(prediction["boxes"], row["boxes"], strict=True):
        assert one["box"] == pytest.approx(other["box"], abs=0.5)
