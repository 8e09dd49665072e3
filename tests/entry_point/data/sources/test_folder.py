import logging
from collections.abc import Iterable
from pathlib import Path

import pytest

from entry_point.config.data_config import DataConfig
from entry_point.data.errors import DataError
from entry_point.data.loader import open_source
from entry_point.data.sources.folder import Tree
from tests.entry_point.data.sources.class_folders import class_folder
from tests.entry_point.data.sources.small_datasets import keys


def _write(root: Path, files: Iterable[str]) -> Path:
    """Each file holds its name."""
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    return root


FILES = ["train/b/1.jpg", "train/a/2.JPEG", "train/a/sub/1.jpg", "val/a/3.jpg", "val/b/4.jpg"]


def test_classes_and_files_are_sorted_by_name(tmp_path: Path) -> None:
    source = class_folder(_write(tmp_path, FILES), "train")
    assert source.classes == ["a", "b"]
    assert source.labels.tolist() == [0, 0, 1]
    files = ["train/a/2.JPEG", "train/a/sub/1.jpg", "train/b/1.jpg"]
    assert keys(source) == [f"{tmp_path}/{file}" for file in files]
    assert [bytes(source.read(i).numpy()).decode() for i in range(len(source))] == files


def test_training_channel_is_read_without_data_root(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data.root is not set.*data.root=FOLDER.*channel") as e:
        open_source(DataConfig(), "train", channels=tmp_path)
    assert str(tmp_path) not in str(e.value)  # the user did not set this path
    _write(tmp_path / "training", FILES)
    assert len(open_source(DataConfig(), "val", channels=tmp_path)) == 2


def test_other_files_are_ignored_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours = ["jpeg-index.sqlite", "jpeg-index.safetensors"]
    others = ["train/a/x.heic", "train/a/.hidden.jpg", "train/loose.jpg", "test/3.jpg"]
    _write(tmp_path, [*FILES, *ours, *others])
    with caplog.at_level(logging.WARNING):
        assert len(class_folder(tmp_path, "train")) == 3
    of_train, of_test = caplog.messages
    assert "skipping 2 files: 1 .jpg outside of class folders, 1 .heic, for example a/x" in of_train
    assert "images end in .jpg" in of_train
    assert "HEIC is not read: convert it, `heif-convert" in of_train
    assert of_test.endswith("skipping 1 file: 1 .jpg outside of class folders, for example 3.jpg")


def test_links_are_followed_but_loops_are_not(tmp_path: Path) -> None:
    root = _write(tmp_path / "root", FILES)
    _write(tmp_path / "more", ["5.jpg"])
    (root / "train/a/linked").symlink_to(tmp_path / "more")
    for name in ("here", "up"):  # two loops make an endless number of paths
        (root / f"train/a/sub/{name}").symlink_to(".")
        (tmp_path / f"more/{name}").symlink_to(root / "train/a")
    assert sorted(Tree(root / "train/a").files()) == ["2.JPEG", "linked/5.jpg", "sub/1.jpg"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["1.jpg", "2.jpg"], "root has no class folders: .* in a table .data.root=labels.csv"),
        (["a/1.jpg", "b/1.jpg"], "val_fraction=0.1 leaves no image for val"),
        (["train/a/1.heic", "val/a/1.heic"], r"holds no images; .* in one of \.jpg, .*\.tiff"),
    ],
)
def test_unusable_folder_is_an_error_with_the_reason(
    tmp_path: Path, files: list[str], message: str
) -> None:
    root = _write(tmp_path / "root", files)
    with pytest.raises(DataError, match=message):
        open_source(DataConfig(format="folder", root=str(root)), "val", Path())
