"""What the first batches and an earlier checkpoint show of a model is said in one line."""

import logging
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import load_train_config
from entry_point.job.devices import Devices
from entry_point.job.program import ExitCode
from entry_point.training.learner import Learner
from entry_point.training.model_checks import Ending, explaining_shapes, refuse_other_model
from tests.entry_point.training import forked
from tests.entry_point.training.tasks.label_sources import classes, labels, task_of
from tests.entry_point.training.test_compile import note_graphs
from tests.own_models import pixel_net, tiny_net

HERE = f"{__name__}."
CPU = Devices(torch.device("cpu"), None)


def learner(*overrides: str) -> Learner:
    config, _ = load_train_config(overrides)
    return Learner(config, CPU, task_of(classes(4), *overrides), 10, Path())


def batch() -> tuple[Tensor, Tensor]:
    images = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    return images.to(memory_format=torch.channels_last), torch.arange(8) % 4


# -- samples that a model does not take


def for_56_pixels(num_classes: int) -> nn.Module:
    layers = nn.Conv2d(3, 4, 3, 2, 1), nn.Flatten(), nn.Linear(4 * 28 * 28, num_classes)
    return nn.Sequential(*layers)


def gray(num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(4, num_classes))  # fmt: skip


class Own(nn.Module):
    """Raises in one of these ways."""

    def __init__(self, num_classes: int, way: str) -> None:
        super().__init__()
        self.net, self.way = tiny_net(num_classes), way
        self.last = nn.Linear(48, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        if self.way == "a view":
            images = images.view(len(images), -1)
        if self.way == "rows":
            return torch.cat([self.last(functional.avg_pool2d(images, 2).reshape(-1, 48))])
        if self.way == "a bug":
            raise RuntimeError("the teacher is not loaded")
        logits: Tensor = self.net(images)
        return logits


TAKES_OTHERS = [
    (
        ["model.name=HERE.for_56_pixels"],
        r"data\.image_size: Sequential does not take samples of 3 x 32 x 32 \(.*mat1 and mat2 "
        r"shapes.*\); set data\.image_size or model\.kwargs to what the model takes",
    ),
    (
        ["model.name=HERE.for_56_pixels", "data.progressive=[[0,32]]", "data.image_size=56"],
        r"data\.progressive: Sequential does not take samples of 3 x 32 x 32 .*set data\.progress",
    ),
    (["model.name=HERE.gray"], r"model\.kwargs: .* have 1 channels.*; they always have 3 channels"),
    (
        ["model.name=tests.own_models.asserting_net"],
        r"not take .* \(assert images\.shape\[-1\] == 24, at \S*/own_models\.py:\d+\);",
    ),
    (
        ["model.name=HERE.Own", "model.kwargs.way=a view"],
        r"model\.name: Own .*they are channels_last: call \.reshape instead of \.view$",
    ),
    (
        ["model.name=HERE.Own", "model.kwargs.way=rows"],
        r"model\.name=\S*Own: returns 128 rows for 8 images: .*another data\.image_size; set that",
    ),
]


@pytest.mark.parametrize(("settings", "says"), TAKES_OTHERS)
def test_a_size_that_a_model_does_not_take_is_one_line(settings: list[str], says: str) -> None:
    settings = [each.replace("HERE", __name__) for each in settings]
    with pytest.raises(ConfigError, match=says) as raised:
        learner(*settings).loss(*batch(), 0)
    assert "\n" not in str(raised.value)


def test_another_error_of_a_model_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match=r"^the teacher is not loaded$"):
        learner(f"model.name={HERE}Own", "model.kwargs.way=a bug").loss(*batch(), 0)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB. The total size is 1"),
        ValueError("Expected more than 1 value per channel when training, got input size [1, 8]"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried the size 9"),
        ConfigError("model.name", "own", "returns another size"),
    ],
)
def test_errors_that_mention_a_size_and_mean_another_thing_stay(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, explaining_shapes(nn.Identity(), batch()[0]):
        raise error
    assert raised.value is error


@pytest.mark.parametrize(
    ("setting", "graphs"),
    [("trainer.compile=default", note_graphs), ("data.progressive=[[0,56]]", None)],
    ids=["training", "validation"],
)
def test_a_job_ends_with_the_line(
    setting: str, graphs: Callable[[], None] | None, tmp_path: Path, photo_folder: Path
) -> None:
    job = [f"model.name={HERE}for_56_pixels", "trainer.epochs=1", setting]
    assert forked.run(tmp_path, photo_folder, job, prepare=graphs) == ExitCode.USAGE
    log = (tmp_path / "log").read_text()
    says = "train: data.image_size: Sequential does not take samples of 3 x 32 x 32"
    *_, line = log.splitlines()
    assert line.startswith(says) and "Traceback" not in log
    assert "mat1 and mat2 shapes cannot be multiplied" in line  # eager torch's text, not a trace's


def five_classes(_num_classes: int) -> nn.Module:
    return pixel_net(5)


def test_a_class_per_pixel_too_many_is_one_line() -> None:
    given = ["task=segmentation", "data.crop=squash", f"model.name={HERE}five_classes"]
    masks = labels("targets", ["a", "b"], torch.zeros(4, 8, 8, dtype=torch.uint8))
    task = task_of(masks, *given)
    with pytest.raises(ConfigError, match="returns 5 classes for each pixel, must return 2: use"):
        task.loss(five_classes(2)(torch.zeros(2, 3, 8, 8)), masks.labels[:2])


# -- answers that are no logits

NUMBERS = labels("numbers", ["age", "size"], torch.randn(6, 2))
MANY = labels("labels", ["a", "b", "c"], torch.eye(3).repeat(2, 1))
MASKS = labels("targets", ["a", "b", "c"], torch.randint(0, 3, (4, 8, 8), dtype=torch.uint8))
TASKS = {
    "classification": task_of(classes(6)),
    "multilabel": task_of(MANY, "task=multilabel"),
    "regression": task_of(NUMBERS, "task=regression"),
    "segmentation": task_of(MASKS, "task=segmentation", "data.crop=squash"),
}
ENDS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "softmax": lambda x: x.softmax(1),
    "softmax in bf16": lambda x: x.bfloat16().softmax(1),
    "pair of a sigmoid": lambda x: torch.stack([x[:, 0].sigmoid(), 1 - x[:, 0].sigmoid()], 1),
    "logsoftmax": lambda x: x.log_softmax(1),
    "sigmoid, reshaped": lambda x: x.sigmoid().unsqueeze(1).squeeze(1).bfloat16().float(),
    "logsigmoid": functional.logsigmoid,
    "tanh": lambda x: x.tanh(),
    "relu": lambda x: x.relu(),
    "softplus": functional.softplus,
    "capped tanh": lambda x: 30 * (x / 30).tanh(),
}
BOUNDED = {"softmax", "softmax in bf16", "sigmoid, reshaped", "logsigmoid", "tanh"}
BOUNDED |= {"pair of a sigmoid"}


