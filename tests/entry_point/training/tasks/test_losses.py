"""The training losses: weights, focus, and what a batch computed in pieces must give."""

import pytest
import torch
from torch.nn import functional
from torchvision.ops import sigmoid_focal_loss

from entry_point.config.config_errors import ConfigError
from tests.entry_point.training.tasks.label_sources import classes, labels, task_of

OUTPUTS = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
TARGETS = torch.arange(8) % 4
SOFT = functional.one_hot(TARGETS, 4).float() * 0.7 + functional.one_hot(TARGETS.flip(0), 4) * 0.3
UNEVEN = labels("class", list("abcd"), torch.tensor([0, 0, 0, 0, 1, 1, 2, 2]))
MANY = (torch.rand(8, 4, generator=torch.Generator().manual_seed(2)) < 0.3).float()


def half(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A loss of one's own."""
    return functional.cross_entropy(outputs, targets) / 2


@pytest.mark.parametrize(
    ("targets", "weights"), [(TARGETS, "[1,2,3,4]"), (SOFT, "null")], ids=["hard", "soft"]
)
def test_focal_loss_without_focus_is_cross_entropy(targets: torch.Tensor, weights: str) -> None:
    given = ("task.label_smoothing=0.2", f"task.class_weights={weights}")
    plain = task_of(classes(4), *given)
    focal = task_of(classes(4), "task.loss=focal", "task.kwargs.gamma=0", *given)
    torch.testing.assert_close(focal.loss(OUTPUTS, targets), plain.loss(OUTPUTS, targets))


def test_focal_loss_is_cross_entropy_times_the_missing_probability() -> None:
    task = task_of(classes(4), "task.loss=focal", "task.kwargs.gamma=3", "task.label_smoothing=0")
    probabilities = OUTPUTS.softmax(1)[range(8), TARGETS]
    expected = (-((1 - probabilities) ** 3) * probabilities.log()).mean()
    torch.testing.assert_close(task.loss(OUTPUTS, TARGETS), expected)


@pytest.mark.parametrize("gamma", [0, 0.5])
@pytest.mark.parametrize("kind", ["classification", "multilabel"])
def test_focal_loss_has_finite_gradients_where_a_model_is_certain(kind: str, gamma: float) -> None:
    source = classes(4) if kind == "classification" else labels("labels", list("abcd"), MANY)
    focus = ("task.loss=focal", f"task.kwargs.gamma={gamma}")
    outputs = torch.full((1, 4), -200.0)
    outputs[0, 1] = 200
    outputs.requires_grad_()
    target = torch.tensor([1])
    task_of(source, f"task={kind}", *focus).loss(
        outputs, target if kind == "classification" else functional.one_hot(target, 4).float()
    ).backward()
    assert outputs.grad is not None and outputs.grad.isfinite().all()


def test_automatic_weights_give_every_class_the_same_share_of_the_loss() -> None:
    task = task_of(UNEVEN, "task.class_weights=auto", "task.label_smoothing=0")
    losses = functional.cross_entropy(OUTPUTS, UNEVEN.labels, reduction="none")
    # Class d has no image, and cannot be weighted.
    shares = [losses[UNEVEN.labels == i].mean() / 4 for i in range(3)]
    torch.testing.assert_close(task.loss(OUTPUTS, UNEVEN.labels), torch.stack(shares).sum())


@pytest.mark.parametrize("loss", ["cross_entropy", "focal"])
def test_the_weighted_loss_of_a_batch_is_the_mean_of_its_pieces(loss: str) -> None:
    task = task_of(UNEVEN, f"task.loss={loss}", "task.class_weights=[1,5,2,7]")
    whole = task.loss(OUTPUTS, TARGETS)
    pieces = [task.loss(OUTPUTS[i : i + 2], TARGETS[i : i + 2]) for i in range(0, 8, 2)]
    torch.testing.assert_close(torch.stack(pieces).mean(), whole)


def test_multilabel_losses_are_torchs_and_torchvisions() -> None:
    source = labels("labels", list("abcd"), MANY)
    plain = functional.binary_cross_entropy_with_logits(OUTPUTS, MANY)
    torch.testing.assert_close(task_of(source, "task=multilabel").loss(OUTPUTS, MANY), plain)
    focal = task_of(source, "task=multilabel", "task.loss=focal", "task.kwargs.gamma=1.5")
    expected = sigmoid_focal_loss(OUTPUTS, MANY, alpha=-1, gamma=1.5, reduction="mean")
    torch.testing.assert_close(focal.loss(OUTPUTS, MANY), expected)


def test_automatic_weights_of_labels_balance_images_with_and_without_each() -> None:
    given = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 1, 0]]).float()
    source = labels("labels", ["a", "b", "in no image"], given)
    task = task_of(source, "task=multilabel", "task.class_weights=auto")
    outputs = torch.randn(4, 3)
    weighted = functional.binary_cross_entropy_with_logits(
        outputs, given, pos_weight=torch.tensor([3.0, 1 / 3, 1])
    )
    torch.testing.assert_close(task.loss(outputs, given), weighted)


@pytest.mark.parametrize("name", ["squared_error", "absolute_error", "huber"])
def test_regression_learns_standardized_targets_and_answers_in_the_datas_units(name: str) -> None:
    numbers = torch.tensor([[1000.0, 5], [3000, 5], [2000, 5]])
    task = task_of(
        labels("numbers", ["price", "one"], numbers), "task=regression", f"task.loss={name}"
    )
    answers = task.head(torch.tensor([[0.0, 0], [1, 1]]))
    torch.testing.assert_close(answers, torch.tensor([[2000, 5], [2816.4966, 6]]))
    exact = torch.tensor([[-1.2247449, 0], [1.2247449, 0], [0, 0]])
    assert float(task.loss(exact, numbers)) < 1e-12
    assert float(task.loss(torch.zeros(3, 2), numbers)) < 2


def test_an_own_loss_is_called_by_its_path() -> None:
    task = task_of(classes(4), f"task.loss={__name__}.half")
    expected = functional.cross_entropy(OUTPUTS, TARGETS) / 2
    torch.testing.assert_close(task.loss(OUTPUTS, TARGETS), expected)
    with pytest.raises(
        ConfigError, match=r"task\.class_weights=auto: .*is your own, which gets no"
    ):
        task_of(classes(4), f"task.loss={__name__}.half", "task.class_weights=auto")


def test_a_list_of_weights_of_another_length_is_refused_with_the_classes() -> None:
    message = r"task\.class_weights=\[1,2\]: must have 4 numbers, one for each of a, b, c, d"
    with pytest.raises(ConfigError, match=message):
        task_of(classes(4), "task.class_weights=[1,2]")
