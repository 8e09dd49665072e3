"""Checks a model by its first batches and by an earlier checkpoint: it must take samples of this
size, hold no tensors that nothing trains, return logits, and be the checkpoint's model."""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import entry_point
from entry_point.config.config_errors import ConfigError
from entry_point.job.devices import HostCopy
from entry_point.job.text import listed, shortened
from entry_point.training.checkpoints import load_state
from entry_point.training.tasks.regression import Standardized
from entry_point.training.tasks.task import Task

logger = logging.getLogger(__name__)

_SHAPE_ERROR = re.compile(
    r"\b((shape|size|channel|element|dimension)s?|dim|height|width|divisible|resolution)\b", re.I
)
_OTHER_ERRORS = ("Expected more than 1 ", "find_unused_parameters", "memory")
"""Texts of errors that mention a size but have another cause."""
_BOUNDED = ("Softmax", "Sigmoid", "LogSigmoid", "Tanh", "Hardsigmoid", "Hardtanh")
_ONE_SIGNED = ("LogSoftmax", "Relu", "Softplus")
"""Functions whose values are not logits, by torch's names of their gradients. Before a softmax,
values of one sign may be intended, and softmax(log_softmax(x)) equals softmax(x)."""
_UNCHANGED = (
    *("View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Transpose", "Permute", "T"),
    *("ToCopy", "Clone", "Alias", "Slice", "_DDPSink", "UpsampleBilinear2D", "UpsampleNearest2D"),
)
"""Functions that may follow these and keep the kind of values, by the same names."""


# -- samples


@contextmanager
def explaining_shapes(
    model: nn.Module, images: Tensor, key: str = "data.image_size"
) -> Iterator[None]:
    """Turn an error of `model` about shapes into one line: it does not take images of this shape.

    Raises ConfigError, which names `key`, the setting of the image size. The line includes the
    model's error, and the line of your own code that raised it.
    """
    try:
        yield
    except (RuntimeError, ValueError, AssertionError, IndexError) as error:
        frames = traceback.extract_tb(error.__traceback__)
        # An assertion may have no message; then show its code.
        reason = " ".join(str(error).split()).rstrip(".") or str(frames[-1].line)
        others = any(words in reason for words in _OTHER_ERRORS)
        if isinstance(error, ConfigError) or others or not _SHAPE_ERROR.search(reason):
            raise
        own = [frame for frame in frames if not _is_foreign(frame.filename)]
        place = f", at {own[-1].filename}:{own[-1].lineno}" if own else ""
        shape = " x ".join(map(str, images.shape[1:]))
        advice = f"set {key} or model.kwargs to what the model takes, or correct its code"
        if reason.startswith("view size"):
            key, advice = "model.name", "they are channels_last: call .reshape instead of .view"
        elif re.search(r"\d channels", reason):
            key, advice = "model.kwargs", "they always have 3 channels: correct it, or the model"
        message = f"{type(model).__name__} does not take samples of {shape} ({reason}{place})"
        raise ConfigError(key, message=f"{message}; {advice}") from error


def refuse_late_weights(name: str, before: Mapping[str, torch.Size], model: nn.Module) -> None:
    """Raise ConfigError for weights that the first batch has added or resized, compared with the
    shapes `before`: the optimizer lacks them, and a newly built model cannot load them."""
    weights = model.state_dict()
    if late := [key for key, value in weights.items() if before.get(key) != value.shape]:
        message = (
            f"creates or resizes {listed(late)} with its first batch: no optimizer trains it, and "
            "no program could load it; create it in __init__"
        )
        raise ConfigError("model.name", name, message)


def switch_to_training(name: str, model: nn.Module) -> None:
    """Switch a model to training mode, and warn if some of its parts were in evaluation mode, which
    was probably intended."""
    kept = [(part, module) for part, module in model.named_modules() if not module.training]
    on_purpose = model.training
    model.train()
    if lost := [part for part, module in kept if on_purpose and module.training]:
        logger.warning(
            "model.name=%s: %s was in evaluation mode and trains like the rest; if it must not, "
            "have the model's own train() keep it there",
            name,
            listed(lost),
        )


def unregistered(task: Task, model: nn.Module) -> list[str]:
    """Returns the attributes of a task and of a model's parts whose tensors have gradients but are
    no parameters of the model, such as the centers of your own loss, or layers in a list."""
    known = {id(parameter) for parameter in model.parameters()}
    found = [
        f"{type(owner).__name__}.{attribute}"
        for owner in (task, *model.modules())
        for attribute, value in vars(owner).items()
        for leaf in tree_leaves(value)
        for tensor in (leaf.parameters() if isinstance(leaf, nn.Module) else [leaf])
        if isinstance(tensor, Tensor) and tensor.is_leaf and tensor.grad is not None
        if id(tensor) not in known
    ]
    return [*dict.fromkeys(found)]


