"""A class for each pixel: semantic segmentation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from entry_point.class_masks import COLORS, as_png, class_mask, overlay, shares_of_classes
from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import TrainConfig
from entry_point.data.sources.masks import IGNORED, OUTSIDE
from entry_point.data.sources.source import Source
from entry_point.job.known_tasks import TASKS
from entry_point.job.text import counted
from entry_point.training.tasks.losses import choose_loss, class_weights
from entry_point.training.tasks.task import Share, Size, Table, Task, best_by_name

if TYPE_CHECKING:
    import polars as pl


class Segmentation(Task):
    """Scores are the loss, then for each class the number of right pixels, of pixels in the mask,
    and of pixels in the answer.

    Pixels are those of the original image: outputs are resized to its mask (bilinear). Outputs are
    float32 `(N, classes, height, width)`, of any size; targets are those of a `MaskSource`.
    """

    takes = "targets"
    blends = ()
    answers_png = True
    metrics = TASKS["segmentation"].metrics

    def __init__(self, train: Source, config: TrainConfig, device: torch.device) -> None:
        if config.data.crop != "squash":
            message = "task.name=segmentation evaluates and predicts whole images; set squash"
            raise ConfigError("data.crop", config.data.crop, message)
        self._model = config.model.name
        self.names = list(train.classes)
        self.outputs = len(self.names)
        self.colors = COLORS[: self.outputs]
        self.head: nn.Module = nn.Softmax(dim=1)
        if config.task.class_weights == "auto":
            message = "task.name=segmentation does not count pixels; list a number per class"
            raise ConfigError("task.class_weights", "auto", message)
        weights = class_weights(config.task, train, lambda *_: torch.empty(0), device)
        smoothing = config.task.label_smoothing
        known = {"cross_entropy": partial(_cross_entropy, weights=weights, smoothing=smoothing)}
        self._loss = choose_loss(config.task, known)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.dim() != 4:
            message = "must predict every pixel, as deeplabv3_resnet50, lraspp_mobilenet_v3_large "
            message += "and timm/NAME with model.kwargs.features_only=true do"
            raise ConfigError("model.name", self._model, message)
        if outputs.shape[1] != self.outputs:
            message = f"returns {counted(outputs.shape[1], 'class')} for each pixel, must return "
            message += f"{self.outputs}: use its argument num_classes"
            raise ConfigError("model.name", self._model, message)
        if outputs.shape[-2:] != targets.shape[-2:]:
            outputs = functional.interpolate(outputs, targets.shape[-2:], mode="bilinear")
        return self._loss(outputs, targets.long())

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        inside = targets != OUTSIDE
        # All masks at once, as reading sizes on the CPU waits for the GPU.
        sizes = torch.stack([inside[:, :, 0].sum(1), inside[:, 0].sum(1)], 1).tolist()
        masks = (
            target[:height, :width].long()
            for target, (height, width) in zip(targets, sizes, strict=True)
        )
        return torch.stack([self._score(*pair) for pair in zip(outputs, masks, strict=True)])

    def _score(self, output: Tensor, mask: Tensor) -> Tensor:
        (whole,) = functional.interpolate(output[None], mask.shape, mode="bilinear")
        loss = _cross_entropy(whole[None], mask[None])
        is_known, answer = mask != IGNORED, whole.argmax(0)
        # One count with a bin for ignored pixels: selecting or counting pixels waits for the GPU.
        rest = 3 * self.outputs
        bins = [
            torch.where(is_known & (answer == mask), 3 * answer, rest),
            torch.where(is_known, 3 * mask + 1, rest),
            torch.where(is_known, 3 * answer + 2, rest),
        ]
        counts = torch.cat(bins).flatten().bincount(minlength=rest + 1)[:rest]
        return torch.cat([loss[None].double(), counts.double()])

    def measure(self, scores: Tensor) -> dict[str, float]:
        """Returns metrics over all pixels together; the mean IoU is over the classes that occur."""
        right, of_mask, _ = self._counts(scores)
        iou = self._iou(scores)
        return {
            "miou": float(iou.nanmean()),
            "pixel_accuracy": float(right.sum() / of_mask.sum()),
        }

    def tables(self, scores: Tensor) -> list[Table]:
        right, of_mask, of_answer = self._counts(scores)
        columns = (self._iou(scores), right / of_answer, right / of_mask)
        shares = [map(Share, each.tolist()) for each in (*columns, of_mask / of_mask.sum())]
        rows = list(zip(self.names, *shares, strict=True))
        return [Table("Classes", ("class", "IoU", "precision", "recall", "pixels"), rows)]

    def outcomes(self, scores: Tensor) -> dict[str, list[Any]]:
        return {"mean_iou": [float(self._iou(row[None]).nanmean()) for row in scores]}

    def mistakes(self, scores: Tensor, most: int) -> list[tuple[int, str]]:
        """Returns the images of the lowest mean IoU."""
        each = [self._iou(row[None]) for row in scores]
        values = torch.stack([iou.nanmean() for iou in each]).nan_to_num(1.0)
        captions = []
        for row in values.argsort(stable=True)[:most].tolist():
            found = [(v, name) for v, name in zip(each[row].tolist(), self.names, strict=True)
                     if v == v]  # fmt: skip
            worst = f", {min(found)[1]} {100 * min(found)[0]:.0f} %" if found else ""
            captions.append((row, f"mean IoU {100 * values[row]:.0f} %{worst}"))
        return captions

    def draw(self, image: Image.Image, target: Tensor, side: int) -> Image.Image:  # noqa: ARG002
        return overlay(image, target.numpy())

    def answered(self, output: Tensor, target: Tensor) -> Tensor:
        return torch.from_numpy(class_mask(self.head(output[None])[0], *target.shape))

    def rows(self, answers: Tensor, sizes: Sequence[Size]) -> pl.DataFrame:
        """Returns a mask for each image, and as scores the shares of the classes in its pixels."""
        import polars as pl

        masks = [class_mask(answer, *size) for answer, size in zip(answers, sizes, strict=True)]
        shares = [shares_of_classes(mask, self.outputs) for mask in masks]
        found = pl.DataFrame({"mask": [as_png(mask) for mask in masks]}, {"mask": pl.Binary})
        values = np.array(shares, np.float32).reshape(-1, self.outputs)
        return found.hstack(super().rows(torch.from_numpy(values), sizes))

    def describe(self, answer: Tensor, size: Size, top: int | None) -> dict[str, Any]:
        mask = class_mask(answer, *size)
        shares = best_by_name(shares_of_classes(mask, self.outputs), self.names, top)
        return {"mask": as_png(mask), "shares": shares}

    def _counts(self, scores: Tensor) -> Tensor:
        """Returns each class's pixels that are right, in the masks, and in the answers, float64
        `(3, classes)`."""
        return scores[:, 1:].sum(0).view(self.outputs, 3).T

    def _iou(self, scores: Tensor) -> Tensor:
        """Returns the intersection over union of each class, float64; NaN for absent classes."""
        right, of_mask, of_answer = self._counts(scores)
        return right / (of_mask + of_answer - right)


def _cross_entropy(
    outputs: Tensor, targets: Tensor, *, weights: Tensor | None = None, smoothing: float = 0.0
) -> Tensor:
    """Returns the mean over the samples of the mean over the pixels that have a class; 0 for a
    sample without such pixels.

    torch divides by the pixels of the whole batch instead: the loss then changes if a batch is
    computed in pieces or on several ranks.
    """
    # A row per pixel: for images, torch has no deterministic implementation on GPUs.
    losses = functional.cross_entropy(
        outputs.movedim(1, -1).flatten(0, -2),
        targets.flatten(),
        weights,
        ignore_index=IGNORED,
        label_smoothing=smoothing,
        reduction="none",
    )
    counts = (targets != IGNORED).flatten(1).sum(1)
    return (losses.view(len(targets), -1).sum(1) / counts.clamp(min=1)).mean()
