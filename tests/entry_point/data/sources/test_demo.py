"""The generated demo: the same for all, complete or absent, and told apart by patterns only."""

import io
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score

from entry_point.config.data_config import DataConfig, DemoConfig
from entry_point.data.errors import DataError
from entry_point.data.loader import open_source
from entry_point.data.sources import demo
from entry_point.data.sources.demo import PATTERNS, draw_jpeg, ensure_demo
from tests import forkserver
from tests.failing_disk import without_room

SMALL = DemoConfig(train_images=20, val_images=10)
DRAWN = 90


@pytest.fixture
def thumbnails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures that are drawn faster, where their size does not matter."""
    monkeypatch.setattr(demo, "HEIGHT", 40)
    monkeypatch.setattr(demo, "WIDTH", 60)


@pytest.fixture(scope="module")
def pictures() -> list[bytes]:
    return [draw_jpeg(0, number, number % len(PATTERNS)) for number in range(DRAWN)]


def _files(root: Path) -> dict[str, bytes]:
    files = (file for file in sorted(root.rglob("*")) if file.is_file())
    return {file.relative_to(root).as_posix(): file.read_bytes() for file in files}


def test_demo_images_have_photograph_size_and_coding(pictures: list[bytes]) -> None:
    for data in pictures:
        picture = Image.open(io.BytesIO(data))
        assert isinstance(picture, JpegImageFile) and picture.size == (800, 533)
        assert [layer[1:3] for layer in picture.layer] == [(2, 2), (1, 1), (1, 1)]  # 4:2:0
        assert 60_000 < len(data) < 150_000


def test_mean_color_does_not_predict_the_class(pictures: list[bytes]) -> None:
    colors = []
    for data in pictures:
        picture = Image.open(io.BytesIO(data))
        picture.draft("RGB", (100, 67))
        colors.append(np.asarray(picture).reshape(-1, 3).mean(axis=0) / 255)
    labels = np.arange(DRAWN) % len(PATTERNS)
    accuracy = cross_val_score(LogisticRegression(C=1e4), colors, labels, cv=5).mean()
    assert accuracy < 0.2


@pytest.mark.usefixtures("thumbnails")
def test_same_seed_draws_same_bytes_and_other_seeds_differ() -> None:
    assert draw_jpeg(5, 12, 2) == draw_jpeg(5, 12, 2)
    assert draw_jpeg(5, 12, 2) != draw_jpeg(6, 12, 2)
    assert draw_jpeg(5, 12, 2) != draw_jpeg(5, 22, 2)


@pytest.mark.usefixtures("thumbnails")
def test_demo_dataset_is_a_folder_of_ten_classes_and_no_other_is_taken_for_it(
    tmp_path: Path,
) -> None:
    images = {"train_images": 20, "val_images": 10}
    data = DataConfig(format="demo", root=str(tmp_path / "demo"), kwargs=images)
    train, val = (open_source(data, split, tmp_path) for split in ("train", "val"))
    assert train.classes == val.classes == sorted(PATTERNS)
    assert train.labels.bincount().tolist() == [2] * 10
    assert val.labels.bincount().tolist() == [1] * 10
    with pytest.raises(DataError, match=r"seed': 0.*instead of .*seed': 1"):
        ensure_demo(tmp_path / "demo", DemoConfig(1, 20, 10))


def test_folder_with_other_files_is_left_unchanged(tmp_path: Path) -> None:
    (tmp_path / "mine.jpg").write_bytes(b"mine")
    with pytest.raises(DataError, match="holds no demo dataset"):
        ensure_demo(tmp_path, SMALL)
    assert _files(tmp_path) == {"mine.jpg": b"mine"}


def test_a_picture_for_which_there_is_no_room_is_named(tmp_path: Path) -> None:
    reason = r"File too large: '/.*/0000[0-9]\.jpg'"
    with without_room(), pytest.raises(OSError, match=reason):
        ensure_demo(tmp_path / "demo", SMALL)
    assert not (tmp_path / "demo").exists()


@pytest.mark.usefixtures("thumbnails")
def test_killed_generation_restarts_and_makes_the_same_bytes(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from entry_point.config.data_config import DemoConfig\n"
        "from entry_point.data.sources.demo import ensure_demo\n"
        "ensure_demo(Path(sys.argv[1]), DemoConfig(0, 5000, 10))\n"
    )
    root = tmp_path / "demo"
    process = forkserver.start(["-c", code, str(root)], tmp_path / "log")
    while not (drawn := [*tmp_path.glob(".demo.unfinished/train/*/*.jpg")]):
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.wait()
    drawn[0].with_name("04999.jpg").touch()  # as if it had been killed later
    assert not root.exists()
    ensure_demo(root, SMALL)
    ensure_demo(tmp_path / "undisturbed", SMALL)
    assert _files(root) == _files(tmp_path / "undisturbed")
    assert not list(tmp_path.glob(".*.unfinished"))


@pytest.mark.usefixtures("thumbnails")
def test_a_dataset_is_generated_once(tmp_path: Path) -> None:
    """By the ranks of a host: locks hold between threads as between processes."""

    def generate(_: int) -> int:
        ensure_demo(tmp_path / "demo", SMALL)
        return (tmp_path / "demo/.recipe.json").stat().st_ino

    with ThreadPoolExecutor(2) as ranks:
        assert len({*ranks.map(generate, range(2))}) == 1
