"""What a damaged JPEG does to training and validation, for every engine."""

import logging
import shutil
from pathlib import Path

import pytest
import torch

from entry_point.data import (
    DataConfig,
    DataError,
    Loader,
    PipelineConfig,
    build_loader,
    open_source,
)

ENGINES = ("pillow", "workers", "threads")


@pytest.fixture
def damaged_folder(photo_folder: Path, tmp_path: Path) -> Path:
    """48 train images of which numbers 0 (cut short), 1 (no JPEG) and 47 (empty) are damaged."""
    root = tmp_path / "root"
    shutil.copytree(photo_folder, root)
    files = sorted((root / "train").glob("*/*.jpg"))
    files[0].write_bytes(files[0].read_bytes()[:-5000])
    files[1].write_bytes(b"not a picture at all" * 100)
    files[47].write_bytes(b"")
    (root / "val/cat/001.jpg").write_bytes(b"")
    return root


def _loader(root: Path, engine: str, split: str, on_error: str, fraction: float = 0.1) -> Loader:
    data = DataConfig(
        root=str(root),
        image_size=32,
        resize=36,
        scale=[1.0, 1.0],
        on_error=on_error,
        max_bad_fraction=fraction,
    )
    source = open_source(data, split, root)
    pipeline = PipelineConfig(engine=engine, num_workers=0)
    return build_loader(source, data, pipeline, split=split, batch_size=12, seed=0)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("split", ["train", "val"])
def test_damage_stops_the_job_and_names_the_file(
    damaged_folder: Path, engine: str, split: str
) -> None:
    with pytest.raises(DataError, match=rf"{split}/.*\.jpg: ."):
        list(_loader(damaged_folder, engine, split, "raise").epoch(0))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_skipped_training_image_is_replaced_by_the_next_and_listed(
    damaged_folder: Path, engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        batches = list(_loader(damaged_folder, engine, "train", "skip").epoch(0))
    seen = torch.cat([batch.indices for batch in batches])
    assert sorted(seen.tolist()) == sorted([*range(2, 47), 2, 2, 2])
    for file in ("astronaut/000.jpg", "astronaut/001.jpg", "rocket/005.jpg"):
        assert file in caplog.text
    twins = torch.cat([batch.images for batch in batches])[seen == 2]
    assert torch.equal(twins[0], twins[1])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_skipped_validation_image_is_left_out(damaged_folder: Path, engine: str) -> None:
    batches = list(_loader(damaged_folder, engine, "val", "skip").epoch(0))
    assert torch.cat([batch.indices for batch in batches]).tolist() == [
        index for index in range(24) if index != 4
    ]
    assert all(len(batch.images) == len(batch.labels) == len(batch.indices) for batch in batches)


@pytest.mark.parametrize("engine", ENGINES)
def test_more_damage_than_allowed_stops_the_job(damaged_folder: Path, engine: str) -> None:
    with pytest.raises(DataError, match=r"3 damaged images in epoch 0, .*max_bad_fraction=0\.05"):
        list(_loader(damaged_folder, engine, "train", "skip", 0.05).epoch(0))
