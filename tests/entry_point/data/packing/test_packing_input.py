"""Unusual source files: each is packed, or rejected with a reason."""

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from entry_point.config.packing_config import OptimizeConfig
from entry_point.data.errors import DataError
from entry_point.data.packing.encode import Encoded, RejectedError, encode_file
from entry_point.data.sources.folder import Tree
from entry_point.job.program import ExitCode
from tests.entry_point.data.packing.pack_command import (
    copy,
    index,
    pack,
    rejected,
    report,
    samples,
)


@pytest.fixture
def source(photo_folder: Path, tmp_path: Path) -> Path:
    """Two classes of six photographs, to which tests add files."""
    copy(photo_folder / "train/cat", tmp_path / "source/train/cat")
    copy(photo_folder / "train/china", tmp_path / "source/train/china")
    return tmp_path / "source"


@pytest.fixture
def photo(photo_folder: Path) -> Image.Image:
    return Image.open(photo_folder / "train/cat/000.jpg").convert("RGB")


def _encoded(file: Path, **options: Any) -> Encoded:
    return encode_file(file.read_bytes(), OptimizeConfig(**options))


def _rejection(file: Path, **options: Any) -> str:
    with pytest.raises(RejectedError) as error:
        _encoded(file, **options)
    return str(error.value)


def _pixels(file: Path, **options: Any) -> tuple[np.ndarray, str]:
    encoded = _encoded(file, **options)
    return np.asarray(Image.open(io.BytesIO(encoded.data))), encoded.note


