"""RandomResizedCrop to 224 with augmentation: docs/results/op-augment.md."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchvision.transforms import v2

from benchmarks import measure
from benchmarks.measure import installed
from benchmarks.operator.samples import (
    BATCH,
    OPENCV,
    PILLOW,
    SIZE,
    TORCHVISION,
    Library,
    Work,
    libraries,
    on_dali,
    random_boxes,
    this_operator,
)
from benchmarks.sample_photographs import many_photographs, photographs, tensor
from custom_op import index_jpeg
from custom_op.augment_ops import COLUMNS, NUMBERS
from entry_point.config.augment_config import AugmentConfig
from entry_point.data.plan.policies import build_augmenter
from entry_point.data.plan.samples import Samples

ROUNDS = 31
"""For single operations, which differ by little."""
TITLE = "RandomResizedCrop 224, flip, augmentation"
OURS = "this operator, {}"
PLAIN = OURS.format("no augmentation")
ERASE = v2.RandomErasing(p=0.1, value=0)
SIMCLR = v2.Compose(
    [
        v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8),
        v2.RandomGrayscale(0.2),
        v2.RandomApply([v2.GaussianBlur(23, (0.1, 2.0))], 0.5),
    ]
)


@dataclass(frozen=True)
class Policy:
    """A policy by torchvision and by this template."""

    torchvision: nn.Module
    ours: AugmentConfig
    word: str = ""
    """Its name in the other libraries; empty if they lack it."""
    views: int = 1
    """Number of views of each image; those of SimCLR are not erased."""

    def table(self) -> Tensor:
        """Returns the operations of a batch, for the operator."""
        augmenter = build_augmenter(self.ours, (0.5, 0.5, 0.5))
        assert augmenter is not None
        return torch.from_numpy(augmenter.table(0, Samples.of(0, np.arange(BATCH)), SIZE))


BILINEAR = {"interpolation": "bilinear"}
POLICIES = {
    "TrivialAugmentWide + erasing": Policy(
        v2.TrivialAugmentWide(), AugmentConfig("trivial", erase=0.1), "trivial"
    ),
    "TrivialAugmentWide, bilinear, + erasing": Policy(
        v2.TrivialAugmentWide(**BILINEAR), AugmentConfig("trivial", BILINEAR, erase=0.1)
    ),
    # timm's strengths are of 10, torchvision's of 30.
    "RandAugment (2, 9) + erasing": Policy(
        v2.RandAugment(2, 9),
        AugmentConfig("rand_timm", {"n": 2, "m": 3, "p": 1, "inc": True}, erase=0.1),
        "rand",
    ),
    "SimCLR, two views": Policy(SIMCLR, AugmentConfig("simclr"), "simclr", views=2),
}


def baselines(files: list[bytes], boxes: Tensor, policy: Policy) -> dict[str, Work]:
    """One image at a time, as in a DataLoader worker; they draw while they run."""
    found, erase = libraries(), ERASE if policy.views == 1 else nn.Identity()

    def work(library: Library) -> Work:
        views = library.samples(files, boxes)
        return lambda: measure.use(erase(library.finish(policy.torchvision(v))) for v in views())

    return {"Pillow + torchvision": work(found[PILLOW]), TORCHVISION: work(found[TORCHVISION])}


def peers(word: str, files: list[bytes], boxes: Tensor) -> dict[str, Work]:
    """Returns the libraries that have the policy `word`, without erasing."""
    found: dict[str, Work] = {}
    for library in (kornia, albumentations, dali):
        found |= library(word, files, boxes)
    return found


def kornia(word: str, files: list[bytes], boxes: Tensor) -> dict[str, Work]:
    """Floats, a whole batch at once; torchvision decodes and crops."""
    if not installed("kornia"):
        return {}
    import kornia.augmentation as K
    from kornia.augmentation import auto

    policies: dict[str, Callable[[], torch.nn.Module]] = {
        "trivial": auto.TrivialAugment,
        "rand": lambda: auto.RandAugment(2, 9),
        "simclr": lambda: torch.nn.Sequential(
            K.ColorJitter(0.8, 0.8, 0.8, 0.2, p=0.8),
            K.RandomGrayscale(p=0.2),
            K.RandomGaussianBlur((23, 23), (0.1, 2.0), p=0.5),
        ),
    }
    policy, views = policies[word](), libraries()[TORCHVISION].samples(files, boxes)
    return {"Kornia": lambda: policy(torch.stack(list(views())).float() / 255)}


def albumentations(word: str, files: list[bytes], boxes: Tensor) -> dict[str, Work]:
    """OpenCV decodes and crops, with its area filter. It has no TrivialAugment or RandAugment."""
    if word != "simclr" or not installed("albumentations"):
        return {}
    import albumentations as A

    policy = A.Compose(
        [
            A.ColorJitter((0.2, 1.8), (0.2, 1.8), (0.2, 1.8), (-0.2, 0.2), p=0.8),
            A.ToGray(p=0.2),
            A.GaussianBlur(blur_limit=(23, 23), sigma_limit=(0.1, 2.0), p=0.5),
        ]
    )
    views = libraries()[OPENCV].samples(files, boxes)
    return {"Albumentations (OpenCV)": lambda: measure.use(policy(image=view) for view in views())}


def dali(word: str, files: list[bytes], boxes: Tensor) -> dict[str, Work]:
    """On the CPU; no policy of SimCLR."""
    if word == "simclr" or not installed("nvidia.dali"):
        return {}
    from nvidia.dali.auto_aug import rand_augment, trivial_augment

    def augment(images: Any) -> Any:
        if word == "trivial":
            return trivial_augment.trivial_augment_wide(images, shape=[SIZE, SIZE])
        return rand_augment.rand_augment(images, n=2, m=9, shape=[SIZE, SIZE])

    return on_dali(files, len(boxes), augment)


def each_operation() -> dict[str, Tensor]:
    """Returns a batch with the same operation everywhere."""
    values: dict[str, tuple[float, ...]] = {
        "saturation": (1.5,), "contrast": (1.5,), "brightness": (1.5,), "sharpness": (1.5,),
        "hue": (0.1,), "gaussian_blur": (23, 1.0), "posterize": (4,), "solarize": (128,),
        "solarize_add": (40,),
        "rotate": (30,), "shear_x": (0.3,), "shear_y": (0.3,), "translate_x": (20,),
        "translate_y": (20,), "erase": (50, 50, 80, 80),
    }  # fmt: skip
    rows = {name: [number, *values.get(name, ())] for name, number in NUMBERS.items()}
    rows |= {f"{name}, bilinear": [*rows[name], 1] for name in ("rotate", "shear_x", "shear_y")}
    batches = {name: torch.zeros(BATCH, 1, COLUMNS) for name in rows}
    for name, row in rows.items():
        batches[name][:, 0, : len(row)] = torch.tensor(row)
    return batches


def policy_times(files: list[bytes], boxes: Tensor) -> dict[str, float]:
    tensors = [tensor(data) for data in files]
    indexes = [index_jpeg(data) for data in tensors]
    works: dict[str, Work] = {PLAIN: this_operator(tensors, boxes, indexes)}
    for name, policy in POLICIES.items():
        table, several = policy.table(), boxes.view(-1, policy.views, 4)
        works[OURS.format(name)] = this_operator(
            tensors, boxes, indexes, augment=table, views=policy.views
        )
        others = baselines(files, several, policy)
        if policy.word:
            others |= peers(policy.word, files, several)
        works |= {f"{other}, {name}": work for other, work in others.items()}
    return measure.cpu_milliseconds(works, works=BATCH)


def operation_times() -> dict[str, float]:
    """CPU microseconds that each operation adds to a crop, compared within each round.

    The images are small, so that decoding takes little of the time.
    """
    files = [tensor(data) for data in photographs(SIZE // 2, SIZE // 2)]
    boxes = torch.tensor([[0, 0, SIZE // 2, SIZE // 2]]).repeat(BATCH, 1)
    indexes = [index_jpeg(data) for data in files]
    works = {
        name: this_operator(files, boxes, indexes, augment=table)
        for name, table in each_operation().items()
    }
    seconds = measure.alternate(measure.timed(works, time.process_time), ROUNDS)
    added = {name: np.subtract(times, seconds["identity"]) for name, times in seconds.items()}
    return {name: 1e6 * float(np.median(times)) / BATCH for name, times in added.items()}


def policy_table(times: dict[str, float]) -> str:
    rows = []
    for name, ms in times.items():
        ours = times[OURS.format(name.partition(", ")[2])]
        rows.append((name, ms, ms / times[PLAIN], ms / ours))
    return measure.table(("pipeline", "CPU ms", "plain = 1", "x this operator"), rows)


def main() -> None:
    warnings.simplefilter("ignore", DeprecationWarning)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    files, boxes = many_photographs(), random_boxes(533, 800)
    times = policy_times(files, boxes)
    measure.bars("op-augment", f"{TITLE}, one thread", "CPU ms per image", times)
    method = (
        f"{len(files)} photographs at 533x800, quality 90, 4:2:0, to uint8; this operator has a "
        "side index of each; one thread; CPU time, median of alternating rounds. The operator's "
        "tables are drawn beforehand, by this template's policies; its RandAugment has timm's "
        "operations, at the strength of torchvision's. Goals: TrivialAugmentWide at most "
        "1.25 times the time without augmentation, RandAugment 1.4; 8 times faster than Pillow, 6 "
        "times than torchvision on tensors, SimCLR 6 times than Pillow. Times of two views are per "
        "view; every pipeline decodes or parses the image once. Kornia (floats, the whole batch at "
        "once), Albumentations and DALI have operations and strengths of their own, and do not "
        "erase. The times of single operations are medians of differences within a round, on "
        "images of 112x112 pixels."
    )
    added = [(name, us) for name, us in operation_times().items() if name != "identity"]
    tables = [policy_table(times), measure.table(("one operation", "CPU us more than none"), added)]
    packages = ("Pillow", "torchvision", "kornia", "albumentations", "nvidia-dali-cuda130")
    measure.write("op-augment", "op", TITLE, method, tables, packages)


if __name__ == "__main__":
    main()
