"""Our rows through the reference give what torchvision's and timm's classes do with the same
magnitudes."""

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import auto_augment
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional

from custom_op.augment_ops import NUMBERS
from entry_point.config.policy_config import RandTimm
from entry_point.data.decode.augment_reference import augmented
from entry_point.data.plan.policies import (
    MAGNITUDES,
    MOVES,
    TimmRandAugment,
    row,
    strengths,
)
from tests.entry_point.data.plan.test_augment_distributions import (
    OF_TIMM,
    OF_TORCHVISION,
)

SIDE = 64


def noise() -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(0, 256, (3, SIDE, SIDE), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("bilinear", [False, True])
def test_every_operation_at_every_strength_is_torchvisions(bilinear: bool) -> None:
    way = InterpolationMode.BILINEAR if bilinear else InterpolationMode.NEAREST
    policy, image = v2.TrivialAugmentWide(interpolation=way, fill=[9, 8, 7]), noise()
    for name, (magnitudes, signed) in policy._AUGMENTATION_SPACE.items():
        values = magnitudes(MAGNITUDES, SIDE, SIDE)
        values = [0.0] * MAGNITUDES if values is None else values.tolist()
        cells = strengths(OF_TORCHVISION[name][0], (bilinear, 9, 8, 7))
        for number in (0, 1, MAGNITUDES // 2, MAGNITUDES - 1):
            for negated in (0, 1) if signed else (0,):
                magnitude = -values[number] if negated else values[number]
                theirs = policy._apply_image_or_video_transform(
                    image, name, magnitude, interpolation=way, fill=policy._fill
                )
                ours = augmented(image, cells[number, negated][None])
                # Factors are rounded to float32 in the table.
                assert (ours.int() - theirs.int()).abs().max() <= 1, (name, magnitude)
                assert (ours != theirs).float().mean() < 0.05, (name, magnitude)


@pytest.mark.parametrize("negated", [False, True])
@pytest.mark.parametrize("increasing", [False, True])
def test_every_operation_of_timm_gives_its_pixels(
    increasing: bool, negated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto_augment, "_randomly_negate", lambda v: -v if negated else v)
    smooth = functional.gaussian_blur(noise(), [9, 9])
    pillow, fill = functional.to_pil_image(smooth), (9, 8, 7)
    settings = {"img_mean": fill, "interpolation": Image.Resampling.NEAREST}
    config = RandTimm("nearest", list(fill), n=1, m=9, p=1, inc=increasing)
    each = (np.arange(15) + 0.5) / 15
    for name in auto_augment.rand_augment_choices("", increasing):
        word = OF_TIMM[name.removesuffix("Increasing")][0]
        # A positive number of pixels moves to the left there.
        sign = 0.0 if negated != word.startswith("translate") else 0.9
        u = np.stack([each, 0 * each, 0 * each, 0 * each + sign])
        rows = TimmRandAugment(config).table(u, SIDE)
        ours = augmented(smooth, rows[rows[:, 0, 0] == NUMBERS[word]][0])
        theirs = auto_augment.AugmentOp(name, 1.0, 9, settings)(pillow)
        difference = (ours.int() - functional.pil_to_tensor(theirs).int()).abs()
        # At an edge, one of two nearest pixels may be the fill.
        most = 0.05 if word in MOVES else 0
        assert (difference > 1).float().mean() <= most, word


def test_operations_apply_in_the_order_of_the_table() -> None:
    image = noise()
    table = np.stack([row("invert"), row("identity"), row("solarize", 100), row("grayscale")])
    expected = functional.solarize(functional.invert(image), 100)
    assert torch.equal(augmented(image, table), functional.rgb_to_grayscale(expected, 3))
