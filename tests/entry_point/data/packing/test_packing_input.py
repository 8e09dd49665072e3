"""Unusual source files: each is packed, or rejected with a reason."""

import io
import logging
import os
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from entry_point.config.data_config import DataConfig
from entry_point.config.packing_config import OptimizeConfig
from entry_point.data.decode import pillow
from entry_point.data.errors import DataError
from entry_point.data.loader import open_source
from entry_point.data.packing.encode import RejectedError, encode
from entry_point.data.sources.folder import Tree
from entry_point.data.sources.source import FileSource
from entry_point.job.program import ExitCode
from tests import commands
from tests.entry_point.data.packing.pack_command import copy, index, pack, rejected, report


@pytest.fixture
def source(photo_folder: Path, tmp_path: Path) -> Path:
    """Two classes of six photographs, to which tests add files."""
    copy(photo_folder / "train/cat", tmp_path / "source/train/cat")
    copy(photo_folder / "train/china", tmp_path / "source/train/china")
    return tmp_path / "source"


@pytest.fixture
def photo(photo_folder: Path) -> Image.Image:
    return Image.open(photo_folder / "train/cat/000.jpg").convert("RGB")


def one(file: Path) -> FileSource:
    return FileSource([file], [0], ["a"])


def test_class_folders_are_packed_whatever_files_lie_beside_them(
    source: Path, tmp_path: Path
) -> None:
    for name in ("backup.tar", "predictions.parquet", "train/old.tar"):
        (source / name).write_bytes(b"x")
    assert pack(source, tmp_path / "packed") == ExitCode.FINISHED
    assert commands.check_dataset([f"root={source}"]) == ExitCode.FINISHED


def _rejection(file: Path, **options: Any) -> str:
    with pytest.raises(RejectedError) as error:
        encode(one(file), 0, OptimizeConfig(**options))
    return str(error.value)


def _pixels(file: Path, **options: Any) -> tuple[np.ndarray, str]:
    _, encoded = encode(one(file), 0, OptimizeConfig(**options))
    return np.asarray(Image.open(io.BytesIO(encoded.data))), encoded.note


