"""The stall workload: both forms, with every engine, from the same random numbers."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import DataConfig, Engine, PipelineConfig
from entry_point.data.batch import Batch
from entry_point.data.decode.stall import BLACK, kept_pixels, mask_ycbcr, rgb_to_ycbcr
from entry_point.data.loader import build_loader, open_source
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.plan.crops import CropPlanner

SIZE, SEED, EPOCH = 100, 4, 2


def stall_data(root: Path, transform_on: Any = "device") -> DataConfig:
    return DataConfig(
        root=str(root),
        transform="stall",
        transform_on=transform_on,
        image_size=SIZE,
        resize=112,
        mean=[0, 0, 0],
        std=[1, 1, 1],
    )


def batches(
    root: Path,
    engine: Engine,
    transform_on: Any,
    split: str = "train",
    dtype: torch.dtype = torch.float32,
) -> list[Batch]:
    data = stall_data(root, transform_on)
    source = open_source(data, split, root)
    pipeline = PipelineConfig(engine=engine, num_workers=0)
    loader = build_loader(source, LoaderSpec(data, pipeline, split, 12, seed=SEED, dtype=dtype))
    made = list(loader.epoch(EPOCH))
    loader.close()
    return made


@pytest.mark.parametrize("side", [1, 31, 64, 100])
def test_a_mask_depends_only_on_seed_epoch_and_sample(side: int) -> None:
    indices = torch.tensor([7, 3, 2**33 + 3])
    together = kept_pixels(SEED, EPOCH, indices, side)
    assert together.shape == (3, side, side, 1)
    for place, index in enumerate(indices):
        assert torch.equal(together[place], kept_pixels(SEED, EPOCH, index.view(1), side)[0])
    if side > 1:
        others = [kept_pixels(SEED + 1, EPOCH, indices, side), kept_pixels(SEED, 9, indices, side)]
        assert not any(torch.equal(other, together) for other in others)
        assert not torch.equal(together[1], together[2])


def test_a_quarter_of_the_pixels_and_their_neighbours_are_masked() -> None:
    kept = kept_pixels(SEED, EPOCH, torch.arange(20), 256).squeeze(3).bool()
    inner = kept[:, 1:-1, 1:-1].double().mean()
    assert float(inner) == pytest.approx(0.75**5, abs=0.002)
    assert float(kept[:, 0, 0].double().mean()) > 0.75**5  # corners have two neighbours


@pytest.mark.parametrize("side", [33, 64, 100])
def test_the_mask_is_dilated_by_the_four_neighbours(
    side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from entry_point.data.decode import stall

    indices = torch.arange(3)
    dilated = kept_pixels(SEED, EPOCH, indices, side).squeeze(3) == 0
    monkeypatch.setattr(stall, "_dilated", lambda bits: bits)
    drawn = np.pad(kept_pixels(SEED, EPOCH, indices, side).squeeze(3).numpy() == 0, 1)
    expected = drawn.copy()
    for axis in (1, 2):
        for step in (-1, 1):
            expected |= np.roll(drawn, step, axis)
    inside = slice(1, -1)
    # Padding keeps pixels that roll over an edge, or into another image, outside.
    assert np.array_equal(dilated.numpy(), expected[inside, inside, inside])


def test_rgb_to_ycbcr_is_jfifs_conversion() -> None:
    drawn = np.random.default_rng(0).integers(0, 256, (60, 70, 3), dtype=np.uint8)
    pillow = np.asarray(Image.fromarray(drawn).convert("YCbCr")).transpose(2, 0, 1)
    converted = rgb_to_ycbcr(torch.from_numpy(drawn).permute(2, 0, 1).contiguous().float())
    assert (converted - torch.from_numpy(pillow.copy())).abs().max() < 1.01  # Pillow rounds down
    red = rgb_to_ycbcr(torch.tensor([255.0, 0, 0]).view(3, 1, 1)).flatten()
    assert red.tolist() == pytest.approx([76.245, 84.972, 255.5], abs=0.001)
    black = rgb_to_ycbcr(torch.zeros(2, 3, 1, 1)).flatten(1)
    assert torch.equal(black, torch.tensor(BLACK).float().expand(2, 3))


@pytest.mark.parametrize("split", ["train", "val"])
def test_all_engines_give_the_same_samples_in_either_form(photo_folder: Path, split: str) -> None:
    for transform_on, levels in (("cpu", 1.0 / 255), ("device", 1)):
        reference, *others = (
            batches(photo_folder, engine, transform_on, split)
            for engine in ("pillow", "workers", "threads")
        )
        for other in others:
            for a, b in zip(reference, other, strict=True):
                assert torch.equal(a.indices, b.indices)
                assert (a.images.double() - b.images.double()).abs().max() <= levels + 1e-6


@pytest.mark.parametrize("engine", ["pillow", "workers", "threads"])
def test_a_model_in_bf16_gets_batches_in_bf16(photo_folder: Path, engine: Engine) -> None:
    full = batches(photo_folder, engine, "cpu", "val")
    half = batches(photo_folder, engine, "cpu", "val", torch.bfloat16)
    for a, b in zip(full, half, strict=True):
        assert b.images.dtype == torch.bfloat16
        assert torch.equal(b.images, a.images.bfloat16())


def test_both_forms_agree_within_a_level_for_colors_that_rgb_can_hold(
    photo_folder: Path,
) -> None:
    """RGB cannot hold every YCbCr color: where the decoder clips, the forms may differ."""
    clipped = compared = 0
    for published, batched in zip(
        batches(photo_folder, "workers", "cpu"),
        batches(photo_folder, "threads", "device"),
        strict=True,
    ):
        assert published.images.dtype == torch.float32 and batched.images.dtype == torch.uint8
        assert torch.equal(published.indices, batched.indices)
        levels = mask_ycbcr(batched.images, SEED, EPOCH, batched.indices).float()
        difference = (published.images * 255 - levels).abs().amax(1)
        kept = kept_pixels(SEED, EPOCH, batched.indices, SIZE).squeeze(3).bool()
        assert (difference[~kept] < 1e-4).all()
        y, cb, cr = batched.images.float().unbind(1)
        rgb = [
            y + 1.402 * (cr - 128),
            y - 0.344136 * (cb - 128) - 0.714136 * (cr - 128),
            y + 1.772 * (cb - 128),
        ]
        inside = torch.stack([(c > -0.5) & (c < 255.5) for c in rgb]).all(0)
        assert difference[inside & kept].max() <= 1.01
        clipped += int((~inside & kept).sum())
        compared += int(kept.sum())
    assert clipped < 0.1 * compared


def test_masking_does_not_change_the_loaders_batch() -> None:
    images = torch.full((2, 3, 40, 40), 200, dtype=torch.uint8).contiguous(
        memory_format=torch.channels_last
    )
    masked = mask_ycbcr(images, SEED, EPOCH, torch.arange(2))
    assert (images == 200).all() and not (masked == 200).all()
    assert masked.is_contiguous(memory_format=torch.channels_last)


def test_stall_boxes_are_squares_of_image_size_at_any_position(tmp_path: Path) -> None:
    planner = CropPlanner(stall_data(tmp_path), train=True, seed=SEED)
    count = 4000
    heights, widths = np.full(count, 103), np.full(count, 140)
    heights[0], widths[0] = 60, 80  # smaller than a sample
    boxes = planner.plan(EPOCH, np.arange(count), heights, widths).boxes
    assert boxes[0, 2:].tolist() == [60, 60] and (boxes[1:, 2:] == SIZE).all()
    assert set(boxes[1:, 0]) == set(range(4)) and set(boxes[1:, 1]) == set(range(41))
    assert (boxes[:, 0] + boxes[:, 2] <= heights).all()
    assert (boxes[:, 1] + boxes[:, 3] <= widths).all()


def test_a_smaller_image_is_enlarged(tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / split / "small").mkdir(parents=True)
        out = io.BytesIO()
        Image.new("RGB", (50, 70), (10, 200, 90)).save(out, "JPEG")
        for number in range(12):
            (tmp_path / split / "small" / f"{number}.jpg").write_bytes(out.getvalue())
    for transform_on in ("cpu", "device"):
        for engine in ("pillow", "threads"):
            (batch,) = batches(tmp_path, engine, transform_on)
            assert batch.images.shape == (12, 3, SIZE, SIZE)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"transform": "stal"}, "data.transform=stal: must be one of imagenet, stall"),
        ({"transform_on": "cpu"}, "data.transform_on=cpu: needs data.transform=stall"),
        ({"transform": "stall"}, "data.mean=[0,0,0] data.std=[1,1,1]"),
    ],
)
def test_incompatible_stall_settings_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DataConfig(**settings)  # type: ignore[arg-type]
    assert message in str(caught.value)
