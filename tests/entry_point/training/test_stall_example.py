"""The stall workload, an example of your own augmentation: on the device, and sample by sample."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from entry_point.config.train_config import load_train_config
from entry_point.data.plan.crops import CropPlanner
from entry_point.data.plan.samples import Samples
from project import stall
from tests.entry_point.training import forked
from tests.entry_point.training.training_jobs import read_records

RECIPE = (
    *("experiment=stall", "data=folder", "data.image_size=64", "data.resize=80"),
    *("pipeline=threads", "pipeline.num_workers=1", "trainer.epochs=1"),
)
PER_SAMPLE = ("augment.name=project.stall.StallSample", "augment.per=sample")


def test_a_pixel_is_masked_with_a_probability_of_a_quarter_and_with_its_four_neighbors() -> None:
    torch.manual_seed(0)
    masked = (stall.Stall()(torch.ones(20, 3, 256, 256))[:, 0] == 0).double()
    assert float(masked[:, 1:-1, 1:-1].mean()) == pytest.approx(1 - 0.75**5, abs=0.002)
    # Pixels of an edge have three.
    assert float(masked[:, 0, 1:-1].mean()) == pytest.approx(1 - 0.75**4, abs=0.04)


def test_a_mask_is_dilated_by_the_four_neighbors_within_its_image() -> None:
    drawn = torch.rand(3, 1, 33, 20, generator=torch.Generator().manual_seed(1)) < 0.05
    padded = np.pad(drawn.numpy(), ((0, 0), (0, 0), (1, 1), (1, 1)))
    expected = padded.copy()
    for axis in (2, 3):
        for step in (-1, 1):
            expected |= np.roll(padded, step, axis)
    assert np.array_equal(stall.dilated(drawn).numpy(), expected[..., 1:-1, 1:-1])


def test_colors_are_those_of_pillow_within_rounding() -> None:
    drawn = np.random.default_rng(0).integers(0, 256, (60, 70, 3), dtype=np.uint8)
    pillow = np.asarray(Image.fromarray(drawn).convert("YCbCr")).transpose(2, 0, 1)
    rgb = torch.from_numpy(drawn).permute(2, 0, 1) / 255
    converted = 255 * stall.ycbcr(rgb, *stall.jfif())
    assert (converted - torch.from_numpy(pillow.copy())).abs().max() < 1.01  # Pillow rounds down
    black = 255 * stall.ycbcr(torch.zeros(3, 1, 1), *stall.jfif()).flatten()
    assert black.tolist() == pytest.approx([0, 128, 128], abs=1e-3)


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


def test_a_batch_keeps_its_type_and_memory_format_and_is_not_changed_itself() -> None:
    images = torch.full((2, 3, 40, 40), 0.5, dtype=torch.bfloat16)
    images = images.contiguous(memory_format=torch.channels_last)
    changed = stall.Stall()(images)
    assert (images == 0.5).all() and not (changed == images).all()
    assert changed.dtype == torch.bfloat16
    assert changed.is_contiguous(memory_format=torch.channels_last)


def test_the_recipes_crops_are_plain_squares_of_256_pixels_at_any_position() -> None:
    height, width = 533, 800
    config, _ = load_train_config(["experiment=stall", "data.root=x"])
    count = 50_000
    sizes = np.full(count, height), np.full(count, width)
    planner = CropPlanner(config.data, train=True, seed=4)
    boxes = planner.plan(Samples.of(2, np.arange(count)), *sizes).boxes
    assert (boxes[:, 2:] == 256).all() and config.data.image_size == 256
    assert set(boxes[:, 0]) == set(range(height - 255))
    assert set(boxes[:, 1]) == set(range(width - 255))
    (centre,) = (
        CropPlanner(config.data, train=False, seed=4)
        .plan(Samples.of(0, np.arange(1)), np.array([height]), np.array([width]))
        .boxes
    )
    assert centre.tolist() == [(height - 256) // 2, (width - 256) // 2, 256, 256]


@pytest.mark.parametrize("form", [(), PER_SAMPLE], ids=["batch", "sample"])
def test_the_recipe_trains(form: tuple[str, ...], tmp_path: Path, photo_folder: Path) -> None:
    assert forked.run(tmp_path, photo_folder, [*RECIPE, *form]) == 0
    assert any("val_loss" in record for record in read_records(tmp_path))
