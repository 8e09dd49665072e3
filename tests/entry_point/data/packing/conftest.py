from pathlib import Path

import pytest

from tests.entry_point.data.packing.pack_command import copy


@pytest.fixture
def shards(packed: Path, tmp_path: Path) -> Path:
    """A packed dataset to damage."""
    return copy(packed, tmp_path / "shards")
