import shutil
from pathlib import Path

import pytest


@pytest.fixture
def photos(photo_folder: Path, tmp_path: Path) -> Path:
    """The photographs of `photo_folder`, to change."""
    return Path(shutil.copytree(photo_folder, tmp_path / "photos"))


@pytest.fixture
def shards(packed: Path, tmp_path: Path) -> Path:
    """A packed dataset to damage."""
    return Path(shutil.copytree(packed, tmp_path / "shards"))
