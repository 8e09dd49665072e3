"""What a file holds besides its pixels damages none of them, and costs little."""

import io
import re
import resource
import struct
import time
import zlib

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

import custom_op
from entry_point.config.packing_config import OptimizeConfig
from entry_point.data.decode.allocation import reused_memory
from entry_point.data.decode.decode import BatchDecoder, OperatorDecoder
from entry_point.data.decode.pillow import PillowDecoder, read_photo
from entry_point.data.metadata import MOST_BLOCKS, UnusableImageError
from entry_point.data.packing.encode import RejectedError, encode_file
from entry_point.data.plan.crops import CropPlan
from entry_point.data.sources.source import Encoded
from tests.entry_point.data.decode.image_files import chunk, file_of, shown, tensor

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 16, 3), dtype=np.uint8)
PHOTO = Image.fromarray(PIXELS)
OVER_A_MIB = 1_200_000


def reason(content: bytes) -> str:
    """Why the image is refused; packing gives the same reason."""
    with pytest.raises(UnusableImageError) as error:
        read_photo(tensor(content))
    if not content.startswith(b"\xff\xd8\xff"):
        with pytest.raises(RejectedError) as rejection:
            encode_file(content, OptimizeConfig())
        assert str(rejection.value) == str(error.value)
    return str(error.value)


def cost(content: bytes) -> float:
    """Seconds of CPU that the header and then the whole image take, whatever comes of it."""
    before = time.process_time()
    PillowDecoder().sizes(Encoded([tensor(content)]))
    try:
        read_photo(tensor(content))
    except UnusableImageError:
        pass
    return time.process_time() - before


# PNG


def with_chunk(added: bytes, late: bool) -> bytes:
    png = file_of(PHOTO, "PNG")
    at = len(png) - 12 if late else 8 + 25  # IEND, IHDR
    return png[:at] + added + png[at:]


LARGE_TEXT = zlib.compress(b"y" * OVER_A_MIB)
CHUNKS = {
    "icc": chunk(b"iCCP", b"profile\0\0" + zlib.compress(bytes(OVER_A_MIB))),
    "xmp": chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + LARGE_TEXT),
    "comment": chunk(b"zTXt", b"Comment\0\0" + LARGE_TEXT),
    "exif as text": chunk(b"zTXt", b"Raw profile type exif\0\0" + LARGE_TEXT),
    "many texts": chunk(b"tEXt", b"Comment\0" + b"y" * OVER_A_MIB) * 60,
    "wrong checksum": chunk(b"tEXt", b"Comment\0text", crc=0),
    "unknown compression": chunk(b"zTXt", b"Comment\0\7text"),
    "short gamma": chunk(b"gAMA", b"\0"),
    "broken exif": chunk(b"eXIf", b"no TIFF"),
    "animation without frames": chunk(b"acTL", bytes(3)) + chunk(b"fcTL", bytes(2)),
}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("added", CHUNKS.values(), ids=CHUNKS)
def test_no_metadata_of_a_png_damages_its_pixels(added: bytes, late: bool) -> None:
    assert np.array_equal(shown(with_chunk(added, late)), PIXELS)


def test_a_png_is_turned_by_an_xmp_of_any_size() -> None:
    text = PngImagePlugin.PngInfo()
    xmp = "x" * OVER_A_MIB + '<x tiff:Orientation="6"/>'
    text.add_itxt("XML:com.adobe.xmp", xmp, zip=True)
    assert np.array_equal(shown(file_of(PHOTO, "PNG", pnginfo=text)), np.rot90(PIXELS, -1))


# The other formats


def jpeg_with(*segments: tuple[int, bytes]) -> bytes:
    jpeg = file_of(PHOTO, "JPEG")
    added = b"".join(b"\xff%c" % code + struct.pack(">H", len(x) + 2) + x for code, x in segments)
    return jpeg[:2] + added + jpeg[2:]


@pytest.mark.parametrize(
    "segment",
    [
        (0xE1, b"Exif\0\0no TIFF"),
        (0xE1, b"Exif\0\0II*\0\xff\xff\xff\xff"),
        (0xE1, b"http://ns.adobe.com/xap/1.0/\0" + b'<x tiff:Orientation="6"/>'),
        (0xE2, b"MPF\0no TIFF"),
    ],
)
def test_broken_metadata_of_a_jpeg_changes_no_pixel(segment: tuple[int, bytes]) -> None:
    found, expected = jpeg_with(segment), file_of(PHOTO, "JPEG")
    assert np.array_equal(shown(found), shown(expected))
    crop = custom_op.decode_and_crop_jpeg(tensor(found), 0, 0, 12, 16)
    assert np.array_equal(crop.permute(1, 2, 0).numpy(), shown(found))