def outputs(task: str) -> Tensor:
    shape = (4, TASKS[task].outputs, *((6, 6) if task == "segmentation" else ()))
    return torch.randn(shape, generator=torch.Generator().manual_seed(2), requires_grad=True)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("task", TASKS)
def test_a_function_that_the_task_applies_itself_is_named(task: str, end: str) -> None:
    found = Ending(ENDS[end](outputs(task))).describe(TASKS[task])
    wrong = BOUNDED if task in ("classification", "segmentation") else BOUNDED | {
        "logsoftmax", "relu", "softplus"
    }  # fmt: skip
    assert (found is not None) is (end in wrong)
    if found is not None:
        name = "softmax" if end == "pair of a sigmoid" else re.split("[, ]", end)[0]
        assert found.startswith(f"ends in a {name}, and the task") and "return logits" in found


def test_logits_are_not_taken_for_shares() -> None:
    """Also those of a new head of zeros, of one class, and positive ones."""
    task = TASKS["classification"]
    for logits in (torch.zeros(8, 4), torch.ones(8, 1), torch.rand(8, 4), torch.full((8, 4), 0.3)):
        assert Ending(logits).describe(task) is None


def test_a_head_of_your_own_says_nothing_of_the_outputs() -> None:
    task = task_of(classes(4))
    task.head = nn.Identity()
    assert Ending(outputs("classification").softmax(1)).describe(task) is None


def ending(num_classes: int, end: str) -> nn.Module:
    return nn.Sequential(
        tiny_net(num_classes), nn.Softmax(1) if end == "softmax" else nn.Identity()
    )


@pytest.mark.parametrize("end", ["softmax", "none"])
def test_the_first_batch_says_it_once(end: str, caplog: pytest.LogCaptureFixture) -> None:
    own = learner(f"model.name={HERE}ending", f"model.kwargs.end={end}", "optim.accumulate=2")
    with caplog.at_level(logging.WARNING):
        for step in range(3):
            own.loss(*batch(), step)
            own.record()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (0 if end == "none" else 1)
    if said:
        assert said[0].startswith(f"model.name={HERE}ending: ends in a {end}, and the task applies")


class EndsInEvaluation(nn.Module):
    """Answers with probabilities once it is trained, as many tutorials have it."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.net = tiny_net(num_classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net(images)
        return logits if self.training else logits.softmax(1)


def test_a_softmax_in_evaluation_alone_is_named_too(caplog: pytest.LogCaptureFixture) -> None:
    own = learner(f"model.name={HERE}EndsInEvaluation", "optim.accumulate=2")
    with caplog.at_level(logging.WARNING):
        own.loss(*batch(), 0)
        own.record()
    (said,) = caplog.messages
    assert "EndsInEvaluation: in evaluation it ends in a softmax, and the task applies" in said
    assert own.model.training


# -- weights that no optimizer and no program knows


class Late(nn.Module):
    """Creates a layer or a buffer once it knows its inputs' size, or lets one grow."""

    bank: Tensor

    def __init__(self, num_classes: int, what: str) -> None:
        super().__init__()
        self.net, self.what = tiny_net(num_classes), what
        self.register_buffer("bank", torch.zeros(0))

    def forward(self, images: Tensor) -> Tensor:
        if self.what == "scale.weight" and not hasattr(self, "scale"):
            self.scale = nn.Linear(4, 4)
        if self.what == "grid" and not hasattr(self, "grid"):
            self.register_buffer("grid", torch.zeros(images.shape[-1]))
        if self.what == "bank":
            self.bank = torch.cat([self.bank, torch.zeros(len(images))])
        logits: Tensor = self.net(images)
        return self.scale(logits) if self.what == "scale.weight" else logits


