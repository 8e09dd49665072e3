"""Bad input raises an error that says what is wrong, and costs neither memory nor time."""

import random
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import custom_op
from tests.custom_op.corpus import odd_files
from tests.custom_op.jpegs import KINDS, encode, markers, offset, picture, tensor

CORPUS = Path(__file__).parents[1] / "fuzz" / "corpus"


def attempt(data: Tensor, *box: int) -> Tensor | None:
    try:
        return custom_op.decode_and_crop_jpeg(data, *box)
    except custom_op.JpegError:
        return None


def replace(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def restarts(data: bytes) -> list[int]:
    """The offsets of the restart markers."""
    return [at for marker, at in markers(data) if 0xD0 <= marker <= 0xD7]


@pytest.fixture(scope="module")
def good() -> bytes:
    return encode(picture(96, 128), restart_interval=2)


def batch_of_one(data: Tensor, max_pixels: int = custom_op.MAX_PIXELS) -> Tensor:
    boxes = torch.tensor([[0, 0, 1, 1]])
    return custom_op.decode_crop_resize_batch([data], boxes, 8, max_pixels=max_pixels).images


LIMITED: dict[str, Callable[..., object]] = {
    "crop": lambda data, **limit: custom_op.decode_and_crop_jpeg(data, 0, 0, 1, 1, **limit),
    "batch": batch_of_one,
    "index": custom_op.index_jpeg,
    "baseline": custom_op.to_baseline,
}
"""The operators that take `max_pixels`."""
EVERY = {**LIMITED, "size": custom_op.jpeg_size}
NO_JPEGS = {
    "empty": b"",
    "one byte": b"\xff",
    "start only": b"\xff\xd8",
    "text": b"PNG" * 50,
    "zeros": bytes(1000),
    "GIF": b"GIF89a..",
    # Pillow refuses it, too.
    "no marker after the start": b"\xff\xd8\x12" + encode(picture(24, 40))[2:],
}


@pytest.mark.parametrize("operator", EVERY.values(), ids=EVERY)
@pytest.mark.parametrize("data", NO_JPEGS.values(), ids=NO_JPEGS)
def test_data_that_is_not_a_jpeg_is_reported_as_such(
    data: bytes, operator: Callable[..., object]
) -> None:
    with pytest.raises(custom_op.JpegError, match=r"not a JPEG: .* FF D8 FF"):
        operator(tensor(data) if data else torch.empty(0, dtype=torch.uint8))


@pytest.mark.parametrize("operator", EVERY.values(), ids=EVERY)
def test_a_header_that_is_cut_off_is_reported_as_such(
    good: bytes, operator: Callable[..., object]
) -> None:
    with pytest.raises(custom_op.JpegError, match="truncated"):
        operator(tensor(good[:100]))


def test_truncated_file_raises_or_gives_the_exact_crop() -> None:
    for kind in ("plain", "restart 3", "progressive"):
        data = encode(picture(40, 56), quality=60, **KINDS[kind])
        crop = custom_op.decode_and_crop_jpeg(tensor(data), 4, 6, 9, 20)
        for end in range(1, len(data)):
            cut = tensor(data[:end])
            got = attempt(cut, 4, 6, 9, 20)
            assert got is None or torch.equal(got, crop), (kind, end)


def test_truncation_inside_the_crop_is_reported_as_such(good: bytes) -> None:
    for data in (good, encode(picture(96, 128)), encode(picture(96, 128), progressive=1)):
        with pytest.raises(custom_op.JpegError, match=r"truncated|premature|Premature"):
            custom_op.decode_and_crop_jpeg(tensor(data[: len(data) // 2]), 0, 0, 96, 128)


@pytest.mark.parametrize("sampling", ["4:4:4", "4:2:0"])
def test_fill_bytes_are_no_end_of_the_image(sampling: str) -> None:
    """libjpeg skips them; what follows may be the file's end, or a zero: then FF is data."""
    unended = encode(picture(40, 56), sampling)[:-2]
    for fill in range(5):
        for rest in (b"", b"\0"):
            data = tensor(unended + b"\xff" * fill + rest)
            with pytest.raises(custom_op.JpegError, match="truncated"):
                custom_op.decode_and_crop_jpeg(data, 0, 0, 40, 56)


@pytest.mark.parametrize(("box", "segment"), [((0, 0, 20, 40), -1), ((70, 100, 20, 20), 5)])
def test_damage_before_or_after_the_crop_has_no_effect(
    good: bytes, box: tuple[int, int, int, int], segment: int
) -> None:
    """Only the segments between restart markers that the crop touches are decoded."""
    crop = custom_op.decode_and_crop_jpeg(tensor(good), *box)
    damaged = replace(good, restarts(good)[segment] + 2, b"\xaa\x55" * 4)
    assert torch.equal(custom_op.decode_and_crop_jpeg(tensor(damaged), *box), crop)


@pytest.mark.parametrize("kind", ["restart 3", "progressive", "separate scans"])
def test_extraneous_bytes_inside_the_scans_are_damage(kind: str) -> None:
    good = encode(picture(70, 101), **KINDS[kind])
    later = [at for marker, at in markers(good) if marker in (0xD1, 0xDA)][-1]
    data = tensor(good[:later] + b"\x12\x34" * 20 + good[later:])
    with pytest.raises(custom_op.JpegError, match=r"extraneous|bad Huffman"):
        custom_op.decode_and_crop_jpeg(data, 0, 0, 70, 101)
    if kind != "restart 3":  # which is baseline already
        with pytest.raises(custom_op.JpegError, match=r"extraneous|bad Huffman"):
            custom_op.to_baseline(data)


@pytest.mark.parametrize("segment", [2, 3])
def test_extra_bytes_at_the_end_of_a_segment_are_damage(good: bytes, segment: int) -> None:
    """Segments of 2 MCUs, 8 MCUs per row: segment 3 is the last one of a row."""
    end = restarts(good)[segment]
    data = tensor(good[:end] + b"\x12\x34" + good[end:])
    with pytest.raises(custom_op.JpegError, match="2 extraneous bytes"):
        custom_op.decode_and_crop_jpeg(data, 0, 0, 96, 128)


@pytest.mark.parametrize("lost", [1, 8])
def test_lost_segments_never_give_wrong_pixels(good: bytes, lost: int) -> None:
    """After eight lost segments the marker numbers are in order; only their count is wrong."""
    data = tensor(good[: restarts(good)[3]] + good[restarts(good)[3 + lost] :])
    expected = custom_op.decode_and_crop_jpeg(tensor(good), 0, 0, 96, 128)
    rng = random.Random(lost)
    for _ in range(60):
        h, w = rng.randint(1, 40), rng.randint(1, 60)
        y, x = rng.randint(0, 96 - h), rng.randint(0, 128 - w)
        got = attempt(data, y, x, h, w)
        assert got is None or torch.equal(got, expected[:, y : y + h, x : x + w])


def test_random_damage_gives_errors_or_what_the_whole_image_shows() -> None:
    rng = random.Random(7)
    for kind in KINDS:
        data = bytearray(encode(picture(48, 64), quality=70, **KINDS[kind]))
        for _ in range(150):
            broken = bytearray(data)
            for _ in range(rng.randint(1, 4)):
                broken[rng.randrange(2, len(broken))] = rng.randrange(256)
            damaged = tensor(bytes(broken))
            try:
                height, width = custom_op.jpeg_size(damaged)
            except custom_op.JpegError:
                continue
            if height * width > 1_000_000:
                continue
            h, w = rng.randint(1, height), rng.randint(1, width)
            y, x = rng.randint(0, height - h), rng.randint(0, width - w)
            whole, crop = attempt(damaged, 0, 0, height, width), attempt(damaged, y, x, h, w)
            if whole is not None:
                assert crop is not None
                assert torch.equal(crop, whole[:, y : y + h, x : x + w])


def test_file_without_tables_is_not_decoded_with_those_of_the_previous_file(good: bytes) -> None:
    first, scan = offset(good, 0xDB), offset(good, 0xC0)
    without_tables = tensor(good[:first] + good[scan:])
    custom_op.decode_and_crop_jpeg(tensor(good), 0, 0, 96, 128)
    with pytest.raises(custom_op.JpegError, match="uantization table"):
        custom_op.decode_and_crop_jpeg(without_tables, 0, 0, 96, 128)


@pytest.mark.parametrize(
    "box",
    [
        (0, 0, 97, 1), (0, 0, 1, 129), (96, 0, 1, 1), (0, 128, 1, 1), (-1, 0, 2, 2),
        (0, -1, 2, 2), (0, 0, 0, 5), (0, 0, 5, 0), (0, 0, -5, 5), (2**62, 0, 2**62, 1),
        (2**63 - 1, 0, 2, 2), (0, 2**63 - 1, 1, 2**63 - 1), (1, 1, 2**63 - 1, 2**63 - 1),
    ],
)  # fmt: skip
def test_box_outside_the_image_is_refused_with_its_numbers(
    good: bytes, box: tuple[int, ...]
) -> None:
    top, left, height, width = box
    numbers = rf"\(top={top}, left={left}, height={height}, width={width}\)"
    error = f"{numbers} is not inside the image of height=96, width=128"
    with pytest.raises(custom_op.JpegError, match=error):
        custom_op.decode_and_crop_jpeg(tensor(good), *box)
    with pytest.raises(custom_op.JpegError, match=error):
        custom_op.decode_crop_resize_batch([tensor(good)], torch.tensor([box]), 8)


def test_invalid_tensor_is_named_in_the_error(good: bytes) -> None:
    data = tensor(good)
    for wrong, error in (
        (data.int(), "data must be a tensor of uint8"),
        (data[None], r"data must have the shape \(n\); got \(1, "),
        (data[::2], "data must be contiguous"),
    ):
        with pytest.raises(custom_op.JpegError, match=error):
            custom_op.decode_and_crop_jpeg(wrong, 0, 0, 1, 1)
    with pytest.raises((custom_op.JpegError, NotImplementedError)):
        custom_op.decode_and_crop_jpeg(data.to("meta"), 0, 0, 1, 1).cpu()


@pytest.mark.parametrize("operator", LIMITED.values(), ids=LIMITED)
def test_images_with_more_than_max_pixels_are_refused(operator: Callable[..., object]) -> None:
    for kind in ("restart 3", "progressive"):
        data = tensor(encode(picture(96, 128), **KINDS[kind]))
        operator(data, max_pixels=96 * 128)
        if (kind, operator) == ("restart 3", custom_op.to_baseline):
            continue  # which is returned as it is
        with pytest.raises(custom_op.JpegError, match="96x128, more than 12287 pixels: shrink it"):
            operator(data, max_pixels=96 * 128 - 1)


@pytest.mark.parametrize("kind", ["plain", "progressive"])
def test_false_size_in_the_header_allocates_no_memory(kind: str) -> None:
    data = encode(picture(48, 64), **KINDS[kind])
    frame = offset(data, 0xC2 if kind == "progressive" else 0xC0)
    huge = replace(data, frame + 5, (13000).to_bytes(2, "big") * 2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(custom_op.JpegError):
        custom_op.decode_and_crop_jpeg(tensor(huge), 12000, 12000, 10, 10)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


def test_12_bit_and_lossless_jpegs_are_not_supported(good: bytes) -> None:
    frame = offset(good, 0xC0)
    extended = replace(replace(good, frame + 1, b"\xc1"), frame + 4, b"\x0c")
    lossless = replace(good, frame + 1, b"\xc3")
    for data in (extended, lossless):
        with pytest.raises(custom_op.JpegError, match=r"[Uu]nsupported|not supported|[Ll]ossless"):
            custom_op.decode_and_crop_jpeg(tensor(data), 0, 0, 1, 1)


def test_thousands_of_scans_are_refused() -> None:
    data = encode(picture(48, 64), separate_scans=True)
    last = [at for marker, at in markers(data) if marker == 0xDA][-1]
    few, many = (tensor(data[:last] + data[last:-2] * scans + data[-2:]) for scans in (90, 500))
    for operator in (LIMITED["crop"], custom_op.to_baseline):
        operator(few)
        with pytest.raises(custom_op.JpegError, match="more than 100 scans"):
            operator(many)


def test_fuzzing_corpus_holds_the_odd_files() -> None:
    made = {data for _, data in odd_files()}
    kept = {path.read_bytes() for path in CORPUS.iterdir()}
    assert len(made & kept) > 0.8 * len(made)  # other libjpeg versions may write other bytes


def test_memory_stays_flat_over_fifty_thousand_decodes() -> None:
    files = [tensor(encode(picture(32, 48), quality=50, **KINDS[kind])) for kind in KINDS]
    files.append(files[0][:200])
    boxes = torch.tensor([[1, 2, 20, 30]] * len(files))

    def decode_all(times: int) -> None:
        for _ in range(times):
            custom_op.decode_crop_resize_batch(files, boxes, 8, mask_errors=True)

    decode_all(1000)
    before = resident_bytes()
    decode_all(50_000 // len(files))
    assert resident_bytes() - before < 4 << 20


def test_memory_of_a_failed_decode_is_freed() -> None:
    """A progressive file takes 2 bytes for every sample: here 106 MB per thread."""
    complete = encode(np.full((4200, 4200, 3), 99, np.uint8), "4:4:4", progressive=1)
    file = tensor(complete[: len(complete) * 2 // 3])
    custom_op.load()
    before = resident_bytes()
    with pytest.raises(custom_op.JpegError, match="truncated"):
        custom_op.decode_and_crop_jpeg(file, 0, 0, 1, 1)
    boxes = torch.tensor([[0, 0, 1, 1]] * 4)
    custom_op.decode_crop_resize_batch([file] * 4, boxes, 8, mask_errors=True)
    assert resident_bytes() - before < 32 << 20


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
