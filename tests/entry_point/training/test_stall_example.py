"""The stall workload, an example of your own augmentation: on the device, and sample by sample."""

import pytest
import torch

from project import stall


def test_a_pixel_is_masked_with_a_probability_of_a_quarter_and_with_its_four_neighbors() -> None:
    torch.manual_seed(0)
    masked = (stall.Stall()(torch.ones(20, 3, 256, 256))[:, 0] == 0).double()
    assert float(masked[:, 1:-1, 1:-1].mean()) == pytest.approx(1 - 0.75**5, abs=0.002)
    # Pixels of an edge have three.
    assert float(masked[:, 0, 1:-1].mean()) == pytest.approx(1 - 0.75**4, abs=0.04)


def test_a_sample_is_the_same_from_a_batch_and_alone_if_the_mask_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mask = torch.rand(1, 64, 64, generator=torch.Generator().manual_seed(2)) < 0.3
    monkeypatch.setattr(stall, "dilated", lambda _drawn: mask)
    images = torch.randint(0, 256, (4, 3, 64, 64), dtype=torch.uint8)
    together = stall.Stall()(images / 255)
    for image, expected in zip(images, together, strict=True):
        alone = stall.StallSample()(image, torch.Generator())
        assert alone.dtype == torch.uint8
        assert (alone - 255 * expected).abs().max() <= 0.501
        assert (alone[0] == 0)[mask[0]].all() and (alone[1:][:, mask[0]] == 128).all()