@pytest.mark.parametrize("what", ["scale.weight", "grid", "bank"])
def test_weights_that_the_first_batch_creates_are_refused(what: str) -> None:
    own = learner(f"model.name={HERE}Late", f"model.kwargs.what={what}")
    with pytest.raises(
        ConfigError, match=rf"Late: creates or resizes {what}.* create it in __init__"
    ):
        own.loss(*batch(), 0)


class Remembering(nn.Module):
    """With frequencies that it draws, as those of Fourier features, and never learns."""

    def __init__(self, num_classes: int, how: str, weights: str | None = None) -> None:
        super().__init__()
        self.net, drawn = tiny_net(num_classes), torch.randn(3, 1, 1)
        if how in ("buffer", "other_buffer"):
            self.register_buffer("drawn", drawn, persistent=how == "buffer")
        else:
            self.drawn = drawn if how == "tensor" else 1 + 0 * drawn
        if how == "by_weights" and weights is not None:
            self.more = nn.Linear(2, 2)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net(images * self.drawn)
        return logits + 1e-4 * torch.rand(())  # of the step


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("buffer", None),
        ("constant", None),
        ("other_buffer", "answers otherwise once its weights are loaded into a new model"),
        ("tensor", "answers otherwise once its weights are loaded into a new model"),
        ("by_weights", "loads its weights into no new model (Error(s) in loading state_dict"),
    ],
)
def test_a_model_that_predict_would_not_know_again_is_refused(how: str, says: str | None) -> None:
    kwargs = f"model.kwargs={{how:{how},weights:some}}"
    own = learner(f"model.name={HERE}Remembering", kwargs, "optim.accumulate=2")
    with pytest.raises(ConfigError) if says else nullcontext() as caught:
        own.loss(*batch(), 0)
        own.record()
    if caught is not None:
        assert str(caught.value).startswith(f"model.name={HERE}Remembering: {says}")


# -- a model that was edited between two starts


def edited(num_classes: int, edit: str = "nothing") -> nn.Module:
    net = tiny_net(num_classes)
    assert isinstance(net, nn.Sequential)
    first, *middle, last = net
    if edit == "another width":
        last = nn.Linear(12, num_classes)
    if edit == "one more layer":
        last = nn.Sequential(nn.Linear(16, 16), last)
    if edit == "frozen":
        first.requires_grad_(False)
    model = nn.ModuleDict({"first": first, "middle": nn.Sequential(*middle), "last": last})
    if edit == "another order":
        model = nn.ModuleDict({name: model[name] for name in ("last", "middle", "first")})
    return Sequence(model)


class Sequence(nn.Module):
    def __init__(self, layers: nn.ModuleDict) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, images: Tensor) -> Any:
        for name in ("first", "middle", "last"):
            images = self.layers[name](images)
        return images


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (
            "another width",
            r"layers\.last\.weight has the shape \(4, 12\), in the checkpoint \(4, 16\)",
        ),
        ("one more layer", r"the checkpoint lacks layers\.last\.0\.weight"),
        ("another order", r"layers\.last\.weight comes before layers\.first\.weight"),
        ("frozen", r"this one does not train layers\.first\.weight"),
    ],
)
def test_the_first_layer_that_differs_is_named(edit: str, says: str) -> None:
    name = f"model.name={HERE}edited"
    saved = learner(name).state()
    refuse_other_model("edited", saved, learner(name).state())
    other = learner(name, f"model.kwargs.edit={edit}")
    with pytest.raises(ConfigError, match=rf"the checkpoint is of another model: .*{says}"):
        other.load_state(saved)


def test_a_job_whose_model_was_edited_ends_with_the_line_and_keeps_its_checkpoints(
    tmp_path: Path, photo_folder: Path
) -> None:
    job = [f"model.name={HERE}edited", "trainer.epochs=1"]
    assert forked.run(tmp_path, photo_folder, job) == 0
    before = {path: path.read_bytes() for path in (tmp_path / "checkpoints").glob("*.pt")}
    more = [*job, "trainer.epochs=2"]
    assert forked.run(tmp_path, photo_folder, more, prepare=_widened) == ExitCode.USAGE
    log = (tmp_path / "log").read_text()
    says = (
        f"train: model.name={HERE}edited: the checkpoint is of another model: the checkpoint lacks"
    )
    assert log.splitlines()[-1].startswith(says) and "Traceback" not in log
    assert before == {path: path.read_bytes() for path in (tmp_path / "checkpoints").glob("*.pt")}


def _widened() -> None:
    defaults = list(edited.__defaults__ or ())
    edited.__defaults__ = ("one more layer", *defaults[1:])
