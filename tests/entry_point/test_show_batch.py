"""`make show-batch`: a picture of training samples, without training."""

from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch

from entry_point.config.data_config import DataConfig
from entry_point.job.program import ExitCode
from entry_point.training.models import Normalize
from entry_point.training.results.pictures import caption, to_rgb
from tests.commands import show_batch
from tests.failing_disk import Disk


def show(root: Path, output: Path, *overrides: str) -> int:
    small = ("data=folder", f"data.root={root}", "data.image_size=48", "data.resize=56")
    quiet = ("trainer.device=cpu", "trainer.batch_size=16", "pipeline.num_workers=1")
    return show_batch([*small, *quiet, f"output={output}", *overrides])


def test_the_picture_shows_augmented_and_mixed_samples(
    photo_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, changed = tmp_path / "plain.png", tmp_path / "new" / "changed.png"
    assert show(photo_folder, plain) == 0
    assert capsys.readouterr().out == f"{plain}\n"
    assert show(photo_folder, changed, "augment.name=trivial", "optim.mixup_alpha=1") == 0
    pictures = [np.asarray(matplotlib.image.imread(path))[..., :3] for path in (plain, changed)]
    assert all(picture.std() > 0.1 for picture in pictures)
    assert pictures[0].shape != pictures[1].shape or (pictures[0] != pictures[1]).mean() > 0.1


def test_a_wrong_file_or_setting_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show(tmp_path, tmp_path / "picture.txt") == 2
    message = "must be a file that ends in one of [.png,.jpg,.svg]"
    assert message in capsys.readouterr().err
    assert show(tmp_path, tmp_path / "picture.png", "augment.name=trivail") == 2
    assert "did you mean trivial?" in capsys.readouterr().err
    assert show_batch(["output=s3://bucket/picture.png"]) == 2
    message = "output=s3://bucket/picture.png: must be a path on this machine"
    assert message in capsys.readouterr().err


def test_a_tilde_is_the_home_folder_and_that_of_nobody_is_named(
    photo_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert show(photo_folder, Path("~/samples.png")) == 0
    assert [*tmp_path.iterdir()] == [tmp_path / "samples.png"]
    assert show(Path("~no-such-user/photos"), tmp_path / "picture.png") == 2
    assert "data.root=~no-such-user/photos: no such" in capsys.readouterr().err


def test_a_failing_disk_ends_it_in_one_line_without_a_picture(
    photo_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output, disk = tmp_path / "samples.png", Disk(monkeypatch)
    disk.fails(".jpg")
    assert show(photo_folder, output, "data.max_bad_fraction=1") == ExitCode.FAILED
    assert ".jpg: could not be read (Stale file handle)" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]
    disk.times = 2
    assert show(photo_folder, output) == ExitCode.FINISHED


def test_the_models_input_becomes_the_pixels_of_the_photograph() -> None:
    data, photos = DataConfig(), torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    pictures = to_rgb(Normalize(*data.normalization)(photos), data)
    for picture, photo in zip(pictures, photos, strict=True):
        assert np.array_equal(np.asarray(picture), photo.permute(1, 2, 0))


def test_captions_name_classes_and_shares() -> None:
    names = list("abcd")
    assert caption(torch.tensor(2), names, "class") == names[2]
    assert caption(torch.tensor([0, 0, 1.0, 0]), names, "class") == names[2]
    mixed = caption(torch.tensor([0.3, 0, 0.7, 0]), names, "class")
    assert mixed == f"{names[2]} 0.70, {names[0]} 0.30"
    numbers = caption(torch.tensor([118.25, 385]), ["height", "width"], "numbers")
    assert numbers == "height 118\nwidth 385"