def test_the_colors_of_a_jpeg_are_those_that_its_segments_say() -> None:
    """Adobe's says that there is no YCbCr; libjpeg decides so in the operator, too."""
    jpeg = file_of(PHOTO, "JPEG", keep_rgb=True)
    assert jpeg.find(b"Adobe") > 0
    expected = np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"))
    assert np.array_equal(shown(jpeg), expected)
    padded = jpeg[:2] + b"\xff\xfe\0\x04hi" + b"\xff\xff\xff" + jpeg[2:]
    assert np.array_equal(shown(padded), expected)


@pytest.mark.parametrize("exif", [b"no TIFF", b"II*\0\x08\0\0\0\xff\xff"])
def test_broken_exif_of_a_webp_damages_no_pixel(exif: bytes) -> None:
    assert np.array_equal(shown(file_of(PHOTO, "WEBP", lossless=True, exif=exif)), PIXELS)


def tiff(*tags: tuple[int, int, int, int], data: bytes = b"", bits: int = 8) -> bytes:
    """Gray, 8 x 8 pixels of 7 at 8; `data` at 200."""
    plain = {
        256: (4, 1, 8), 257: (4, 1, 8), 258: (3, 1, bits), 259: (3, 1, 1), 262: (3, 1, 1),
        273: (4, 1, 8), 277: (3, 1, 1), 278: (4, 1, 8), 279: (4, 1, 64),
    }  # fmt: skip
    plain |= {tag: (kind, count, value) for tag, kind, count, value in tags}
    entries = b"".join(struct.pack("<HHII", tag, *plain[tag]) for tag in sorted(plain))
    directory = struct.pack("<H", len(plain)) + entries + bytes(4)
    start = b"II*\0" + struct.pack("<I", 200 + len(data)) + bytes([7]) * 192
    return start + data + directory


@pytest.mark.parametrize(
    "tag",
    [
        (34675, 5, 1000, 200),  # ICC as fractions
        (282, 2, 4, 0x41414141),  # the resolution as a text
        (296, 2, 2, 0x4141),
        (700, 1, 1 << 30, 1 << 30),  # XMP beyond the end
        (34665, 4, 1, 1 << 31),  # EXIF beyond the end
        (33723, 7, 4, 0),  # IPTC
    ],
)
def test_no_metadata_of_a_tiff_damages_its_pixels(tag: tuple[int, int, int, int]) -> None:
    assert (shown(tiff(tag, data=bytes(8000))) == 7).all()


def test_a_gif_stays_transparent_behind_any_metadata() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([0, 255, 0, 255, 0, 0])
    image.putpixel((1, 0), 1)
    gif = file_of(image, "GIF", transparency=0)
    at = 13 + (3 << (gif[10] & 7) + 1)
    comments = b"!\xfe" + b"\xff" + b"y" * 255 + b"\3abc\0"
    for added in (comments, comments * 1000):
        assert shown(gif[:at] + added + gif[at:]).tolist() == [[[255] * 3, [255, 0, 0]]]


# What it costs

MANY = MOST_BLOCKS + 1


def hostile_png(kind: bytes, late: bool) -> bytes:
    return with_chunk(chunk(kind, b"") * MANY * 2, late)


@pytest.mark.parametrize(
    "content",
    [
        hostile_png(b"prVt", late=False),
        hostile_png(b"tEXt", late=True),
        hostile_png(b"IDAT", late=False),
        jpeg_with(*[(0xE5, b"")] * MANY),
        b"GIF89a" + bytes(7) + b"!\xfe" + b"\1y" * MANY * 2,
        b"GIF89a" + bytes(7) + b"\0" * MANY * 3,
        tiff((273, 4, 2 * MANY, 8)),
    ],
    ids=["png", "texts behind the pixels", "pixels", "jpeg", "gif", "junk", "strips"],
)
def test_many_blocks_are_refused(content: bytes) -> None:
    assert re.search("more than .* blocks", reason(content))


def test_many_segments_are_refused_by_the_operator() -> None:
    content = tensor(jpeg_with(*[(0xE5, b"")] * MANY))
    with pytest.raises(custom_op.JpegError, match="more than 100000 segments"):
        custom_op.jpeg_size(content)
    assert custom_op.jpeg_headers([content]).tolist() == [[0, 0, 0]]


MB = 1 << 20