def test_files_of_every_kind_are_packed_or_rejected_with_a_reason(
    source: Path, photo: Image.Image, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cat = source / "train/cat"
    others = ("png", "webp", "bmp", "tiff")
    for suffix in others:
        photo.save(file := cat / f"photo_{suffix}.{suffix}")
        (cat / f"cut_{suffix}.{suffix}").write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    cut = (cat / "001.jpg").read_bytes()
    (source / "train/china/copy.jpg").write_bytes(cut)
    (cat / "000.txt").write_text("words about 000.jpg")
    (cat / "empty.jpg").write_bytes(b"")
    (cat / "cut.jpg").write_bytes(cut[: len(cut) // 2])
    (cat / "script.jpg").write_text("%!PS-Adobe-3.0 EPSF-3.0\n")
    (cat / "gone.jpg").symlink_to("nowhere.jpg")
    (cat / ".hidden.jpg").write_bytes(cut)
    (cat / ".ipynb_checkpoints").mkdir()
    (cat / ".ipynb_checkpoints/000.jpg").write_bytes(cut)
    (source / "train/loose.jpg").write_bytes(cut)
    (source / "backup.tar").write_bytes(b"of another format")
    (source / "predictions.parquet").write_bytes(b"too")
    os.mkfifo(cat / "pipe.jpg")
    Path(os.fsdecode(os.fsencode(cat) + b"/caf\xe9.jpg")).write_bytes(cut)
    assert pack(source, tmp_path / "packed") == 0
    split = report(tmp_path / "packed")["splits"]["train"]
    assert "skipping 2 files: 1 .jpg outside of class folders, 1 .txt" in caplog.text
    assert split["how"] == {"indexed": 11, "rewritten": 3, "kept": 2, "converted": 2}
    assert split["classes"] == {"cat": 11, "china": 7}
    assert "cat/caf\\udce9.jpg" in index(tmp_path / "packed")["key"]
    reasons = rejected(tmp_path / "packed")
    assert all(reasons.pop(f"cat/cut_{suffix}.{suffix}") for suffix in others)
    assert "truncated" in reasons.pop("cat/cut.jpg")
    assert "not an image in one of the formats JPEG, PNG" in reasons.pop("cat/script.jpg")
    assert reasons == {
        "cat/empty.jpg": "empty file",
        "cat/gone.jpg": "unreadable: No such file or directory",
        "cat/pipe.jpg": "unreadable: is not a regular file",
    }


def test_progressive_file_without_its_last_scans_is_kept_unchanged(
    source: Path, photo: Image.Image, tmp_path: Path
) -> None:
    """Decoders smooth over missing scans; a baseline file cannot reproduce that."""
    file = io.BytesIO()
    photo.save(file, "JPEG", progressive=True)
    scans = file.getvalue().split(b"\xff\xda")
    half = b"\xff\xda".join(scans[:2]) + b"\xff\xd9"
    (source / "train/cat/half.jpg").write_bytes(half)
    assert pack(source, tmp_path / "packed") == 0
    split = report(tmp_path / "packed")["splits"]["train"]
    assert split["how"] == {"indexed": 9, "rewritten": 3, "kept": 1}
    assert split["notes"] == {"kept: as a baseline file, the image would have other pixels": 1}
    assert samples(tmp_path / "packed", "train")["cat/half.jpg"][1] == half


@pytest.mark.parametrize(("bits", "settings"), [(16, {}), (12, {"data": {"gray_bits": 12}})])
def test_gray_values_of_16_bits_become_8_and_keep_their_levels(
    tmp_path: Path, bits: int, settings: dict[str, Any]
) -> None:
    white = 2**bits - 1
    ramp = np.linspace(0, white, 256 * 64).astype(np.uint16).reshape(64, 256)
    ramp[:16] = 65535  # of 12 bits, above white
    Image.fromarray(ramp).save(tmp_path / "ramp.png")
    pixels, note = _pixels(tmp_path / "ramp.png", convert="jpeg", **settings)
    expected = np.rint(ramp / (white / 255)).clip(max=255)[..., None]
    assert np.abs(pixels.astype(int) - expected).max() <= 4
    assert note == f"{bits} bits became 8"


@pytest.mark.parametrize("name", ["pages.tiff", "moving.png", "moving.webp"])
def test_the_first_of_several_images_is_packed_with_a_note(
    tmp_path: Path, photo: Image.Image, name: str
) -> None:
    turned = photo.transpose(Image.Transpose.ROTATE_180)
    photo.save(tmp_path / name, save_all=True, append_images=[turned, photo])
    first, note = _pixels(tmp_path / name, convert="jpeg")
    assert note == "all but the first of several images"
    assert np.abs(first.astype(int) - np.asarray(photo)).mean() < 3  # WebP and JPEG lose some


def test_transparency_becomes_white_in_a_jpeg_with_a_note(tmp_path: Path) -> None:
    Image.new("RGBA", (40, 30), (255, 0, 0, 0)).save(tmp_path / "alpha.png")
    pixels, note = _pixels(tmp_path / "alpha.png", convert="jpeg")
    assert pixels.shape == (30, 40, 3) and int(pixels.min()) >= 254
    assert note == "transparency replaced by white"


@pytest.mark.parametrize("kind", ["png", "webp", "avif"])
def test_small_formats_keep_their_bytes(tmp_path: Path, photo: Image.Image, kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    photo.save(file := tmp_path / f"photo.{kind}", exif=exif)
    encoded = _encoded(file)
    assert encoded.data == file.read_bytes()
    assert (encoded.how, encoded.suffix) == ("kept", kind)
    sizes = encoded.height, encoded.width, encoded.orientation
    assert sizes == (photo.height, photo.width, 6)


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        *(("bmp", mode) for mode in ("1", "L", "P", "RGB")),
        *(("gif", mode) for mode in ("L", "P")),
        *(("ppm", mode) for mode in ("L", "RGB")),
        *(("tiff", mode) for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")),
    ],
)
def test_large_formats_become_png_without_loss(tmp_path: Path, kind: str, mode: str) -> None:
    levels = np.random.default_rng(0).integers(0, 65536, (40, 50, 4), dtype=np.uint16)
    if mode == "I;16":
        image = Image.fromarray(levels[..., 0])
    else:
        colors = Image.fromarray((levels >> 8).astype(np.uint8))
        image = colors if mode == "RGBA" else colors.convert("RGB").convert(mode)
    image.save(file := tmp_path / f"image.{kind}")
    encoded = _encoded(file)
    assert (encoded.how, encoded.suffix, encoded.note) == ("converted", "png", "")
    stored, original = Image.open(io.BytesIO(encoded.data)), Image.open(file)
    assert np.array_equal(np.asarray(stored), np.asarray(original))
    assert np.array_equal(np.asarray(stored.convert("RGBA")), np.asarray(original.convert("RGBA")))


@pytest.mark.parametrize("kind", ["tiff", "png", "webp"])
@pytest.mark.parametrize("convert", [None, "jpeg"])
@pytest.mark.parametrize("orientation", [1, 3, 5, 6])
def test_packed_images_stay_upright(
    tmp_path: Path, kind: str, convert: str | None, orientation: int
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    colors = Image.radial_gradient("L").resize((40, 24)).crop((0, 0, 30, 12))
    options: dict[str, Any] = {"lossless": True} if kind == "webp" else {}
    colors.convert("RGB").save(file := tmp_path / f"turned.{kind}", exif=exif, **options)
    encoded = _encoded(file, convert=convert)
    stored = Image.open(io.BytesIO(encoded.data))
    assert (encoded.height, encoded.width) == (stored.height, stored.width)
    expected, found = (
        np.asarray(ImageOps.exif_transpose(each)) for each in (Image.open(file), stored)
    )
    assert found.shape == expected.shape
    assert np.abs(found.astype(int) - expected).max() < 8  # JPEG loses a little


def test_what_a_png_cannot_hold_is_noted(tmp_path: Path, photo: Image.Image) -> None:
    photo.convert("CMYK").save(tmp_path / "print.tiff")
    assert _pixels(tmp_path / "print.tiff")[1] == "CMYK became RGB"


def test_photograph_with_an_embedded_preview_is_shrunk(tmp_path: Path, photo: Image.Image) -> None:
    small = photo.resize((64, 64))
    photo.save(tmp_path / "camera.jpg", "MPO", save_all=True, append_images=[small])
    pixels, _ = _pixels(tmp_path / "camera.jpg", max_side=100)
    assert max(pixels.shape) == 100


def test_image_too_wide_for_jpeg_is_rejected_unless_shrunk(tmp_path: Path) -> None:
    Image.new("RGB", (70_000, 16)).save(tmp_path / "wide.png")
    assert (
        _rejection(tmp_path / "wide.png", convert="jpeg")
        == "70000x16 pixels: a JPEG side has at most 65500, shrink it with max_side"
    )
    assert _pixels(tmp_path / "wide.png", max_side=7000)[0].shape[1] == 7000


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["1.jpg"], "holds no dataset, but 1.jpg: it must hold class folders"),
        (["train/a/x.y.jpg", "train/a/x_y.jpg"], "share the key a/x_y"),
        (["train/a/1.jpg", "train/a/1.png", "train/a/1_png.jpg"], "share the key a/1_png"),
    ],
)
def test_unusable_source_is_an_error_with_the_reason(
    tmp_path: Path, files: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in files:
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / name).touch()
    assert pack(tmp_path / "source", tmp_path / "packed") == ExitCode.USAGE
    assert message in capsys.readouterr().err
    assert not (tmp_path / "packed").exists()


def test_files_that_differ_in_their_suffix_keep_it_in_their_keys(
    source: Path, photo: Image.Image, tmp_path: Path
) -> None:
    photo.save(source / "train/cat/orange.jpg")
    photo.save(source / "train/cat/orange.tiff")
    photo.save(source / "train/cat/apple.tiff")
    assert pack(source, tmp_path / "packed") == 0
    keys = index(tmp_path / "packed")["key"]
    names = {"cat/orange_jpg.jpg", "cat/orange_tiff.png", "cat/apple.png", "cat/000.jpg"}
    assert names <= {*keys}


@pytest.mark.parametrize("place", ["train/packed", "link/packed", ""])
def test_output_inside_the_source_is_refused_and_the_source_stays_as_it_is(
    source: Path, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder in train/ would be a class."""
    (tmp_path / "link").symlink_to(source / "train")
    output = (tmp_path if place.startswith("link") else source) / place
    before = sorted(tmp_path.rglob("*"))
    assert pack(source, output) == ExitCode.USAGE
    assert f"output={output} lies in source={source}" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path) -> None:
    (tmp_path / "closed").touch()
    with pytest.raises(DataError, match=f"{tmp_path}/closed cannot be listed: Not a directory"):
        Tree(tmp_path).at("closed")
