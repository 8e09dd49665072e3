"""A model and images, for the tests of prediction."""

import shutil
from pathlib import Path

import pytest

from tests.entry_point.serving.served_model import write_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder that training wrote. Tests must not change it."""
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def images(photo_folder: Path, tmp_path: Path) -> Path:
    """A folder of 12 photographs; c/1.jpg is damaged."""
    folder = tmp_path / "images"
    files = sorted((photo_folder / "val").rglob("*.jpg"))[:12]
    for number, file in enumerate(files):
        target = folder / "abc"[number // 4] / f"{number % 4}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    (folder / "c/1.jpg").write_bytes(files[9].read_bytes()[:500])
    return folder
