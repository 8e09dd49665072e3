"""Which folders `make docker-train` mounts as channels, and what the job reads there."""

from pathlib import Path

import pytest

from launch.command_line import LaunchError
from launch.docker import split_channels


def test_a_table_is_read_from_its_folder_and_its_images_from_theirs(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "labels.csv").touch()
    channels, overrides = split_channels(
        ["data=manifest", f"data.root={tmp_path}/labels.csv", f"data.images={tmp_path}/photos"]
    )
    assert channels == {"training": tmp_path, "images": tmp_path / "photos"}
    assert overrides == [
        "data=manifest",
        "data.root=/opt/ml/input/data/training/labels.csv",
        "data.images=/opt/ml/input/data/images",
    ]


def test_a_folder_is_the_channel_itself(tmp_path: Path) -> None:
    assert split_channels([f"data.root={tmp_path}"]) == ({"training": tmp_path}, [])
    with pytest.raises(LaunchError, match="no such folder for the channel training"):
        split_channels([f"data.root={tmp_path}/gone.csv"])
