"""From a loader's pixels to the model's input."""

import torch
from torchvision.transforms.v2 import functional

from entry_point.training.models import Normalize

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def pixels() -> torch.Tensor:
    drawn = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (2, 3, 5, 7), dtype=torch.uint8, generator=drawn)


def test_normalization_matches_torchvision() -> None:
    expected = functional.normalize(functional.to_dtype(pixels(), scale=True), MEAN, STD)
    torch.testing.assert_close(Normalize(MEAN, STD)(pixels()), expected)


def test_a_bf16_model_gets_what_autocast_would_round_its_fp32_input_to() -> None:
    full = Normalize(MEAN, STD, torch.float32)(pixels())
    assert torch.equal(Normalize(MEAN, STD, torch.bfloat16)(pixels()), full.bfloat16())