def test_files_of_every_kind_are_packed_or_rejected_with_a_reason(
    source: Path, photo: Image.Image, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cat = source / "train/cat"
    for suffix in ("png", "webp", "bmp", "tiff"):
        photo.save(cat / f"photo_{suffix}.{suffix}")
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
    os.mkfifo(cat / "pipe.jpg")
    Path(os.fsdecode(os.fsencode(cat) + b"/caf\xe9.jpg")).write_bytes(cut)
    assert pack(source, tmp_path / "packed") == 0
    split = report(tmp_path / "packed")["splits"]["train"]
    assert "skipping 2 files: 1 .jpg outside of class folders, 1 .txt" in caplog.text
    assert split["how"] == {"indexed": 11, "rewritten": 3, "kept": 2, "converted": 2}
    assert split["classes"] == {"cat": 11, "china": 7}
    assert "cat/caf\\udce9.jpg" in index(tmp_path / "packed")["key"]
    reasons = rejected(tmp_path / "packed")
    assert "truncated" in reasons.pop("cat/cut.jpg")
    assert "not an image in one of the formats JPEG, PNG" in reasons.pop("cat/script.jpg")
    assert reasons == {
        "cat/empty.jpg": "empty file",
        "cat/gone.jpg": "unreadable: No such file or directory",
        "cat/pipe.jpg": "unreadable: is not a regular file",
    }


def test_entries_beside_the_splits_are_named(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy(source / "train", source / "test")
    copy(source / "train", source / "spare")
    with caplog.at_level(logging.WARNING):
        assert pack(source, tmp_path / "packed") == 0
    assert "only the folders of splits are read; ignored: spare" in caplog.text
    assert report(tmp_path / "packed")["splits"].keys() == {"train", "test"}


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
    stored = open_source(
        DataConfig(format="shards", root=str(tmp_path / "packed")), "train", source
    )
    (place,) = [i for i in range(len(stored)) if "cat/half" in stored.key(i)]
    assert bytes(stored.read(place).numpy()) == half


@pytest.mark.parametrize("kind", ["png", "tiff"])
def test_16_bits_become_8_and_keep_their_levels(tmp_path: Path, kind: str) -> None:
    ramp = np.linspace(0, 65535, 256 * 64).astype(np.uint16).reshape(64, 256)
    Image.fromarray(ramp).save(tmp_path / f"ramp.{kind}")
    pixels, note = _pixels(tmp_path / f"ramp.{kind}", convert="jpeg")
    expected = np.rint(ramp / 257)[..., None]
    assert np.abs(pixels.astype(int) - expected).max() <= 4
    assert note == "16 bits became 8"


def test_12_bits_in_16_become_8_where_a_setting_says_so(tmp_path: Path) -> None:
    ramp = np.linspace(0, 4095, 256 * 64).astype(np.uint16).reshape(64, 256)
    ramp[:16] = 65535  # above white
    Image.fromarray(ramp).save(tmp_path / "ramp.png")
    pixels, note = _pixels(tmp_path / "ramp.png", convert="jpeg", data={"gray_bits": 12})
    expected = np.rint(ramp / (4095 / 255)).clip(max=255)[..., None]
    assert np.abs(pixels.astype(int) - expected).max() <= 4
    assert note == "12 bits became 8"


def test_big_endian_16_bits_keep_their_levels(tmp_path: Path) -> None:
    Image.new("I;16B", (64, 64), 257 * 200).save(tmp_path / "big.tiff")
    assert abs(int(_pixels(tmp_path / "big.tiff")[0].mean()) - 200) <= 1


@pytest.mark.parametrize("mode", ["I", "F"])
def test_32_bits_per_pixel_are_rejected(tmp_path: Path, mode: str) -> None:
    Image.new(mode, (64, 64), 7).save(tmp_path / "map.tiff")
    assert "32 bits per pixel" in _rejection(tmp_path / "map.tiff")


def test_the_first_of_several_images_is_packed_and_transparency_becomes_white_with_a_note(
    tmp_path: Path, photo: Image.Image
) -> None:
    for name in ("pages.tiff", "moving.png", "moving.webp"):
        turned = photo.transpose(Image.Transpose.ROTATE_180)
        photo.save(tmp_path / name, save_all=True, append_images=[turned, photo])
        photo.save(tmp_path / "alone.png")
        first, note = _pixels(tmp_path / name, convert="jpeg")
        assert note == "all but the first of several images"
        alone, _ = _pixels(tmp_path / "alone.png", convert="jpeg")
        difference = np.abs(first.astype(int) - alone)
        assert difference.mean() < 3  # WebP loses some
    Image.new("RGBA", (photo.width, photo.height), (255, 0, 0, 0)).save(tmp_path / "alpha.png")
    pixels, note = _pixels(tmp_path / "alpha.png", convert="jpeg")
    assert pixels.shape == (photo.height, photo.width, 3) and int(pixels.min()) >= 254
    assert note == "transparency replaced by white"


@pytest.mark.parametrize("kind", ["png", "webp", "avif"])
def test_small_formats_keep_their_bytes(tmp_path: Path, photo: Image.Image, kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    photo.save(file := tmp_path / f"photo.{kind}", exif=exif)
    size, encoded = encode(one(file), 0, OptimizeConfig())
    assert encoded.data == file.read_bytes() and size == len(encoded.data)
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
    _, encoded = encode(one(file), 0, OptimizeConfig())
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
    _, encoded = encode(one(file), 0, OptimizeConfig(convert=convert))  # type: ignore[arg-type]
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
    photo.save(tmp_path / "pages.tiff", save_all=True, append_images=[photo])
    assert _pixels(tmp_path / "pages.tiff")[1] == "all but the first of several images"


def test_a_damaged_file_of_another_format_is_rejected(tmp_path: Path, photo: Image.Image) -> None:
    for suffix in ("png", "webp", "avif", "tiff"):
        photo.save(file := tmp_path / f"cut.{suffix}")
        file.write_bytes(file.read_bytes()[: file.stat().st_size * 2 // 3])
        assert _rejection(file)


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
    "orientation",
    [(3, 1, b"\0\0\0\0"), (3, 1, b"\x09\0\0\0"), (2, 3, b"up\0\0"), (4, 1, b"\0\0\1\0")],
)
def test_invalid_orientation_counts_as_upright(
    tmp_path: Path, photo: Image.Image, orientation: tuple[int, int, bytes]
) -> None:
    """EXIF type, count and value: 0, 9, a text, 65536."""
    tag = struct.pack("<HHHI4s", 1, 0x0112, *orientation)
    exif = b"Exif\0\0II*\0\x08\0\0\0" + tag + bytes(4)
    photo.save(tmp_path / "turned.png", exif=exif)
    _, encoded = encode(one(tmp_path / "turned.png"), 0, OptimizeConfig())
    assert encoded.orientation == 1


def test_image_above_the_pixel_limit_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pillow, "MOST_PIXELS", 64 * 64)
    Image.new("RGB", (64, 64)).save(tmp_path / "just.png")
    Image.new("RGB", (65, 64)).save(tmp_path / "over.png")
    assert _pixels(tmp_path / "just.png")[0].shape == (64, 64, 3)
    assert _rejection(tmp_path / "over.png") == "65x64: more than 4096 pixels: shrink it"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "no such file or folder"),
        (["."], "must be a folder, or a file that ends in"),
        (["1.jpg"], "holds no dataset, but 1.jpg: it must hold class folders"),
        (["a/1.txt"], "holds no images; their names end in"),
        (["train/a/x.y.jpg", "train/a/x_y.jpg"], "share the key a/x_y"),
        (["train/a/1.jpg", "train/a/1.png", "train/a/1_png.jpg"], "share the key a/1_png"),
        (
            ["train/a/1.jpg", "train/caf\udce9/1.jpg"],
            "caf\\udce9: the name of a class must be",
        ),
    ],
)
def test_unusable_source_is_an_error_with_the_reason(
    tmp_path: Path, files: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in files:
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / name).write_bytes(name.encode("utf-8", "surrogateescape"))
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


