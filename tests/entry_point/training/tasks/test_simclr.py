"""The example of a task that takes views: its loss, its metric, and a job."""

import shutil
from pathlib import Path

import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from entry_point.config.config_errors import ConfigError
from entry_point.job.devices import Devices
from entry_point.training.tasks.task import Task
from project.simclr import classifier
from tests import commands
from tests.entry_point.prediction.predicted import rows
from tests.entry_point.training import forked
from tests.entry_point.training.gloo_ranks import call_ranks
from tests.entry_point.training.tasks.label_sources import classes, task_of
from tests.entry_point.training.training_jobs import read_records

TASK = "task.name=project.simclr.SimClr"
TEMPERATURE, RANKS = 0.3, 2
LABELS = torch.zeros(6, dtype=torch.int64)


def simclr(*overrides: str, views: int = 2) -> Task:
    more = (f"task.kwargs.temperature={TEMPERATURE}", "task.kwargs.features=5")
    return task_of(classes(4), TASK, f"data.views={views}", *more, *overrides)


def loss_by_pairs(outputs: Tensor, each: int) -> float:
    """The loss as the paper's equation 1 writes it, one pair at a time."""
    z = functional.normalize(outputs.double()).unflatten(0, (-1, each))
    count = len(z)
    exp = {
        (i, v, j, w): float((z[i, v] @ z[j, w] / TEMPERATURE).exp())
        for i in range(count)
        for v in range(each)
        for j in range(count)
        for w in range(each)
    }
    losses = []
    for i, v in ((i, v) for i in range(count) for v in range(each)):
        everyone = sum(value for key, value in exp.items() if key[:2] == (i, v) != key[2:])
        losses += [-torch.tensor(exp[i, v, i, w] / everyone).log() for w in range(each) if w != v]
    return float(torch.stack(losses).mean())


def test_the_loss_is_the_papers() -> None:
    views = 3
    outputs = torch.randn(6 * views, 5, generator=torch.Generator().manual_seed(1))
    loss = float(simclr(views=views).loss(outputs, LABELS))
    assert loss == pytest.approx(loss_by_pairs(outputs, views), rel=1e-5)


def samples() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(4)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.Tanh(), nn.Linear(7, 5))
    return model, torch.randn(12, 3, 2, 2)


def train_a_share(devices: Devices, folder: Path) -> None:
    model, images = samples()
    shared = DistributedDataParallel(model)
    own = images.chunk(RANKS)[devices.rank]
    loss = simclr().loss(shared(own), LABELS[: len(own)])
    loss.backward()
    gradients = [weight.grad for weight in model.parameters()]
    torch.save((loss.detach(), gradients), folder / f"{devices.rank}.pt")


def test_ranks_compute_the_gradient_of_the_whole_batch(tmp_path: Path) -> None:
    call_ranks(train_a_share, RANKS, tmp_path)
    model, images = samples()
    loss = simclr().loss(model(images), LABELS)
    loss.backward()
    found = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(RANKS)]
    torch.testing.assert_close(torch.stack([own for own, _ in found]).mean(), loss)
    for _, gradients in found:
        for gradient, weight in zip(gradients, model.parameters(), strict=True):
            torch.testing.assert_close(gradient, weight.grad)


def test_the_metric_is_that_of_a_weighted_nearest_neighbor_classifier() -> None:
    draw = torch.Generator().manual_seed(2)
    targets = torch.randint(0, 4, (90,), generator=draw)
    features = torch.randn(90, 5, generator=draw) + 1.2 * functional.one_hot(targets, 5)
    task = simclr("task.kwargs.neighbors=7")
    found = task.measure(task.scores(features, targets))

    normal = functional.normalize(features)
    weigh = lambda distances: torch.from_numpy(1 - distances).div(0.07).exp().numpy()  # noqa: E731
    hits = 0
    for left in range(90):
        others = [i for i in range(90) if i != left]
        classifier = KNeighborsClassifier(7, metric="cosine", weights=weigh)
        classifier.fit(normal[others], targets[others])
        hits += int(classifier.predict(normal[left : left + 1])[0] == targets[left])
    assert found["knn_accuracy"] == pytest.approx(hits / 90)
    assert 0.4 < found["knn_accuracy"] < 1 and 0 < found["loss"] < 3


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        ([TASK], "data.views=1: must be at least 2 for SimClr"),
        ([TASK, "data.views=2", "optim.accumulate=2"], "optim.accumulate=2: must be 1"),
    ],
)
def test_what_does_not_fit_is_named(overrides: list[str], error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        task_of(classes(4), *overrides)
    assert str(caught.value).startswith(error)


def test_a_model_of_another_width_is_named() -> None:
    with pytest.raises(ConfigError, match=r"task.kwargs.features=5: must be 8, the features of"):
        simclr().scores(torch.zeros(2, 8), LABELS[:2])


def test_photos_of_one_folder_are_learned_from(photo_folder: Path, tmp_path: Path) -> None:
    """Labels serve the metric alone."""
    for split in ("train", "val"):
        shutil.copytree(photo_folder / split / "cat", tmp_path / "photos" / split / "all")
    overrides = [TASK, "data.views=2", "model.name=project.simclr.encoder", "trainer.epochs=1"]
    code = forked.run(tmp_path / "run", tmp_path / "photos", [*overrides, "trainer.batch_size=4"])
    assert code == 0, (tmp_path / "run" / "log").read_text()


def test_a_job_trains_on_views_and_exports_the_features(photo_folder: Path, tmp_path: Path) -> None:
    overrides = (
        *(TASK, "task.metrics=[knn_accuracy]", "model.name=project.simclr.encoder"),
        *("augment.name=simclr", "pipeline=threads", "trainer.report=true"),
        *("data.views=2", "trainer.epochs=1"),
    )
    assert forked.run(tmp_path, photo_folder, overrides) == 0, (tmp_path / "log").read_text()
    (evaluation,) = (record for record in read_records(tmp_path) if "val_loss" in record)
    assert 0 <= evaluation["val_knn_accuracy"] <= 1
    assert (tmp_path / "output" / "data" / "report.html").is_file()
    where = [f"model_dir={tmp_path / 'model'}", f"input={photo_folder / 'val' / 'cat'}"]
    assert commands.predict([*where, "output=features", f"output_dir={tmp_path / 'features'}"]) == 0
    assert {len(row["features"]) for row in rows(tmp_path / "features")} == {512}
    weights = str(tmp_path / "model" / "model.safetensors")
    images = torch.zeros(2, 3, 32, 32)
    assert classifier(4, weights).train()(images).shape == (2, 4)
    with pytest.raises(ConfigError, match="holds no SimClr run of resnet34"):
        classifier(4, weights, "resnet34")
