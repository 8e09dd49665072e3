from pathlib import Path

import pytest

from tests.data.packing import pack
from tests.data.photographs import write_photo_folder


@pytest.fixture(scope="session")
def photo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder data set of real photographs: 8 classes, 48 train and 24 val images."""
    return write_photo_folder(tmp_path_factory.mktemp("photographs") / "root")


@pytest.fixture(scope="session")
def packed(photo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, packed into several shards. Not to be changed."""
    output = tmp_path_factory.mktemp("packed") / "data"
    assert pack(photo_folder, output) == 0
    return output
