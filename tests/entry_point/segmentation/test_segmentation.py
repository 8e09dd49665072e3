"""The task: its scores, its models, and a job from training to the answers of a server."""

import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from matplotlib.colors import to_hex
from PIL import Image, ImageColor
from sklearn.metrics import jaccard_score
from torch import Tensor
from torch.nn import functional

from entry_point.class_masks import COLORS, class_mask
from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import load_train_config
from entry_point.data.sources.masks import IGNORED, OUTSIDE, MaskSource
from entry_point.data.sources.rows import Files, Labels, PathList, Rows, Words
from entry_point.data.sources.source import FileSource
from entry_point.training.dense_models import PyramidHead
from entry_point.training.models import build_model, checkpoint_gradients
from entry_point.training.results.pictures import draw_samples
from entry_point.training.tasks.build_task import build_task
from entry_point.training.tasks.segmentation import Segmentation
from tests.chromium import browser
from tests.commands import evaluate, predict
from tests.entry_point.serving.served_model import Served, serving
from tests.entry_point.training import forked
from tests.masked_shapes import CLASSES, write_shapes

DENSE = ("model.name=timm/test_resnet", "model.kwargs.features_only=true")
MASKS = ("data=masks", "data.root=x", "task=segmentation")
CPU = torch.device("cpu")


def task(*overrides: str) -> Segmentation:
    config, _ = load_train_config([*MASKS, *overrides])
    source = FileSource(["a.jpg"], [0], list("abcd"), "targets")
    built = build_task(config, source, CPU)
    assert isinstance(built, Segmentation)
    return built


def random_masks(count: int, seed: int) -> tuple[Tensor, list[np.ndarray]]:
    """Targets of one tensor, as a source pads them, and each by itself."""
    rng = np.random.default_rng(seed)
    masks = [rng.choice([0, 1, 2, IGNORED], size=rng.integers(8, 40, 2)) for _ in range(count)]
    height, width = (max(mask.shape[axis] for mask in masks) for axis in (0, 1))
    whole = np.full((count, height, width), OUTSIDE, np.uint8)
    for mask, place in zip(masks, whole, strict=True):
        place[: mask.shape[0], : mask.shape[1]] = mask
    return torch.from_numpy(whole), masks


def test_metrics_are_those_of_scikit_learn_in_the_pixels_of_the_images() -> None:
    outputs = torch.randn(6, 4, 16, 16, generator=torch.Generator().manual_seed(0))
    outputs[:, 3] = -9  # a class that neither masks nor answers have
    targets, masks = random_masks(6, seed=1)
    truth, answers = [], []
    for output, mask in zip(outputs, masks, strict=True):
        whole = functional.interpolate(output[None], mask.shape, mode="bilinear")[0].argmax(0)
        truth.append(mask[mask != IGNORED])
        answers.append(whole.numpy()[mask != IGNORED])
    expected = jaccard_score(np.concatenate(truth), np.concatenate(answers), average=None)
    scores = task().scores(outputs, targets)
    found = task().measure(scores)
    assert found["miou"] == pytest.approx(expected.mean())
    right = (np.concatenate(truth) == np.concatenate(answers)).mean()
    assert found["pixel_accuracy"] == pytest.approx(right)
    (table,) = task().tables(scores)
    shown = [str(row[1]) for row in table.rows]
    assert shown == [*(f"{100 * value:.2f} %" for value in expected), "-"]
    assert task().outcomes(scores)["mean_iou"] == pytest.approx(
        [jaccard_score(t, a, average="macro") for t, a in zip(truth, answers, strict=True)]
    )
    worst = [row for row, _ in task().mistakes(scores, 3)]
    each = [jaccard_score(t, a, average="macro") for t, a in zip(truth, answers, strict=True)]
    assert worst == np.argsort(each)[:3].tolist()


