"""Your own source by its dotted path: project/sources.py, and what is wrong with a source."""

import pickle
from pathlib import Path

import pytest

from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import DataConfig
from entry_point.data.errors import picklable
from entry_point.data.loader import open_source
from entry_point.data.sources.dataset import open_dataset, require_shared_classes
from entry_point.data.sources.source import read_image
from entry_point.data.sources.splits import WHOLE
from entry_point.training.resume import read_identity
from tests.entry_point.training import forked

OWN = "project.sources.by_file_name"


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
        ("not_finite", "its labels must be finite; b.jpg has y=nan"),
        ("named_twice", "its classes must differ; a occurs twice"),
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


@pytest.mark.parametrize(
    ("name", "found"),
    [("Bytes", "bytes"), ("Pixels", r"a tensor \(4, 5, 3\) of torch.uint8")],
)
def test_what_read_returns_in_place_of_a_files_bytes_is_named(
    photo_folder: Path, name: str, found: str
) -> None:
    data = DataConfig(format=f"tests.own_sources.{name}", root=str(photo_folder))
    source = open_source(data, "train", photo_folder)
    must = r"read\(\) must return the bytes of an image's file, uint8 \(bytes,\), as .*, not "
    with pytest.raises(ConfigError, match=f"^data.format=tests.own_sources.{name}: {must}{found}"):
        read_image(source, 0)


def test_what_read_returns_is_named_by_a_worker_too() -> None:
    """The error goes from one process to another."""
    error = ConfigError("data.format", "own", "read() must return bytes")
    assert str(pickle.loads(pickle.dumps(picklable(error)))) == str(error)


def test_classes_of_numpy_are_read_from_a_checkpoint_again(
    tmp_path: Path, photo_folder: Path
) -> None:
    job = ["data.format=tests.own_sources.OfNumpy", "trainer.epochs=1"]
    assert forked.run(tmp_path, photo_folder, job) == 0, (tmp_path / "log").read_text()
    (newest,) = (tmp_path / "checkpoints").glob("step-*.pt")
    assert read_identity(newest)["class 1"] == "odd"


def test_the_files_of_all_splits_keep_their_paths(photo_folder: Path) -> None:
    """By which people find them in what `predict` writes."""
    data = DataConfig(format="tests.own_sources.Bytes", root=str(photo_folder))
    photos = open_dataset(data, photo_folder, for_training=False).source(WHOLE)
    assert Path(photos.name(0)).is_file() and Path(photos.name(len(photos) - 1)).is_file()


def test_splits_that_number_their_classes_differently_are_refused(tmp_path: Path) -> None:
    """Packed, or evaluated together, the images of val would have the labels of other classes."""
    for image in ("train/bus/1.jpg", "train/car/1.jpg", "val/car/1.jpg"):
        file = tmp_path / image
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    own = "tests.own_sources.by_split"
    data = DataConfig(format=own, root=str(tmp_path))
    for splits in (["train", "val"], [WHOLE]):
        dataset = open_dataset(data, tmp_path, for_training=True)
        with pytest.raises(ConfigError, match=r"class 0 of val is 'car', that of .* 'bus'"):
            [dataset.source(split) for split in splits]
    alone = open_dataset(data, tmp_path, for_training=False)
    assert alone.source("val").classes == ["car"]  # to evaluate, which goes by names
    unlabeled = open_dataset(data, tmp_path, for_training=False, labeled=False)
    assert len(unlabeled.source(WHOLE)) == 3  # to predict


@pytest.mark.parametrize(("name", "warns"), [("of_any_split", True), ("Bytes", False)])
def test_a_source_that_does_not_divide_its_images_is_warned_of(
    photo_folder: Path, caplog: pytest.LogCaptureFixture, name: str, warns: bool
) -> None:
    """Validation would measure the images that the model has learned."""
    data = DataConfig(format=f"tests.own_sources.{name}", root=str(photo_folder))
    dataset = open_dataset(data, photo_folder, for_training=True)
    require_shared_classes(dataset.source("train"), dataset.source("val"), dataset.val_from)
    assert ("images of the same names" in caplog.text) is warns
