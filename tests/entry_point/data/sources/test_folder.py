import logging
from collections.abc import Iterable
from pathlib import Path

import pytest

from entry_point.config.data_config import DataConfig
from entry_point.data.errors import DataError
from entry_point.data.loader import open_source
from entry_point.data.sources.folder import Tree
from tests.entry_point.data.sources.class_folders import class_folder


def _write(root: Path, files: Iterable[str]) -> Path:
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    return root


FILES = ["train/b/1.jpg", "train/a/2.JPEG", "train/a/sub/1.jpg", "val/a/3.jpg", "val/b/4.jpg"]


def test_classes_and_files_are_sorted_by_name(tmp_path: Path) -> None:
    source = class_folder(_write(tmp_path, FILES), "train")
    assert source.classes == ["a", "b"]
    assert source.labels.tolist() == [0, 0, 1]
    assert [bytes(source.read(i).numpy()) for i in range(len(source))] == [
        b"train/a/2.JPEG",
        b"train/a/sub/1.jpg",
        b"train/b/1.jpg",
    ]
    assert source.key(2) == str(tmp_path / "train/b/1.jpg")


def test_training_channel_is_read_without_data_root(tmp_path: Path) -> None:
    _write(tmp_path / "training", FILES)
    assert len(open_source(DataConfig(), "val", channels=tmp_path)) == 2


def test_missing_data_root_and_channel_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data.root is not set.*data.root=FOLDER.*channel") as e:
        open_source(DataConfig(), "train", channels=tmp_path)
    assert str(tmp_path) not in str(e.value)  # the user did not set this path


def test_other_files_are_ignored_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _write(tmp_path, [*FILES, "train/a/x.heic", "train/a/.hidden.jpg", "train/loose.jpg"])
    with caplog.at_level(logging.WARNING):
        assert len(class_folder(tmp_path, "train")) == 3
    assert "skipping 2 files: 1 .jpg outside of class folders, 1 .heic" in caplog.text
    assert "HEIC is not read: convert it, `heif-convert" in caplog.text


def test_links_are_followed_but_loops_are_not(tmp_path: Path) -> None:
    root = _write(tmp_path / "root", FILES)
    (tmp_path / "more").mkdir()
    (tmp_path / "more/5.jpg").write_bytes(b"more")
    (root / "train/a/linked").symlink_to(tmp_path / "more")
    for name in ("here", "up"):  # two loops make an endless number of paths
        (root / f"train/a/sub/{name}").symlink_to(".")
        (tmp_path / f"more/{name}").symlink_to(root / "train/a")
    assert sorted(Tree(root / "train/a").files()) == ["2.JPEG", "linked/5.jpg", "sub/1.jpg"]


def test_images_without_a_class_are_counted_without_a_list_of_suffixes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as the unlabeled `test` of a competition."""
    _write(tmp_path, ["train/a/1.jpg", "train/b/2.jpg", "test/3.jpg"])
    open_source(DataConfig(format="folder", root=str(tmp_path)), "train", tmp_path)
    (line,) = (r.getMessage() for r in caplog.records if r.levelno == logging.WARNING)
    assert line.endswith("skipping 1 file: 1 .jpg outside of class folders, for example 3.jpg")


def test_hidden_folders_are_not_entered(tmp_path: Path) -> None:
    _write(tmp_path, [*FILES, "train/a/.ipynb_checkpoints/2.jpg", "train/.cache/a/2.jpg"])
    assert len(class_folder(tmp_path, "train")) == 3


def test_a_tenth_of_a_folder_without_splits_is_validated_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = [f"{name}/{number}.jpg" for name in "ab" for number in range(200)]
    ours = ["jpeg-index.sqlite", "jpeg-index.safetensors"]
    _write(tmp_path, [*files, *ours, "notes.txt"])  # none is a class
    with caplog.at_level(logging.INFO):
        data = DataConfig(format="folder", root=str(tmp_path))
        train, val = (open_source(data, split, tmp_path) for split in ("train", "val"))
    assert "skipping 1 file: 1 .txt, for example notes.txt; images end in .jpg" in caplog.text
    assert train.classes == val.classes == ["a", "b"]
    split = [{source.key(i) for i in range(len(source))} for source in (train, val)]
    assert not split[0] & split[1]
    assert split[0] | split[1] == {str(tmp_path / file) for file in files}
    assert 20 < len(val) < 60
    assert "val by a hash of the paths, val_fraction=0.1" in caplog.text
    assert len(class_folder(tmp_path, "val", val_fraction=0.5)) > 150


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "data.root=.*: no such file or folder"),
        (["train/a/1.jpg"], "no images for val, only 1 image for train.*val_fraction=0.1"),
        (["train/1.jpg", "val/1.jpg"], "no class folders"),
        (["1.jpg", "2.jpg"], "root has no class folders: .* in a table .data.root=labels.csv"),
        (
            ["training/a/1.jpg", "test/a/1.jpg"],
            "no images for val, only 1 image for train, 1 for test",
        ),
        (["Train/a/1.jpg", "Test/a/1.jpg"], "no images for val, only 1 image for train"),
        (["train/a/1.jpg", "val/a/1.jpg", "valid/a/1.jpg"], "val and valid are both for val;"),
        (["a/1.jpg", "b/1.jpg"], "val_fraction=0.1 leaves no image for val"),
        (
            ["train/1.tar", "val/1.tar", "dataset.json"],
            "is a packed dataset: read it with data=shards",
        ),
        (["train/a/1.heic", "val/a/1.heic"], r"holds no images; .* in one of \.jpg, .*\.tiff"),
    ],
)
def test_unusable_folder_is_an_error_with_the_reason(
    tmp_path: Path, files: list[str], message: str
) -> None:
    root = _write(tmp_path / "root", files)
    with pytest.raises(DataError, match=message):
        open_source(DataConfig(format="folder", root=str(root)), "val", Path())


@pytest.mark.parametrize("name", ["valid", "validation", "dev", "Val"])
def test_the_folder_for_validation_may_have_another_name_beside_train(
    tmp_path: Path, name: str
) -> None:
    _write(tmp_path, [file.replace("val/", f"{name}/") for file in FILES])
    source = class_folder(tmp_path, "val")
    keys = [source.key(i) for i in range(len(source))]
    assert keys == [f"{tmp_path}/{name}/a/3.jpg", f"{tmp_path}/{name}/b/4.jpg"]
    with pytest.raises(DataError, match=r"val_fraction=0.5: .* has images for val, by the folders"):
        class_folder(tmp_path, "train", val_fraction=0.5)


def test_a_class_may_have_no_images_in_a_split(tmp_path: Path) -> None:
    root = _write(tmp_path, [*FILES, "train/c/1.jpg", "test/a/9.jpg"])
    (root / "val/d").mkdir()
    train, val, test = (class_folder(root, split) for split in ("train", "val", "test"))
    assert train.classes == val.classes == test.classes == ["a", "b", "c", "d"]
    assert [len(train), len(val), len(test)] == [4, 2, 1]


def test_classes_may_have_the_names_of_splits(tmp_path: Path) -> None:
    files = [f"{name}/{number}.jpg" for name in ("valid", "invalid") for number in range(50)]
    assert class_folder(_write(tmp_path, files), "train").classes == ["invalid", "valid"]
