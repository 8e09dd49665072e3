"""Your own source by its dotted path: project/sources.py, and what is wrong with a source."""

import shutil
from pathlib import Path

import pytest

from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import DataConfig
from entry_point.data.loader import open_source

OWN = "project.sources.by_file_name"


@pytest.fixture(scope="module")
def flat(photo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All photographs in one folder, as `cat_train-003.jpg`."""
    folder = tmp_path_factory.mktemp("flat")
    for file in photo_folder.rglob("*.jpg"):
        split, name = file.parts[-3:-1]
        shutil.copy(file, folder / f"{name}_{split}-{file.name}")
    return folder


def test_the_example_of_project_splits_and_labels_by_file_name(flat: Path) -> None:
    data = DataConfig(format=OWN, root=str(flat), kwargs={"val_fraction": 0.25})
    train, val = (open_source(data, split, flat) for split in ("train", "val"))
    assert len(train) + len(val) == 72 and 8 < len(val) < 30
    assert len(train.classes) == 8 and train.classes == val.classes
    for source in (train, val):
        for i in range(len(source)):
            assert Path(source.key(i)).name.startswith(f"{source.classes[int(source.labels[i])]}_")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "without_read",
            "must return a Source; SimpleNamespace is not one",
        ),
        ("empty", "the split train holds no images"),
        ("out_of_range", "its labels must be from 0 to 1, positions in its classes"),
        ("wrong_shape", "its labels must be a tensor of shape (1, 2) and type torch.float32"),
        ("of_no_kind", "its kind must be one of class, labels, numbers"),
        ("absent", "tests.own_sources has no absent"),
    ],
)
def test_a_wrong_source_is_named_with_what_is_wrong(
    tmp_path: Path, name: str, message: str
) -> None:
    data = DataConfig(format=f"tests.own_sources.{name}", root=str(tmp_path))
    with pytest.raises(Exception) as raised:
        open_source(data, "train", tmp_path)
    text = str(raised.value)
    assert text.startswith(f"data.format=tests.own_sources.{name}: ") and message in text
    assert "\n" not in text


def test_a_wrong_keyword_is_named(tmp_path: Path) -> None:
    data = DataConfig(format=OWN, root=str(tmp_path), kwargs={"seperator": "-"})
    with pytest.raises(ConfigError, match=r"data.kwargs.seperator=-: .* did you mean separator\?"):
        open_source(data, "train", tmp_path)
