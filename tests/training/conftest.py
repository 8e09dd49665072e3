from pathlib import Path

import pytest

from tests.data.photographs import write_photo_folder
from tests.training.ways import pack_photos


@pytest.fixture(scope="session")
def photo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder data set of real photographs: 8 classes, 48 train and 24 val images."""
    return write_photo_folder(tmp_path_factory.mktemp("photographs") / "root")


@pytest.fixture(scope="session")
def packed_photos(photo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same photographs in shards."""
    return pack_photos(photo_folder, tmp_path_factory.mktemp("packed") / "root")
