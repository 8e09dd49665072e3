"""RandomResizedCrop to 224 with augmentation: docs/results/op-augment.md."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from benchmarks import measure
from benchmarks.operator.augment_peers import peers, pillow_views, tensor_views
from benchmarks.operator.op_resized import BATCH, SIZE, Work, random_boxes, this_operator
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
NAMES = {
    "Identity": "identity", "ShearX": "shear_x", "ShearY": "shear_y", "TranslateX": "translate_x",
    "TranslateY": "translate_y", "Rotate": "rotate", "Brightness": "brightness",
    "Color": "saturation", "Contrast": "contrast", "Sharpness": "sharpness",
    "Posterize": "posterize", "Solarize": "solarize", "AutoContrast": "autocontrast",
    "Equalize": "equalize",
}  # fmt: skip
"""The operator's names of torchvision's operations."""
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
    """A policy, by torchvision and by the other libraries."""

    torchvision: nn.Module
    word: str
    operations: int = 1
    views: int = 1
    """Of each image. SimCLR's are not erased."""


POLICIES = {
    "TrivialAugmentWide + erasing": Policy(v2.TrivialAugmentWide(), "trivial"),
    "TrivialAugmentWide, bilinear, + erasing": Policy(
        v2.TrivialAugmentWide(interpolation="bilinear"), ""
    ),
    "RandAugment (2, 9) + erasing": Policy(v2.RandAugment(2, 9), "rand", 2),
    "SimCLR, two views": Policy(SIMCLR, "simclr", views=2),
}


def drawn(policy: Any) -> list[float]:
    """Returns one operation from torchvision's space, as a row of the operator's table."""
    name, (magnitudes_of, signed) = policy._get_random_item(policy._AUGMENTATION_SPACE)
    magnitudes = magnitudes_of(policy.num_magnitude_bins, SIZE, SIZE)
    if magnitudes is None:
        return [NUMBERS[NAMES[name]]]
    at = getattr(policy, "magnitude", None) or int(torch.randint(len(magnitudes), ()))
    value = float(magnitudes[at]) * (-1 if signed and torch.rand(()) < 0.5 else 1)
    if name in ("Brightness", "Color", "Contrast", "Sharpness"):
        return [NUMBERS[NAMES[name]], 1 + value]
    if name in ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"):
        amount = int(value) if name.startswith("Translate") else value
        bilinear = policy.interpolation == v2.InterpolationMode.BILINEAR
        return [NUMBERS[NAMES[name]], amount, bilinear]
    return [NUMBERS[NAMES[name]], 255 * value if name == "Solarize" else value]


def erased() -> list[float]:
    """RandomErasing with its default rectangle, for one image in ten."""
    params = ERASE.make_params([torch.zeros(3, SIZE, SIZE, dtype=torch.uint8)])
    if torch.rand(()) >= 0.1 or params["v"] is None:
        return [NUMBERS["identity"]]
    return [NUMBERS["erase"], params["i"], params["j"], params["h"], params["w"]]


def drawn_table(policy: Policy) -> Tensor:
    """Returns the table of a batch: the policy's operations, then the rectangle."""
    if policy.word == "simclr":
        augmenter = build_augmenter(AugmentConfig("simclr"), (0.5, 0.5, 0.5))
        assert augmenter is not None
        return torch.from_numpy(augmenter.table(0, Samples.of(0, np.arange(BATCH)), SIZE))
    table = torch.zeros(BATCH, policy.operations + 1, COLUMNS)
    for image in table:
        for row in image[:-1]:
            values = drawn(policy.torchvision)
            row[: len(values)] = torch.tensor(values)
        values = erased()
        image[-1, : len(values)] = torch.tensor(values)
    return table


def baselines(files: list[bytes], boxes: Tensor, policy: Policy) -> dict[str, Work]:
    """One image at a time, as in a DataLoader worker; they draw while they run."""
    tensors = [tensor(data) for data in files]
    finish = ERASE if policy.views == 1 else nn.Identity()

    def pillow() -> None:
        for crop in pillow_views(files, boxes):
            finish(F.pil_to_tensor(policy.torchvision(crop)))

    def torchvision() -> None:
        for crop in tensor_views(tensors, boxes):
            finish(policy.torchvision(crop))

    return {"Pillow + torchvision": pillow, "torchvision v2 on tensors": torchvision}


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
        table, several = drawn_table(policy), boxes.view(-1, policy.views, 4)
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
        "tables are drawn beforehand, from torchvision's spaces. Goals: TrivialAugmentWide at most "
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
