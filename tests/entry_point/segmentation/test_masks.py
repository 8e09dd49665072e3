"""Masks that follow the crop: as a source, against torchvision."""

import shlex
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from entry_point.config.data_config import DataConfig, PipelineConfig, TableConfig
from entry_point.data.errors import DataError
from entry_point.data.loader import build_loader, open_source
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.plan.crops import Geometry
from entry_point.data.sources.masks import IGNORED, OUTSIDE, MaskSource
from tests.commands import check_dataset, optimize
from tests.entry_point.data.engines.every_engine import ENGINES, Way, pipeline_of
from tests.masked_shapes import CLASSES, write_shapes

CASES, BATCH = 2_000, 100
CENTERED = v2.InterpolationMode.NEAREST_EXACT


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tests must not change it."""
    return write_shapes(tmp_path_factory.mktemp("shapes") / "root", train=24, val=8)


@pytest.fixture
def own(root: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(root, tmp_path / "own"))


def opened(root: Path, split: str = "train", **data: object) -> MaskSource:
    config = DataConfig(format="masks", root=str(root), crop="squash", **data)  # type: ignore[arg-type]
    source = open_source(config, split, Path())
    assert isinstance(source, MaskSource)
    return source


def whole_mask(source: MaskSource, index: int) -> np.ndarray:
    file = source.path(index).replace("/images/", "/masks/").replace(".jpg", ".png")
    return np.asarray(Image.open(file))


def test_masks_are_those_of_torchvision_for_the_same_boxes_and_flips(root: Path) -> None:
    source, rng = opened(root), np.random.default_rng(0)
    for _ in range(CASES // BATCH):
        indices = rng.integers(len(source), size=BATCH)
        masks = [whole_mask(source, int(index)) for index in indices]
        heights, widths = np.array([mask.shape for mask in masks]).T
        tall, wide = rng.integers(1, heights + 1), rng.integers(1, widths + 1)
        top, left = rng.integers(heights - tall + 1), rng.integers(widths - wide + 1)
        boxes, flips = np.stack([top, left, tall, wide], 1), rng.random(BATCH) < 0.5
        side = int(rng.integers(1, 200))
        found = source.targets(indices, Geometry(side, boxes, flips, heights, widths))
        assert found.shape == (BATCH, side, side) and found.dtype == torch.uint8
        for place, mask in enumerate(masks):
            box = boxes[place].tolist()
            image = torch.from_numpy(mask.copy())[None]  # of a Mask, it would shift the pixels
            expected = v2.functional.resized_crop(image, *box, [side, side], CENTERED)
            if flips[place]:
                expected = v2.functional.horizontal_flip(expected)
            assert torch.equal(found[place], expected[0]), (boxes[place], side)


def test_a_mask_is_not_shifted_against_its_image(root: Path) -> None:
    """Its edges lie where those of the image do, and flipping it before or after is the same."""
    source, size = opened(root), 1021  # odd: no pixel is as near as another
    for side in (64, 100, 224, 256):
        for edge in range(300, 320):
            mask = np.zeros((size, size), np.uint8)
            mask[:, edge:] = 1
            boxes = np.array([[0, 0, size, size]])
            sizes = np.array([size])
            source.mask = lambda *_, mask=mask: mask  # type: ignore[method-assign]
            geometry = Geometry(side, boxes, np.zeros(1, bool), sizes, sizes)
            (found,) = source.targets(np.array([0]), geometry)
            assert abs((found[0] == 0).sum() - edge * side / size) <= 0.5
            source.mask = lambda *_, mask=mask: mask[:, ::-1]  # type: ignore[method-assign]
            turned = Geometry(side, boxes, np.ones(1, bool), sizes, sizes)
            assert torch.equal(source.targets(np.array([0]), turned)[0], found)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_gray_values_of_any_depth_are_numbers_of_classes(own: Path, bits: int) -> None:
    """Pillow scales those of 2 and 4 bits, and does not write them."""
    values = np.arange(16, dtype=np.uint8).reshape(4, 4) % min(1 << bits, 4)
    packed = np.zeros((4, 4 * bits // 8 or 1), np.uint8)
    for (row, column), value in np.ndenumerate(values):
        place = column * bits
        packed[row, place // 8] |= value << (8 - bits - place % 8)
    lines = b"".join(b"\0" + bytes(row) for row in packed)
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", 4, 4, bits, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(lines)),
        (b"IEND", b""),
    )
    parts = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    source = opened(own)
    Path(source.mask_file(0)).write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    assert np.array_equal(source.mask(0, 4, 4), values)


def test_a_large_profile_changes_no_number_of_a_mask(own: Path) -> None:
    """Pillow refuses profiles of more than 1 MiB."""
    source = opened(own)
    file = Path(source.mask_file(0))
    with Image.open(file) as mask:
        mask.load()
    before = source.mask(0, mask.height, mask.width)
    mask.save(file, icc_profile=bytes(2 << 20))
    assert np.array_equal(source.mask(0, mask.height, mask.width), before)


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize(("second", "names"), [(1, 2), (255, 1), (255, 2), (255, 3)])
def test_masks_of_0_and_255_are_not_two_classes(
    own: Path, second: int, names: int, split: str
) -> None:
    """Nor to evaluate with."""
    text = "\ufeff" + "\n".join(["ground", "shape", "edge"][:names])
    (own / "classes.txt").write_text(text, encoding="utf-8")
    for file in (own / split / "masks").rglob("*.png"):
        mask = np.array(Image.open(file))
        Image.fromarray(np.where(mask % 255, second, mask).astype(np.uint8)).save(file)
    if second == 1:
        assert opened(own, split).classes == ["ground", "shape"]
        return
    with pytest.raises(DataError, match=r"hold only 0 and 255, .* the second class .* as 1"):
        opened(own, split)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_batch_has_the_masks_of_its_samples_in_every_engine(root: Path, engine: Way) -> None:
    """The shapes are bright and the ground is dark, so that pixels tell what the mask must be."""
    source = opened(root, image_size=48, scale=[0.3, 1.0])
    config = DataConfig(format="masks", root=str(root), image_size=48, crop="squash", views=2)
    spec = LoaderSpec(config, pipeline_of(engine, num_workers=1), "train", 8, seed=1)
    loader = build_loader(source, spec)
    for batch in loader.epoch(0):
        assert batch.labels.shape == (16, 48, 48)
        known = batch.labels != IGNORED
        is_bright = batch.images.amax(1) > 95
        agree = (is_bright == (batch.labels > 0))[known]
        assert agree.float().mean() > 0.95
    loader.close()


@pytest.mark.parametrize("split", ["train", "val"])
def test_masks_to_evaluate_with_have_the_pixels_of_their_images(root: Path, split: str) -> None:
    """Also those of the train split."""
    source = opened(root, split)
    config = DataConfig(format="masks", root=str(root), image_size=32, crop="squash")
    pipeline = PipelineConfig("workers", "pillow", num_workers=0)
    count = 0
    for batch in build_loader(source, LoaderSpec(config, pipeline, "val", 8, seed=1)).epoch(0):
        for index, one in zip(batch.indices.tolist(), batch.labels.numpy(), strict=True):
            mask = whole_mask(source, index)
            assert np.array_equal(one[: mask.shape[0], : mask.shape[1]], mask)
            outside = one.size - mask.size
            assert (one == OUTSIDE).sum() == outside
            count += 1
    assert count == len(source)


def write_table(root: Path, table: Path, header: str) -> Path:
    rows = [header]
    for split in ("train", "val"):
        for file in sorted((root / split / "images" / "all").iterdir()):
            name = f"{split}/images/all/{file.name}"
            mask = name.replace("images", "masks").replace(".jpg", ".png")
            rows.append(f"{name},{mask},{split}")
    table.write_text("\n".join(rows))
    return table


def test_a_table_names_images_and_masks(root: Path, tmp_path: Path) -> None:
    table = write_table(root, tmp_path / "table.csv", "photo,truth,split")
    shutil.copy(root / "classes.txt", tmp_path)
    columns = TableConfig(path="photo", labels=["truth"])
    for split in ("train", "val"):
        found = opened(table, split, images=str(root), table=columns)
        expected = opened(root, split)
        assert [found.path(i) for i in range(len(found))] == [
            expected.path(i) for i in range(len(expected))
        ]
        assert found.classes == expected.classes == CLASSES
        sizes = [whole_mask(expected, i).shape for i in range(len(expected))]
        for i, size in enumerate(sizes):
            assert np.array_equal(found.mask(i, *size), whole_mask(expected, i))


MASK = "train/masks/all/3.png"


def spoil(file: Path) -> None:
    """Put a class into a mask that there is not."""
    mask = np.array(Image.open(file))
    mask[5, 5] = 9
    Image.fromarray(mask).save(file)


WRONG = {
    "has pixels of 9, but classes.txt names the classes 0 to 3; 255 means ignore": spoil,
    "it has the mode RGB": lambda file: Image.new("RGB", (50, 50)).save(file),
    "is 50x40 pixels, but its image is ": lambda file: Image.new("L", (50, 40)).save(file),
    "must be a PNG with one number of at most 8 bits per pixel, the class; it is no PNG": (
        lambda file: Image.new("L", (50, 50)).save(file, "TIFF")
    ),
    "cannot be read as a mask": lambda file: file.write_bytes(file.read_bytes()[:60]),
}


@pytest.mark.parametrize("message", WRONG)
def test_a_mask_that_cannot_be_used_is_named(own: Path, message: str) -> None:
    WRONG[message](own / MASK)
    source = opened(own)
    index = next(i for i in range(len(source)) if source.path(i).endswith("all/3.jpg"))
    height, width = whole_size(source, index)
    geometry = Geometry(
        8, np.array([[0, 0, 8, 8]]), np.zeros(1, bool), np.array([height]), np.array([width])
    )
    with pytest.raises(DataError) as error:
        source.targets(np.array([index]), geometry)
    assert message in str(error.value) and MASK in str(error.value)


def whole_size(source: MaskSource, index: int) -> tuple[int, int]:
    with Image.open(source.path(index)) as image:
        return image.height, image.width


WRONG_CLASSES = {
    "classes.txt: No such file or directory; it must name the classes of the masks": None,
    "classes.txt: must hold 1 to 254 different names": "a\na\n",
    "classes.txt, line 2: is empty; remove it": "a\n\nb\n",
    "classes.txt, line 2: the name of a class must be UTF-8 without control": "a\nb\a\n",
}


@pytest.mark.parametrize("message", WRONG_CLASSES)
def test_classes_that_cannot_be_used_are_refused(own: Path, message: str) -> None:
    (own / "classes.txt").unlink()
    if (text := WRONG_CLASSES[message]) is not None:
        (own / "classes.txt").write_text(text)
    with pytest.raises(DataError) as error:
        opened(own)
    assert message in str(error.value)


def test_images_and_masks_are_not_taken_for_two_classes(
    root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    message = "holds images and their masks, not classes: train on them with data=masks"
    with pytest.raises(DataError, match=message):
        open_source(DataConfig(format="folder", root=str(root)), "train", Path())
    assert optimize([f"source={root}", f"output={tmp_path / 'packed'}"]) == 2
    assert "such as masks, which are not packed" in capfd.readouterr().err
    table = write_table(root, tmp_path / "table.csv", "path,mask,split")
    with pytest.raises(DataError, match=r"no column of labels: .*; for its masks, set data=masks$"):
        open_source(DataConfig(format="manifest", root=str(table)), "train", Path())


def test_masks_are_checked_with_their_images(own: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        assert check_dataset([f"root={own}"]) == 0
    assert "32 images checked, problems: 0" in caplog.text
    spoil(own / MASK)
    damaged = own / "val/images/all/2.jpg"
    damaged.write_bytes(damaged.read_bytes()[:300])
    assert check_dataset([f"root={own}"]) == 1
    assert "3.png: has pixels of 9" in caplog.text and "2.jpg: the JPEG is trun" in caplog.text


@pytest.mark.parametrize("columns", [None, ("photo", "truth")])
def test_a_table_of_masks_is_checked_and_its_missing_files_stop_the_job(
    own: Path, caplog: pytest.LogCaptureFixture, columns: tuple[str, str] | None
) -> None:
    header, settings = ",".join([*(columns or ("path", "mask")), "split"]), TableConfig()
    if columns:
        settings = TableConfig(path=columns[0], labels=[columns[1]])
    table = write_table(own, own / "table.csv", header)
    spoil(own / MASK)
    (own / "train/masks/all/5.png").unlink()
    (own / "train/images/all/7.jpg").unlink()
    with pytest.raises(DataError) as error:
        opened(table, table=settings)
    text = str(error.value)
    assert text.startswith("1 of 32 files are missing: train/images/all/7.jpg (row 22); ")
    assert f"; {own}/train/images/all holds 6.jpg, 8.jpg, 9.jpg and 20 more; correct" in text
    assert "data.max_bad_fraction=0.1;" in text
    with caplog.at_level("INFO"):
        assert check_dataset(shlex.split(text.split('ARGS="')[1].split('"')[0])) == 1
    assert "32 images checked, problems: 3" in caplog.text
    assert "3.png: has pixels of 9" in caplog.text and "5.png: cannot be read" in caplog.text
    with pytest.raises(
        DataError, match=r"1 of 32 files are missing: train/masks/all/5.png"
    ) as error:
        opened(table, table=settings, max_bad_fraction=0.5)
    assert "max_bad_fraction" not in str(error.value)
    assert "1 of 32 files are missing: train/images/all/7.jpg" in caplog.text
