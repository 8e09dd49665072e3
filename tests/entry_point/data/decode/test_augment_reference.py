"""Our rows through the reference give what torchvision's classes do with the same magnitudes."""

from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional

from entry_point.data.decode.augment_reference import augmented
from entry_point.data.plan.augment.policy import row
from entry_point.data.plan.augment.strengths import STANDARD, WIDE, Move, Space, strengths
from tests.entry_point.data.plan.augment.test_automatic import AS_OURS

SIDE = 64


def noise() -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(0, 256, (3, SIDE, SIDE), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("bilinear", [False, True])
@pytest.mark.parametrize(
    ("transform", "space", "count"),
    [
        (v2.TrivialAugmentWide, WIDE, 31),
        (v2.RandAugment, STANDARD, 31),
        (v2.AutoAugment, STANDARD, 10),
    ],
)
def test_every_operation_at_every_strength_is_torchvisions(
    transform: Any, space: Space, count: int, bilinear: bool
) -> None:
    way = InterpolationMode.BILINEAR if bilinear else InterpolationMode.NEAREST
    policy, image = transform(interpolation=way, fill=[9, 8, 7]), noise()
    for name, (magnitudes, signed) in transform._AUGMENTATION_SPACE.items():
        values = magnitudes(count, SIDE, SIDE)
        values = [0.0] * count if values is None else values.tolist()
        cells = strengths(space, AS_OURS[name][0], count, SIDE, Move(bilinear, (9, 8, 7)))
        for number in (0, 1, count // 2, count - 1):
            for negated in (0, 1) if signed else (0,):
                magnitude = -values[number] if negated else values[number]
                theirs = policy._apply_image_or_video_transform(
                    image, name, magnitude, interpolation=way, fill=policy._fill
                )
                ours = augmented(image, cells[number, negated][None])
                # Factors are rounded to float32 in the table.
                assert (ours.int() - theirs.int()).abs().max() <= 1, (name, magnitude)
                assert (ours != theirs).float().mean() < 0.05, (name, magnitude)


def test_operations_apply_in_the_order_of_the_table() -> None:
    image = noise()
    table = np.stack([row("invert"), row("identity"), row("solarize", 100), row("grayscale")])
    expected = functional.solarize(functional.invert(image), 100)
    assert torch.equal(augmented(image, table), functional.rgb_to_grayscale(expected, 3))


def test_hue_blur_and_erase_are_torchvisions() -> None:
    image = noise()
    for cells, expected in (
        (row("hue", 0.25), functional.adjust_hue(image, 0.25)),
        (row("gaussian_blur", 5, 1.5), functional.gaussian_blur(image, [5, 5], [1.5, 1.5])),
        (
            row("erase", 3, 4, 10, 20, 1, 2, 3),
            functional.erase(image, 3, 4, 10, 20, torch.tensor([1, 2, 3])[:, None, None]),
        ),
    ):
        assert torch.equal(augmented(image, cells[None]), expected)
