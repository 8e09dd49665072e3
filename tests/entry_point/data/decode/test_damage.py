"""Damaged images in training and validation, for every engine."""

import logging
import traceback
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from entry_point.data.batch import Batch
from entry_point.data.errors import DataError
from entry_point.data.loader import Loader
from entry_point.data.sources.source import FileSource
from entry_point.job.program import failure_text
from tests.entry_point.data.engines.every_engine import DECODERS, ENGINES, Way
from tests.entry_point.data.loaders import epoch_of, images_of, indices_of, loader_of
from tests.entry_point.data.sources.pipes import pipe_at


@pytest.fixture
def damaged_folder(photos: Path) -> Path:
    """48 training images; numbers 0 (truncated), 1 (not a JPEG) and 47 (empty) are damaged."""
    files = sorted((photos / "train").glob("*/*.jpg"))
    files[0].write_bytes(files[0].read_bytes()[:-5000])
    files[1].write_bytes(b"not a picture at all" * 100)
    files[47].write_bytes(b"")
    (photos / "val/cat/001.jpg").write_bytes(b"")
    return photos


def _loader(
    root: Path, engine: Way, split: str, allowed: float, workers: int = 0, **data: Any
) -> Loader:
    settings: dict[str, Any] = {"scale": [1.0, 1.0], "max_bad_fraction": allowed, **data}
    return loader_of(root, engine, split, workers=workers, spec={"seed": 0}, **settings)


def _epoch(*arguments: Any, **data: Any) -> list[Batch]:
    return epoch_of(_loader(*arguments, **data))


@pytest.mark.parametrize("engine", ENGINES)
def test_damage_stops_the_job_with_a_line_that_names_the_file_and_what_to_do(
    damaged_folder: Path, engine: Way
) -> None:
    """Also from another process."""
    listing = f'`make check-dataset ARGS="root={damaged_folder}"` lists them all'
    for split, workers in (("train", 0), ("val", 1)):
        with pytest.raises(
            DataError, match=rf"{split}/.*\.jpg: .*data.max_bad_fraction=0.[1-5] .*{listing}"
        ) as error:
            _epoch(damaged_folder, engine, split, 0.0, workers=workers)
        assert "\n" not in str(error.value)


def test_an_image_that_is_removed_while_a_job_runs_is_to_be_restored(photos: Path) -> None:
    """Its next start would list one image fewer, and not resume."""
    loader = _loader(photos, "pillow", "train", 0.0, format="folder")
    (photos / "train/cat/001.jpg").unlink()
    with closing(loader), pytest.raises(DataError, match=r"directory; restore it, .*`make check"):
        list(loader.epoch(0))


class BrokenSource(FileSource):
    def read(self, index: int) -> Tensor:
        raise KeyError(f"no entry {index}")


@pytest.mark.parametrize("engine", ["threads", "pillow"])
def test_an_unexpected_error_in_another_process_starts_with_its_reason_and_keeps_its_traceback(
    photo_folder: Path, engine: Way
) -> None:
    source = BrokenSource(sorted(photo_folder.glob("val/*/*.jpg")), [0] * 24, ["a", "b"])
    with pytest.raises((KeyError, RuntimeError)) as error:
        epoch_of(loader_of(source, engine, "val"))
    reason = failure_text(error.value).splitlines()[0]
    assert "KeyError: 'no entry 0'" in reason
    assert "in read_images" in "".join(traceback.format_exception(error.value))


@pytest.mark.parametrize("engine", DECODERS)
def test_a_skipped_training_image_is_replaced_by_the_next_and_listed(
    damaged_folder: Path, engine: Way, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        batches = _epoch(damaged_folder, engine, "train", 0.1)
    seen = torch.tensor(indices_of(batches))
    assert sorted(seen.tolist()) == sorted([*range(2, 47), 2, 2, 2])
    for file in ("astronaut/000.jpg", "astronaut/001.jpg", "rocket/005.jpg"):
        assert file in caplog.text
    # Number 1 also replaced numbers 0 and 47, in vain.
    assert sum(len(batch.damage) for batch in batches) == 3
    twins = images_of(batches)[seen == 2]
    assert torch.equal(twins[0], twins[1])


@pytest.mark.parametrize("engine", DECODERS)
def test_a_skipped_validation_image_is_left_out(damaged_folder: Path, engine: Way) -> None:
    batches = _epoch(damaged_folder, engine, "val", 0.1)
    assert indices_of(batches) == [index for index in range(24) if index != 4]
    assert all(len(batch.images) == len(batch.labels) == len(batch.indices) for batch in batches)


def test_more_damage_than_allowed_stops_the_job(damaged_folder: Path) -> None:
    with pytest.raises(DataError, match=r"3 damaged images in epoch 0, .*fraction=0\.05 .*check-"):
        _epoch(damaged_folder, "threads", "train", 0.05)


@pytest.mark.parametrize("engine", DECODERS)
def test_what_cannot_be_read_is_damage_and_nothing_waits_for_a_pipe(
    photos: Path, engine: Way
) -> None:
    loader = _loader(photos, engine, "train", 0.1)
    gone, folder, pipe = sorted((photos / "train").glob("*/*.jpg"))[20:23]
    gone.unlink()
    folder.unlink()
    folder.mkdir()
    with pipe_at(pipe), closing(loader):
        batches = list(loader.epoch(0))
    assert sorted(indices_of(batches)) == sorted([*range(20), *range(23, 48), 23, 23, 23])
    assert {damage.key: damage.reason for batch in batches for damage in batch.damage} == {
        str(gone): "No such file or directory",
        **dict.fromkeys((str(folder), str(pipe)), "is not a regular file"),
    }


@pytest.mark.parametrize("engine", DECODERS)
def test_a_file_that_ends_before_the_crop_does_is_damage(photos: Path, engine: Way) -> None:
    """The crop is part of the image here; a crop above the end of the data can be decoded."""
    file = min((photos / "val").glob("*/*.jpg"))
    with Image.open(file) as photo:
        photo.convert("RGB").save(file, "JPEG")  # baseline: rows follow one another
    file.write_bytes(file.read_bytes()[:1000])
    batches = _epoch(photos, engine, "val", 0.1, image_size=28)
    assert indices_of(batches) == list(range(1, 24))


@pytest.mark.parametrize("engine", DECODERS)
def test_wrong_bits_affect_no_other_image_and_give_the_same_result_again(
    photo_folder: Path, photos: Path, engine: Way
) -> None:
    """Engines differ in whether they find wrong bits; none fails other than by reporting damage."""
    file = sorted((photos / "train").glob("*/*.jpg"))[10]
    data = bytearray(file.read_bytes())
    for place in range(len(data) // 3, 2 * len(data) // 3, 97):
        data[place] ^= 0x55
    file.write_bytes(data)
    partial = {"scale": [0.1, 0.5], "hflip": 0.0}
    first, again, whole = (
        _epoch(folder, engine, "train", 0.1, **partial) for folder in (photos, photos, photo_folder)
    )
    for a, b, c in zip(first, again, whole, strict=True):
        assert torch.equal(a.images, b.images) and a.damage == b.damage
        assert all(damage.key == str(file) for damage in a.damage)
        others = c.indices != 10
        assert torch.equal(a.images[others], c.images[others])