@pytest.mark.parametrize(
    "content",
    [
        jpeg_with()[:2] + b"\xff" * (8 * MB) + jpeg_with()[2:],
        jpeg_with()[:2] + b"\0" * (8 * MB) + jpeg_with()[2:],
        tiff((34675, 5, 1 << 20, 200), data=bytes(8 * MB)),
        tiff((320, 5, 1 << 20, 200), data=bytes(8 * MB)),
        b"P6\n" + b"#\n" * (4 * MB) + b"8 8\n255\n" + bytes(192),
        b"P3 2900 2900 255\n" + b"#\n" * (4 * MB),
        with_chunk(chunk(b"zTXt", b"Raw profile type exif\0\0" + LARGE_TEXT) * 1000, late=False),
    ],
    ids=["fill bytes", "junk", "icc", "palette", "comments", "plain ppm", "inflating texts"],
)
def test_megabytes_before_the_first_pixel_take_no_seconds(content: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert cost(content) < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


# PPM and BMP


@pytest.mark.parametrize(
    "start", ["P1 2 2", "P2 2 2 255", "P3 2 2 255", "P5 2 2 15", "P6 2 2 4095"]
)
def test_a_ppm_that_takes_python_a_microsecond_per_value_is_refused(start: str) -> None:
    said = reason(f"{start}\n".encode() + b"0 " * 24)
    assert "PPM in the rare form" in said and "convert it to PNG" in said


def test_a_run_length_encoded_bmp_is_refused() -> None:
    bmp = bytearray(file_of(PHOTO.convert("P"), "BMP"))
    bmp[30:34] = struct.pack("<I", 1)
    assert "bmp_rle" in reason(bytes(bmp))


def test_a_pgm_of_16_bits_is_scaled_to_white() -> None:
    levels = np.array([[0, 32767, 65535]])
    content = b"P5 # by a camera\n3 1\n65535\n" + levels.astype(">u2").tobytes()
    assert shown(content)[..., 0].tolist() == [[0, 127, 255]]


def bmp(opacity: int, states_opacity: bool = True) -> bytes:
    """32 bits per pixel, as Windows' version 4 or version 3 says."""
    masks = struct.pack("<4I", 0xFF0000, 0xFF00, 0xFF, 0xFF000000) if states_opacity else b""
    size, compression = (108, 3) if states_opacity else (40, 0)
    header = struct.pack("<IiiHHIIiiII", size, 2, 1, 1, 32, compression, 8, 0, 0, 0, 0) + masks
    header += bytes(size - len(header))
    start = b"BM" + struct.pack("<IHHI", 14 + size + 8, 0, 0, 14 + size)
    return start + header + bytes((30, 20, 10, opacity)) * 2


def test_a_fourth_byte_of_zeros_is_unused_in_a_bmp_or_tiff() -> None:
    for content in (bmp(0), bmp(0, states_opacity=False), bmp(255)):
        assert shown(content).tolist() == [[[10, 20, 30]] * 2]
        packed = encode_file(content, OptimizeConfig())
        assert packed.suffix == "png" and shown(packed.data).tolist() == [[[10, 20, 30]] * 2]
    assert shown(bmp(128)).tolist() == [[[132, 137, 142]] * 2]
    clear = Image.new("RGBA", (1, 1), (10, 20, 30, 0))
    assert shown(file_of(clear, "PNG")).tolist() == [[[255] * 3]]
    stated = file_of(clear, "TIFF")
    assert shown(stated).tolist() == [[[255] * 3]]
    unstated = stated.replace(struct.pack("<HHI", 338, 3, 1), struct.pack("<HHI", 65000, 3, 1))
    assert shown(unstated).tolist() == [[[10, 20, 30]]]


def test_a_tiff_of_12_bits_is_as_bright_as_one_of_8() -> None:
    packed = np.array([0xFF, 0xF8, 0x00], np.uint8).tobytes() * 16  # 4095, 2048, ...
    content = tiff((273, 4, 1, 200), (257, 4, 1, 4), (279, 4, 1, 48), data=packed, bits=12)
    assert shown(content)[0, :2, 0].tolist() == [255, 128]
    stored = encode_file(content, OptimizeConfig())
    assert stored.note == "12 bits became 8"
    assert shown(stored.data)[0, :2, 0].tolist() == [255, 128]


def claiming(height: int, width: int) -> bytes:
    """A small JPEG whose header says that it has another size."""
    jpeg = file_of(PHOTO, "JPEG")
    at = jpeg.index(b"\xff\xc0") + 5
    return jpeg[:at] + struct.pack(">HH", height, width) + jpeg[at + 4 :]


@pytest.mark.parametrize("decoder", [PillowDecoder(), OperatorDecoder()])
def test_one_limit_of_pixels_holds_for_every_decoder(decoder: BatchDecoder) -> None:
    """The largest photographs of phones are below it."""
    largest, beyond = (Encoded([tensor(claiming(12240, 16320 + x))]) for x in (0, 5000))
    assert np.array(decoder.sizes(largest)).tolist() == [[12240], [16320]]
    plan = CropPlan(16, np.array([[0, 0, 1, 1]]), np.array([False]), None)
    _, damage = decoder.decode(beyond, plan, reused_memory)
    assert re.search(r"more than 250000000 pixels: shrink it", damage[0])


@pytest.mark.parametrize("mode", ["I", "F"])
def test_32_bits_per_pixel_are_refused(mode: str) -> None:
    assert "32 bits per pixel" in reason(file_of(Image.new(mode, (64, 64), 7), "TIFF"))


def test_unknown_compression_is_damage_and_no_crash() -> None:
    assert reason(tiff((259, 3, 1, 9999)))
