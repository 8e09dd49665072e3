"""Preprocessing on the device: normalization, and both forms of the stall workload."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torchvision.transforms.v2 import functional

from entry_point.config.data_config import DataConfig
from entry_point.data.batch import Batch
from entry_point.data.decode.stall import kept_pixels, mask_ycbcr, rgb_to_ycbcr
from entry_point.training.device_transform import DeviceTransform, Normalize
from entry_point.training.input import device_batches
from entry_point.training.results.model_files import exported, on_cpu
from tests.entry_point.training import forked
from tests.entry_point.training.tasks.label_sources import PROBABILITIES
from tests.entry_point.training.training_jobs import read_records
from tests.own_models import tiny_net

STALL = {"transform": "stall", "mean": [0, 0, 0], "std": [1, 1, 1], "image_size": 32}
OVERRIDES = (
    "data.transform=stall",
    "data.mean=[0,0,0]",
    "data.std=[1,1,1]",
    "pipeline=threads",
    "pipeline.num_workers=1",
    "optim.lr=0.02",
)


def images() -> torch.Tensor:
    drawn = torch.Generator().manual_seed(0)
    made = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8, generator=drawn)
    return made.contiguous(memory_format=torch.channels_last)


def test_the_stall_workload_is_masked_only_in_training() -> None:
    data, indices = DataConfig(**STALL), torch.tensor([3, 1, 4, 1])  # type: ignore[arg-type]
    prepare = DeviceTransform(data, seed=5)
    masked = mask_ycbcr(images(), 5, 2, indices).float() / 255
    torch.testing.assert_close(prepare(images(), indices, epoch=2), masked)
    torch.testing.assert_close(prepare(images(), indices), images().float() / 255)


def test_other_transforms_are_not_masked() -> None:
    prepare = DeviceTransform(DataConfig(mean=[0, 0, 0], std=[1, 1, 1]), seed=5)
    indices = torch.arange(4)
    torch.testing.assert_close(prepare(images(), indices, epoch=2), images().float() / 255)


def test_float_images_are_returned_unchanged() -> None:
    data = DataConfig(**STALL, transform_on="cpu")  # type: ignore[arg-type]
    floats = images().float()
    assert DeviceTransform(data, 0)(floats, torch.arange(4), epoch=0) is floats


def test_a_bf16_model_gets_what_autocast_would_round_its_fp32_input_to() -> None:
    full = DeviceTransform(DataConfig(), 0)(images(), torch.arange(4), epoch=0)
    half = DeviceTransform(DataConfig(), 0, torch.bfloat16)
    assert torch.equal(half(images(), torch.arange(4), epoch=0), full.bfloat16())
    assert half(full, torch.arange(4), epoch=0).dtype is torch.bfloat16  # made by the loader


def test_the_deployed_program_takes_rgb_even_if_the_model_was_trained_on_ycbcr() -> None:
    model = nn.Sequential(tiny_net(3)).eval()
    data = DataConfig(**STALL)  # type: ignore[arg-type]
    program = exported(on_cpu(model, data, PROBABILITIES.head), data)
    rgb = images()[:3]
    expected = model(rgb_to_ycbcr(rgb.float()) / 255).softmax(1)
    torch.testing.assert_close(program.module()(rgb.contiguous()), expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_masks_are_the_same_on_every_device() -> None:
    on_cpu = kept_pixels(1, 2, torch.arange(3), 100)
    on_gpu = kept_pixels(1, 2, torch.arange(3, device="cuda"), 100)
    assert torch.equal(on_cpu, on_gpu.cpu())


def test_the_stall_workload_trains_alike_on_cpu_and_device(
    tmp_path: Path, photo_folder: Path
) -> None:
    losses = []
    for where in ("device", "cpu"):
        overrides = [*OVERRIDES, f"data.transform_on={where}"]
        assert forked.run(tmp_path / where, photo_folder, overrides) == 0
        records = read_records(tmp_path / where)
        losses.append(
            [r.get("loss", r.get("val_loss")) for r in records if "lr" in r or "val_loss" in r]
        )
    assert len(losses[0]) == 6
    assert losses[0] == pytest.approx(losses[1], abs=2e-3)


def test_normalization_matches_torchvision() -> None:
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    images = torch.randint(0, 256, (2, 3, 5, 7), dtype=torch.uint8)
    expected = functional.normalize(functional.to_dtype(images, scale=True), mean, std)
    torch.testing.assert_close(Normalize(mean, std)(images), expected)


def test_device_batches_have_the_requested_memory_format() -> None:
    images = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    made = Batch(images, torch.zeros(2, dtype=torch.int64), torch.arange(2))
    prepare = DeviceTransform(DataConfig(), 0)
    (got,) = device_batches([made], torch.device("cpu"), prepare)
    assert got.images.is_contiguous(memory_format=torch.channels_last)