@pytest.mark.parametrize("place", ["train/packed", "train/cat/packed", "packed", "link/packed", ""])
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


@pytest.fixture
def nobody() -> Iterator[Path]:
    """A folder with a subfolder `closed` that this process, not root here, cannot read."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        user = os.geteuid()
        (Path(folder) / "closed").mkdir(mode=0o700 if user == 0 else 0)
        (Path(folder) / "source/train/class").mkdir(parents=True)
        (Path(folder) / "source/train/class/photo.jpg").touch()
        if user == 0:
            os.seteuid(65534)
        yield Path(folder)
        os.seteuid(user)
        (Path(folder) / "closed").chmod(0o700)


def test_unwritable_output_is_named(nobody: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pack(nobody / "source", nobody / "packed") == ExitCode.USAGE
    error = capsys.readouterr().err
    assert f"optimize: output={nobody}/packed cannot be written: Permission denied" in error


def test_unlistable_folder_is_named(nobody: Path) -> None:
    with pytest.raises(DataError, match="closed cannot be listed: Permission denied"):
        list(Tree(nobody).files())


@pytest.mark.skipif(not Path("/proc/1").is_dir(), reason="needs Linux")
def test_output_where_no_file_can_be_created_is_named_without_waiting(
    photo_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pack(photo_folder, Path("/proc/self/packed")) == ExitCode.USAGE
    assert "optimize: output=/proc/self/packed cannot be written" in capsys.readouterr().err
