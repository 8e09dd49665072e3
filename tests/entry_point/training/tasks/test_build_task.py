"""The task that the settings describe, or one line that says why there is none."""

import inspect

import pytest
import torch
from torch import Tensor

from entry_point.config.config_errors import ConfigError
from entry_point.config.task_config import TaskKwargs
from entry_point.config.train_config import load_train_config
from entry_point.data.errors import DataError
from entry_point.data.sources.source import Source
from entry_point.job.known_tasks import TASKS
from entry_point.training.augmentation import BatchAugmentation
from entry_point.training.tasks.build_task import task_class, tracked_metric
from entry_point.training.tasks.classification import Classification
from entry_point.training.tasks.task import Task
from project.tasks import OrderedClasses
from tests.entry_point.training.tasks.label_sources import classes, labels, task_of

ORDERED = "task.name=project.tasks.OrderedClasses"
NUMBERS = labels("numbers", ["age"], torch.tensor([[1.0], [2], [3], [4]]))
MANY = labels("labels", ["a", "b"], torch.tensor([[1.0, 0], [0, 1], [1, 1], [0, 0]]))
MASKS = labels("targets", ["a", "b", "c"], torch.randint(0, 3, (4, 8, 8), dtype=torch.uint8))
SOURCES = {
    "classification": classes(6),
    "multilabel": MANY,
    "regression": NUMBERS,
    "segmentation": MASKS,
}


class Unfinished(Task):
    """Lacks most of what a task needs."""

    takes = "class"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        raise NotImplementedError


class Watching(Classification):
    """An own task with an argument."""

    def __init__(self, train: Source, config: object, device: torch.device, watched: str) -> None:
        super().__init__(train, config, device)  # type: ignore[arg-type]
        self.watched = watched


@pytest.mark.parametrize("name", TASKS)
def test_what_is_known_without_torch_is_true_of_the_class(name: str) -> None:
    known = TASKS[name]
    arguments = inspect.signature(task_class(name)).parameters
    assert tuple(arguments)[3:] == known.kwargs
    assert all(arguments[each].default == getattr(TaskKwargs, each) for each in known.kwargs)
    task = task_of(SOURCES[name], f"task={name}", "data.crop=squash")
    assert task.takes == known.takes
    assert list(task.metrics) == list(known.metrics)
    targets = SOURCES[name].labels[:4]
    outputs = torch.randn(4, task.outputs, *(targets.shape[1:] if name == "segmentation" else ()))
    assert set(task.measure(task.scores(outputs, targets))) == {m.name for m in task.metrics}
    for loss in known.losses:
        overrides = (f"task={name}", f"task.loss={loss}", "data.crop=squash")
        value = task_of(SOURCES[name], *overrides).loss(outputs, targets)
        assert value.shape == () and value.isfinite()