def test_the_loss_of_a_sample_is_the_mean_over_its_pixels_that_have_a_class() -> None:
    """So a batch in pieces, or on several ranks, has the loss of the whole."""
    outputs = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    targets = torch.randint(0, 4, (2, 8, 8), dtype=torch.uint8)
    targets[0, :4] = IGNORED
    each = [
        functional.cross_entropy(
            outputs[i : i + 1], targets[i : i + 1].long(), ignore_index=IGNORED
        )
        for i in range(2)
    ]
    found = task("task.label_smoothing=0").loss(outputs, targets)
    assert found.item() == pytest.approx(sum(map(float, each)) / 2, rel=1e-6)
    pieces = [task().loss(outputs[i : i + 1], targets[i : i + 1]) for i in range(2)]
    assert task().loss(outputs, targets).item() == pytest.approx(float(sum(pieces)) / 2, rel=1e-6)
    nowhere = torch.full_like(targets, IGNORED)
    assert task().loss(outputs, nowhere) == 0
    larger = functional.interpolate(outputs, (16, 16), mode="bilinear")
    many = torch.randint(0, 4, (2, 16, 16), dtype=torch.uint8)
    assert task().loss(outputs, many) == task().loss(larger, many)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data.crop=center: .* whole images; set squash"):
        task("data.crop=center")
    with pytest.raises(ConfigError, match=r"class_weights=auto: .* list a number per class"):
        task("task.class_weights=auto")
    with pytest.raises(ConfigError, match=r"model.name=resnet18: must predict every pixel"):
        task("model.name=resnet18").loss(torch.zeros(2, 4), torch.zeros(2, 8, 8).byte())
    with pytest.raises(ConfigError, match="must be a classification or segmentation model"):
        build_model(load_train_config([*MASKS, "model.name=deeplab"])[0].model, 4)


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.name=deeplabv3_resnet50"],
        ["model.name=lraspp_mobilenet_v3_large"],
        ["model.name=timm/vit_tiny_patch16_224", "model.kwargs.features_only=true"],
        ["model.name=timm/convnext_atto", "model.kwargs.features_only=true"],
    ],
    ids=lambda overrides: overrides[0],
)
def test_models_answer_for_each_pixel(overrides: list[str]) -> None:
    config, _ = load_train_config([*MASKS, *overrides])
    with torch.device("meta"):
        model = build_model(config.model, 5).eval()
        assert model(torch.zeros(1, 3, 224, 224)).shape == (1, 5, 224, 224)


@pytest.mark.parametrize("name", ["deeplabv3_resnet50", "lraspp_mobilenet_v3_large"])
def test_an_auxiliary_classifier_that_nothing_would_train_is_refused(name: str) -> None:
    config, _ = load_train_config([*MASKS, f"model.name={name}", "model.kwargs.aux_loss=true"])
    with pytest.raises(ConfigError, match=r"model.kwargs.aux_loss=true: is set by the job; remove"):
        build_model(config.model, 4)


def test_gradient_checkpointing_computes_an_encoders_activations_again() -> None:
    config, _ = load_train_config([*MASKS, *DENSE])
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    calls, gradients = [], []
    for is_saving in (False, True):
        torch.manual_seed(0)
        model = build_model(config.model, 4)
        assert isinstance(model, PyramidHead)
        if is_saving:
            checkpoint_gradients(model, config.model.name)
        calls.append(0)

        def count(*_: object) -> None:
            calls[-1] += 1

        model.encoder.get_submodule("model.layer1.0").register_forward_pre_hook(count)
        model(images).square().mean().backward()
        gradients.append([p.grad for p in model.parameters()])
    assert calls == [1, 2]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("size", [(1, 1), (7, 300), (300, 7), (64, 64), (1000, 333)])
