"""Where samples lie in their images, so that labels follow the crop."""

import io
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torchvision.transforms import v2
from torchvision.tv_tensors import Mask

from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import DataConfig
from entry_point.data.batch import Batch
from entry_point.data.loader import open_source
from entry_point.data.sources.source import Source
from tests.entry_point.data.engines.every_engine import ENGINES, Way
from tests.entry_point.data.loaders import SIDE, epoch_of, loader_of, source_of
from tests.own_sources import Brightness


def upright(source: Source, index: int) -> Tensor:
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(source.read(index).numpy().tobytes())))
    return v2.functional.pil_to_tensor(image.convert("RGB"))


def shown(image: Tensor, batch: Batch, place: int) -> Tensor:
    """What torchvision makes of the image by the sample's geometry."""
    lies = batch.geometry
    assert lies is not None and image.shape[1:] == (lies.heights[place], lies.widths[place])
    box = lies.boxes[place].tolist()
    sample = v2.functional.resized_crop(image, *box, [lies.side, lies.side], antialias=True)
    return v2.functional.horizontal_flip(sample) if lies.flips[place] else sample


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("split", "views"), [("train", 2), ("val", 1)])
def test_torchvision_makes_the_samples_of_the_images_by_their_geometry(
    photos: Path, engine: Way, split: str, views: int
) -> None:
    """Also of the images that replace damaged ones."""
    damaged = sorted((photos / split).glob("*/*.jpg"))[5]
    damaged.write_bytes(damaged.read_bytes()[:500])
    source = source_of(photos, split)
    count = flips = 0
    for batch in epoch_of(loader_of(source, engine, split, views=views, max_bad_fraction=0.5)):
        assert batch.geometry is not None
        assert len(batch.geometry.boxes) == len(batch.images) == len(batch.indices)
        for place, index in enumerate(batch.indices.tolist()):
            expected = shown(upright(source, index), batch, place)
            assert (batch.images[place].int() - expected.int()).abs().float().mean() < 1.5
            count += 1
        flips += int(batch.geometry.flips.sum())
    assert count == (96 if split == "train" else 23)
    assert (20 < flips < 76) == (split == "train")


@pytest.mark.parametrize("engine", ["threads", "workers"])
def test_targets_are_made_by_the_source_where_batches_are_made(
    photo_folder: Path, engine: Way
) -> None:
    source = Brightness(photo_folder, "train")
    for batch in epoch_of(loader_of(source, engine)):
        assert batch.labels.shape == (12, SIDE, SIDE) and batch.labels.dtype == torch.int64
        for place, index in enumerate(batch.indices.tolist()):
            mask = Mask((upright(source, index).float().mean(0) > 127).byte())
            lies = batch.geometry
            assert lies is not None
            cut = v2.functional.resized_crop(mask, *lies.boxes[place].tolist(), [SIDE, SIDE])
            expected = v2.functional.horizontal_flip(cut) if lies.flips[place] else cut
            assert torch.equal(batch.labels[place], expected.long())


def test_a_source_of_targets_without_the_method_is_refused(tmp_path: Path) -> None:
    data = DataConfig(format="tests.own_sources.without_targets", root=str(tmp_path))
    with pytest.raises(ConfigError, match=r"must return a source that has targets\(\)"):
        open_source(data, "train", Path())
