"""A training loop as torchvision's references write it (references/classification/train.py).

Pillow, ImageFolder and a DataLoader; torchvision's transforms, MixUp, CutMix and RASampler; torch's
SGD, schedulers and AveragedModel. It shares no line with the template, and is what the template is
compared with. Takes a folder and Options as JSON; prints one line of JSON per epoch.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Sampler, default_collate
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZE, RESIZE, BATCH, WARMUP_EPOCHS, LR, WEIGHT_DECAY = 32, 36, 50, 2, 0.1, 5e-5


@dataclass(frozen=True)
class Options:
    seed: int
    epochs: int
    ema_decay: float
    repeats: int = 1
    augment: bool = False
    mix: bool = False
    apart: bool = False
    """Separates the repeats of an image, as on eight ranks, so that they are not blended."""


def digits_net(classes: int) -> nn.Module:
    """Returns the network of project.models.small_net, in the same order, so that seeds start it
    alike."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise([3, 32, 64, 128]):
        layers += [nn.Conv2d(inputs, outputs, 3, 2, 1), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes))


class RASampler(Sampler[int]):
    """Repeated augmentation on one rank, as references/classification/sampler.py."""

    def __init__(self, count: int, repeats: int) -> None:
        self.count, self.repeats = count, repeats

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(self.count).repeat_interleave(self.repeats)
        return iter(order[: self.count].tolist())


def transforms(augment: bool) -> tuple[v2.Transform, v2.Transform]:
    """As references/classification/presets.py, in torchvision's order."""
    tensor = [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    train = [
        v2.RandomResizedCrop(SIZE, scale=(0.35, 1.0), antialias=True),
        v2.RandomHorizontalFlip(),
        *([v2.TrivialAugmentWide(interpolation=v2.InterpolationMode.BILINEAR)] if augment else []),
        *tensor,
        *([v2.RandomErasing(0.1)] if augment else []),
    ]
    return v2.Compose(train), v2.Compose([v2.Resize(RESIZE), v2.CenterCrop(SIZE), *tensor])


def split_decay(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """No weight decay on biases and normalization weights."""
    bare = [p for name, p in model.named_parameters() if p.ndim == 1]
    others = [p for name, p in model.named_parameters() if p.ndim > 1]
    return [
        {"params": others, "weight_decay": weight_decay},
        {"params": bare, "weight_decay": 0.0},
    ]


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader[Any]) -> float:
    model.eval()
    right = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in loader)
    model.train()
    return right / len(loader.dataset)  # type: ignore[arg-type]


def train_loader(data: Path, options: Options, transform: v2.Transform) -> DataLoader[Any]:
    dataset = ImageFolder(data / "train", transform)
    classes = len(dataset.classes)
    mixes = [v2.MixUp(alpha=0.2, num_classes=classes), v2.CutMix(alpha=1.0, num_classes=classes)]
    mix = v2.RandomChoice(mixes)

    def collate(samples: list[Any]) -> Any:
        images, labels = default_collate(samples)
        if options.apart:
            order = torch.randperm(len(labels))
            images, labels = images[order], labels[order]
        return mix(images, labels) if options.mix else (images, labels)

    sampler = RASampler(len(dataset), options.repeats)
    return DataLoader(dataset, BATCH, sampler=sampler, collate_fn=collate, drop_last=True)


def train(data: Path, options: Options) -> None:
    torch.set_num_threads(1)
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(options.seed)
    for_train, for_val = transforms(options.augment)
    loader = train_loader(data, options, for_train)
    val = DataLoader(ImageFolder(data / "val", for_val), 100)
    model = digits_net(len(val.dataset.classes))  # type: ignore[attr-defined]
    averaged = AveragedModel(
        model, multi_avg_fn=get_ema_multi_avg_fn(options.ema_decay), use_buffers=True
    )
    groups = split_decay(model, WEIGHT_DECAY)
    optimizer = torch.optim.SGD(groups, LR, momentum=0.9, nesterov=True)
    steps, warmup = len(loader), WARMUP_EPOCHS * len(loader)
    rising = LinearLR(optimizer, 1 / warmup, total_iters=warmup - 1)
    falling = CosineAnnealingLR(optimizer, options.epochs * steps - warmup)
    schedule = SequentialLR(optimizer, [rising, falling], [warmup])
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    for _ in range(options.epochs):
        for images, labels in loader:
            loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            averaged.update_parameters(model)
        record = {"raw": evaluate(model, val), "averaged": evaluate(averaged.module, val)}
        sys.stdout.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    train(Path(sys.argv[1]), Options(**json.loads(sys.argv[2])))