@pytest.mark.parametrize(
    ("source", "overrides", "message"),
    [
        (NUMBERS, (), r"task\.name=classification: learns from one class per image, but the "
                      r"dataset holds numbers; use task=regression, or other labels"),
        (classes(3), ("task=multilabel",), r"use task=classification"),
        (classes(3), ("data.views=2",), r"^data\.views=2: task\.name=classification learns"),
        (classes(3), ("task.name=no.such.Task",), r"task\.name=no\.such\.Task: no\.such cannot be"),
        (classes(3), (f"task.name={__name__}.Unfinished",), r"has no measure, mistakes, scores"),
        (classes(3), (f"task.name={__name__}.Watching",), r"kwargs=\{\}: Watching: .*watched"),
        (classes(3), (f"task.name={__name__}.Watching", "task.kwargs.watch=a"),
         r"task\.kwargs\.watch=a: no such argument; Watching takes watched; did you mean watched"),
        (classes(3), (f"task.name={__name__}.Watching", "task.kwargs.device=a"),
         r"task\.kwargs\.device=a: is set by the job; remove it"),
    ],
)  # fmt: skip
def test_what_is_no_task_for_the_data_is_refused(
    source: Source, overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        task_of(source, *overrides)


@pytest.mark.parametrize("name", ["classification", "multilabel", "regression"])
def test_a_model_that_answers_in_another_shape_is_named(name: str) -> None:
    task = task_of(SOURCES[name], f"task={name}", "model.name=resnet34")
    for shape in ((4, 9), (4,), (4, 3, 2, 2)):
        with pytest.raises(ConfigError, match=rf"model\.name=resnet34: .*\(N, {task.outputs}\)"):
            task.loss(torch.randn(shape), SOURCES[name].labels[:4])


def test_one_class_is_not_trained_on() -> None:
    """As of a dataset in a folder of its own, below which the classes are."""
    with pytest.raises(
        DataError, match=r"all images belong to the class 'a'.* set data\.root to it"
    ):
        task_of(classes(1))


@pytest.mark.parametrize(
    ("overrides", "name"),
    [((), "accuracy"), (("task.best=loss",), "loss"), ((ORDERED,), "distance")],
)
def test_checkpoints_track_the_first_metric_or_the_one_named(
    overrides: tuple[str, ...], name: str
) -> None:
    config, _ = load_train_config(["data=folder", *overrides])
    assert tracked_metric(config.task, task_of(classes(3), *overrides)).name == name


def test_a_metric_that_the_task_or_the_dataset_does_not_have_is_refused() -> None:
    for overrides in (["task.best=top5_accuracy"], [ORDERED, "task.best=distances"]):
        config, _ = load_train_config(["data=folder", *overrides])
        with pytest.raises(ConfigError, match=r"task\.best=\w+: must be one of"):
            tracked_metric(config.task, task_of(classes(3), *overrides))


@pytest.mark.parametrize("mix", ["mixup", "cutmix"])
@pytest.mark.parametrize("name", TASKS)
def test_blended_batches_are_learned_from_or_refused(name: str, mix: str) -> None:
    overrides = (f"task={name}", f"optim.{mix}_alpha=0.4", "data.crop=squash")
    config, _ = load_train_config(["data=folder", *overrides])
    task = task_of(SOURCES[name], *overrides)
    if name == "segmentation" or (name, mix) == ("regression", "cutmix"):
        with pytest.raises(ConfigError, match=rf"optim\.{mix}_alpha=0\.4: task\.name={name}"):
            BatchAugmentation(config, task)
        return
    images, targets = BatchAugmentation(config, task)(
        torch.randn(4, 3, 16, 16), SOURCES[name].labels[:4]
    )
    assert task.loss(torch.randn(len(images), task.outputs), targets).isfinite()


def test_mixup_blends_the_targets_of_a_regression_as_it_blends_the_images() -> None:
    overrides = ("task=regression", "optim.mixup_alpha=0.4")
    config, _ = load_train_config(["data=folder", *overrides])
    mix = BatchAugmentation(config, task_of(NUMBERS, *overrides))
    images = NUMBERS.labels[:, :, None, None].expand(4, 3, 2, 2).contiguous()
    mixed, targets = mix(images, NUMBERS.labels)
    assert not torch.equal(targets, NUMBERS.labels)
    torch.testing.assert_close(mixed[:, :1, 0, 0], targets)


def test_the_example_of_an_own_task_learns_the_order_of_its_classes() -> None:
    task = task_of(classes(4), ORDERED)
    assert isinstance(task, OrderedClasses) and task.outputs == 3
    outputs = torch.tensor([[-9.0, -9, -9], [9, -9, -9], [9, 9, 9], [0, 0, 0]])
    probabilities = task.head(outputs)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(4))
    assert probabilities.argmax(1).tolist()[:3] == [0, 1, 3]
    near, far = (task.loss(outputs[:1], torch.tensor([label])) for label in (1, 3))
    assert far > near
    found = task.measure(task.scores(outputs[:3], torch.tensor([0, 3, 3])))
    assert found["distance"] == pytest.approx(2 / 3) and found["accuracy"] == pytest.approx(2 / 3)