def load_again(name: str, new: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load trained weights into a new model, as `predict` and `serve` do. Raises ConfigError."""
    try:
        load_state(new, weights)
    except RuntimeError as error:
        reason = shortened(" ".join(str(error).split()))
        message = (
            f"loads its weights into no new model ({reason}); build the same layers also where "
            "arguments that name weights are null"
        )
        raise ConfigError("model.name", name, message) from error


def differ(answer: Tensor, other: Tensor) -> Tensor:
    """Returns whether answers differ by more than bf16's rounding over many layers: bool `()`."""
    return (answer - other).abs().max() > 0.1 * answer.abs().max()


def forgets(name: str) -> ConfigError:
    """Returns the error for a model that depends on values outside its state dict."""
    message = (
        "answers otherwise once its weights are loaded into a new model, as predict and serve do: "
        "it holds values that are not in its state_dict(), such as random tensors or layers in a "
        "list; use register_buffer, nn.Parameter or nn.ModuleList"
    )
    return ConfigError("model.name", name, message)


def _is_foreign(file: str) -> bool:
    """Returns whether code belongs to an installed package, or to the training program itself."""
    path = Path(file)
    is_ours = path.is_relative_to(Path(entry_point.__path__[0]))
    return is_ours or not path.is_file() or bool({"site-packages", "dist-packages"} & {*path.parts})


# -- answers


class Ending:
    """The last function of a model, found in a step's outputs without waiting for the device."""

    def __init__(self, outputs: Tensor) -> None:
        self._function = _last_function(outputs)
        self._are_shares = _are_shares(outputs.detach())

    def describe(self, task: Task) -> str | None:
        """Returns a warning if the model ends with a softmax or the like although the task's head
        takes logits; else None. Your own head is not checked. Waits for the device.
        """
        wrong: Sequence[str] = (*_BOUNDED, *_ONE_SIGNED)
        if isinstance(task.head, nn.Softmax):
            why, wrong = "and the task applies a softmax itself: it learns slowly", _BOUNDED
        elif isinstance(task.head, nn.Sigmoid):
            why = "and the task applies a sigmoid itself: it learns slowly"
        elif isinstance(task.head, Standardized):
            why = "and the task's standardized numbers have both signs and any size"
        else:
            return None
        function = "Softmax" if HostCopy(self._are_shares).wait() else self._function
        if function not in wrong:
            return None
        return f"ends in a {function.lower()}, {why}; return logits, the values without it"


def _are_shares(outputs: Tensor) -> Tensor:
    """Returns whether the outputs of each sample, or pixel, are shares that sum to 1: bool `()`."""
    if outputs.dim() < 2 or outputs.shape[1] < 2:
        return torch.zeros((), dtype=torch.bool)
    tolerance = 1e-4 + torch.finfo(outputs.dtype).eps
    sums = outputs.float().sum(1)
    return (outputs >= 0).all() & ((sums - 1).abs() <= tolerance).all()


def _last_function(outputs: Tensor) -> str:
    """Returns torch's name of the function that made the outputs, such as `Sigmoid`."""
    node: Any = outputs.grad_fn
    while node is not None:
        name = re.sub(r"Backward\d*$", "", node.name())
        if name not in _UNCHANGED:
            return name
        node = node.next_functions[0][0]
    return ""


# -- checkpoints


def refuse_other_model(name: str, saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise ConfigError unless a checkpoint has this model's weights, in the same order.

    `saved` and `own` are results of `Learner.state()`. Optimizers identify weights by position.
    """
    for part in ("model", "ema", "head"):
        shapes = (
            {key: tuple(getattr(value, "shape", ())) for key, value in state.get(part, {}).items()}
            for state in (saved, own)
        )
        _refuse_difference(name, "has the shape", "lacks", *shapes)
    groups = (
        {
            key: group.get("name")
            for group in state["optimizer"]["param_groups"]
            for key in group.get("param_names", ())
        }
        for state in (saved, own)
    )
    _refuse_difference(name, "is in the group", "does not train", *groups)


def _refuse_difference(
    name: str, has: str, lacks: str, saved: Mapping[str, object], own: Mapping[str, object]
) -> None:
    for (was, before), (now, after) in zip_longest(saved.items(), own.items(), fillvalue=("", "")):
        if (was, before) == (now, after):
            continue
        if was == now:
            found = f"{now} {has} {after}, in the checkpoint {before}"
        elif now and now not in saved:
            found = f"the checkpoint {lacks} {now}"
        elif was and was not in own:
            found = f"this one {lacks} {was}"
        else:
            found = f"{now} comes before {was}"
        raise ConfigError(
            "model.name",
            name,
            f"the checkpoint is of another model: {found}; restore the model's code, or use "
            "another name to restart from scratch",
        )