def test_a_mask_of_any_size_is_the_likeliest_class_of_resized_logits(
    size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few rows are computed at once, and as in an evaluation."""
    monkeypatch.setattr("entry_point.class_masks._MOST_VALUES", 5000)
    logits = 10 * torch.randn(3, 16, 24, generator=torch.Generator().manual_seed(0))
    whole = functional.interpolate(logits[None], size, mode="bilinear")[0]
    two = whole.topk(2, dim=0).values
    clear = (two[0] - two[1] > 1e-4).numpy()  # rounding decides the others
    found = class_mask(logits.softmax(0), *size)
    assert found.shape == size and (clear.mean() > 0.99 or size == (1, 1))
    assert np.array_equal(found[clear], whole.argmax(0).numpy()[clear])


def test_the_legend_has_the_colors_that_masks_are_drawn_in() -> None:
    segmentation, white = task(), Image.new("RGB", (1, 1), "white")
    for number, color in enumerate(segmentation.colors):
        drawn = segmentation.draw(white, torch.full((1, 1), number, dtype=torch.uint8), 1)
        half = [(255 + channel) // 2 for channel in ImageColor.getrgb(color)]
        assert drawn.getpixel((0, 0)) == pytest.approx(half, abs=1)
    names = ["_background_", "$x$", *segmentation.names[2:]]
    legend = [*zip(names, segmentation.colors, strict=True)]
    figure = draw_samples([Image.new("RGB", (8, 8))], [""], legend)
    figure.savefig(io.BytesIO())
    (below,) = figure.legends
    assert [text.get_text() for text in below.get_texts()] == names
    assert [to_hex(patch.get_facecolor()) for patch in below.get_patches()] == segmentation.colors


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job that has learned shapes, in `run`, and its images in `root`."""
    folder = tmp_path_factory.mktemp("job")
    root = write_shapes(folder / "root", train=256, val=32)
    overrides = [*DENSE, "data=masks", "task=segmentation", "data.image_size=48"]
    overrides += ["data.scale=[1,1]", "trainer.batch_size=4", "trainer.epochs=4"]
    overrides += ["optim=adamw", "optim.lr=0.004", "trainer.report=true", "pipeline=threads"]
    assert forked.run(folder / "run", root, overrides) == 0, (folder / "run/log").read_text()
    return folder


def miou(job: Path) -> float:
    lines = (job / "run/output/data/metrics.jsonl").read_text().splitlines()
    found: float = [json.loads(line) for line in lines][-1]["val_miou"]
    return found


def test_shapes_are_learned(job: Path) -> None:
    assert miou(job) >= 0.8
    page = (job / "run/output/data/report.html").read_text()
    assert "The image, its target, and the model's answer." in page
    assert page.count("<figure>") == 12 and "training samples" in page
    legend = re.findall(r'<i style="background:(#[0-9a-f]{6})"></i>(\w+)</span>', page)
    assert legend == [*zip(COLORS, CLASSES, strict=False)]


@pytest.fixture(scope="module")
def masks(job: Path) -> Path:
    """What `make predict` wrote."""
    arguments = [f"model_dir={job / 'run/model'}", f"input={job / 'root/val/images'}"]
    assert predict([*arguments, f"output_dir={job / 'predicted'}"]) == 0
    return job / "predicted"


def test_predicted_masks_are_of_the_size_of_their_images_and_as_good(
    job: Path, masks: Path
) -> None:
    table = pl.read_parquet(masks / "*.parquet")
    assert len(table) == 32 and table.columns == ["path", "mask", "scores", "error"]
    truth, answers = [], []
    for row in table.rows(named=True):
        image = Image.open(job / "root/val/images" / row["path"])
        answer = Image.open(masks / row["mask"])
        assert answer.size == image.size and answer.mode == "P"
        classes = np.asarray(answer)
        shares = np.bincount(classes.ravel(), minlength=len(CLASSES)) / classes.size
        assert row["scores"] == pytest.approx(shares.tolist(), abs=1e-6)
        mask = np.asarray(Image.open(job / "root/val/masks" / row["path"].replace("jpg", "png")))
        truth.append(mask[mask != IGNORED])
        answers.append(classes[mask != IGNORED])
    found = jaccard_score(np.concatenate(truth), np.concatenate(answers), average="macro")
    assert found == pytest.approx(miou(job), abs=5e-5)


def test_an_evaluation_measures_what_training_measured(job: Path) -> None:
    output = job / "evaluated"
    assert evaluate([f"model_dir={job / 'run/model'}", f"output_dir={output}",
                     f"data.root={job / 'root'}"]) == 0  # fmt: skip
    metrics = json.loads((output / "evaluation.json").read_text())["metrics"]
    assert metrics["miou"] == pytest.approx(miou(job), abs=1e-4)
    assert "IoU" in (output / "evaluation.html").read_text()


def test_masks_of_the_training_split_are_measured_as_those_of_validation(
    job: Path, tmp_path: Path
) -> None:
    for split in ("train", "val"):
        shutil.copytree(job / "root/val", tmp_path / "root" / split)
    shutil.copy(job / "root/classes.txt", tmp_path / "root")
    where = [f"model_dir={job / 'run/model'}", f"data.root={tmp_path / 'root'}"]
    assert evaluate([*where, f"output_dir={tmp_path}", "split=train"]) == 0
    metrics = json.loads((tmp_path / "evaluation.json").read_text())["metrics"]
    assert metrics["miou"] == pytest.approx(miou(job), abs=1e-4)


def test_masks_may_number_the_classes_in_another_order(job: Path, tmp_path: Path) -> None:
    """The model's numbers count, in the metrics and in the pictures; a class may be missing."""
    other = Path(shutil.copytree(job / "root", tmp_path / "other"))
    order = ["triangle", "ground", "square", "disc"]
    (other / "classes.txt").write_text("\n".join(order))
    numbers = np.arange(256, dtype=np.uint8)
    numbers[: len(CLASSES)] = [order.index(name) for name in CLASSES]
    for file in other.rglob("*.png"):
        Image.fromarray(numbers[np.asarray(Image.open(file))]).save(file)
    pages = []
    for root in (job / "root", other):
        where = [f"model_dir={job / 'run/model'}", f"output_dir={tmp_path}", f"data.root={root}"]
        assert evaluate(where) == 0
        pages.append((tmp_path / "evaluation.html").read_text())
        metrics = json.loads((tmp_path / "evaluation.json").read_text())["metrics"]
        assert metrics["miou"] == pytest.approx(miou(job), abs=1e-4)
    pictures = [re.findall('src="data:image/jpeg[^"]*"', page) for page in pages]
    assert len(pictures[0]) == 12 and pictures[0] == pictures[1]
    images, masks = PathList.of_names(["a.jpg"]), PathList.of_names(["a.png"])
    labels = Labels("targets", ["square", "disc"], np.zeros(1))
    without = MaskSource(Rows("", images, Files("", images), labels, Words.none(1), masks=masks))
    without.renumber(CLASSES)
    assert without._numbers is not None
    assert without._numbers[[0, 1, OUTSIDE, IGNORED]].tolist() == [2, 1, OUTSIDE, IGNORED]


@pytest.fixture(scope="module")
def server(job: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(log, [f"model_dir={job / 'run/model'}"], {}) as served:
        served.wait_until_ready()
        yield served


def test_a_server_answers_with_the_predicted_masks(job: Path, masks: Path, server: Served) -> None:
    images = sorted((job / "root/val/images/all").iterdir())[:2]
    expected = [np.asarray(Image.open(masks / f"masks/all/{file.name}.png")) for file in images]
    answer = server.invoke(images[0].read_bytes(), accept="image/png")
    assert answer.headers["content-type"] == "image/png"
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(answer.body))), expected[0])
    (prediction,) = server.invoke(images[1].read_bytes()).json()["predictions"]
    shares = np.bincount(expected[1].ravel(), minlength=len(CLASSES)) / expected[1].size
    assert prediction["shares"] == pytest.approx(dict(zip(CLASSES, shares, strict=True)), abs=1e-5)


def test_the_page_shows_the_mask_and_the_shares(job: Path, server: Served, tmp_path: Path) -> None:
    file = min((job / "root/val/images/all").iterdir())
    with browser(f"http://127.0.0.1:{server.port}/", tmp_path / "profile") as page:
        page.wait_for("document.querySelector('#drop') !== null")
        page.drop(file, 100, 150)
        page.wait_for(f"document.querySelectorAll('#answer tr').length === {len(CLASSES)}")
        shown = page.evaluate("document.querySelector('#image').src")
    assert shown.startswith("data:image/png;base64,")
