"""The loader for prediction: images of any format, in order."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, features

from entry_point.config.data_config import DataConfig
from entry_point.data.batch import Batch
from entry_point.data.loader import build_prediction_loader
from entry_point.data.sources.source import FileSource
from tests.entry_point.data import loaders
from tests.entry_point.data.engines.every_engine import DECODERS, Way, pipeline_of
from tests.entry_point.prediction.predicted import center_crop


def epoch_of(files: list[Path], engine: Way = "threads") -> list[Batch]:
    source, data = FileSource(files, [-1] * len(files), []), DataConfig(image_size=40, resize=48)
    samples, pipeline = range(len(files)), pipeline_of(engine, 1)
    return loaders.epoch_of(build_prediction_loader(source, samples, data, pipeline, batch_size=4))


@pytest.fixture
def files(tmp_path: Path, photo_folder: Path) -> list[Path]:
    """JPEGs of all kinds, other formats and modes; 5, 9 and 11 are not images.

    The end of the PNG looks like that of a JPEG.
    """
    jpegs = sorted((photo_folder / "val").rglob("*.jpg"))
    photo = Image.open(jpegs[0]).convert("RGB")
    photo.convert("RGBA").save(tmp_path / "a.png")
    with (tmp_path / "a.png").open("ab") as png:
        png.write(b"\xff\xd9")
    photo.convert("P").save(tmp_path / "b.gif")
    photo.save(tmp_path / "c.webp")
    photo.convert("L").save(tmp_path / "d.tiff")
    photo.convert("CMYK").save(tmp_path / "e.jpg")
    (tmp_path / "f.png").write_text("no picture")
    (tmp_path / "g.jpg").write_bytes(jpegs[1].read_bytes()[:-2000])
    Image.new("RGB", (3, 2)).save(tmp_path / "h.bmp")
    others = sorted(tmp_path.iterdir())
    return [*others[:5], others[5], *jpegs[:3], others[6], others[7], tmp_path / "none", *jpegs[3:]]


@pytest.mark.parametrize("engine", DECODERS)
def test_files_come_once_in_order_as_pillow_prepares_them_and_damaged_ones_are_listed(
    files: list[Path], engine: Way
) -> None:
    batches = epoch_of(files, engine)
    bad = {5, 9, 11}
    order = loaders.indices_of(batches)
    assert order == [i for i in range(len(files)) if i not in bad]
    listed = {damaged.key: damaged.reason for batch in batches for damaged in batch.damage}
    assert set(listed) == {str(files[i]) for i in bad} and all(listed.values())
    images = loaders.images_of(batches)
    for place, index in enumerate(order):
        expected = center_crop(files[index].read_bytes(), 40, 48)
        levels = (images[place].int() - expected.int()).abs().float()
        if engine == "dali":  # it rounds its resize filter in another way
            assert levels.mean() <= 0.3 and levels.max() <= 32, files[index]
        else:
            assert levels.max() <= 1, files[index]


def test_large_and_small_images_share_a_batch(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number, size in enumerate([(1, 1), (3000, 40), (40, 3000), (200, 100)]):
        pixels = rng.integers(0, 255, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.jpg", quality=90)
    (batch,) = epoch_of(sorted(tmp_path.iterdir()))
    assert batch.images.shape == (4, 3, 40, 40) and not batch.damage


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow reads no AVIF")
def test_an_image_that_pillow_cannot_decode_is_listed_whatever_pillow_raises(
    tmp_path: Path,
) -> None:
    file = tmp_path / "a.avif"
    pixels = np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)
    avif = file.read_bytes()
    start = avif.index(b"mdat") + 4
    file.write_bytes(avif[:start] + b"\xff" * 8 + avif[start + 8 :])
    (batch,) = epoch_of([file])
    assert [damage.key for damage in batch.damage] == [str(file)]
