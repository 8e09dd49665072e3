"""The batch operator compared with torch: decode, crop, resize and flip, one view or several."""

import os
import random
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from torch import Tensor

import custom_op
from custom_op import decode_crop_resize_batch
from custom_op.augment_ops import COLUMNS, NUMBERS
from tests.custom_op.augment.torchvision_ops import every_operation
from tests.custom_op.jpegs import (
    KINDS,
    SAMPLINGS,
    encode,
    picture,
    tensor,
    with_exif_orientation,
)

HEIGHT, WIDTH = 120, 170
CHANGELOG = (Path(__file__).parents[2] / "CHANGELOG.md").read_text()


@pytest.fixture(scope="module")
def jpegs() -> list[Tensor]:
    """Images of one size in every sampling, some with restart markers."""
    return [
        tensor(encode(picture(HEIGHT, WIDTH, seed), sampling, 92, restart_interval=seed % 3))
        for seed, sampling in enumerate(SAMPLINGS)
    ]


def boxes_for(count: int, seed: int, height: int = HEIGHT, width: int = WIDTH) -> Tensor:
    rng = random.Random(seed)
    boxes = []
    for _ in range(count):
        h, w = rng.randint(1, height), rng.randint(1, width)
        boxes.append((rng.randint(0, height - h), rng.randint(0, width - w), h, w))
    return torch.tensor(boxes)


def torch_resized(crop: Tensor, size: int) -> Tensor:
    return F.interpolate(crop[None], (size, size), mode="bilinear", antialias=True)[0]


def assert_within_a_level(actual: Tensor, expected: Tensor) -> None:
    assert (actual.int() - expected.int()).abs().max() <= 1


@settings(max_examples=80)
@given(st.integers(0, 2**32), st.integers(1, 130), st.sampled_from(list(SAMPLINGS)))
def test_resizing_matches_torch_within_one_level(seed: int, size: int, sampling: str) -> None:
    jpeg, (box,) = (
        tensor(encode(picture(HEIGHT, WIDTH, seed % 7), sampling, 92)),
        boxes_for(1, seed),
    )
    crop = custom_op.decode_and_crop_jpeg(jpeg, *box.tolist())
    resized = decode_crop_resize_batch([jpeg], box[None], size).images[0]
    assert_within_a_level(resized, torch_resized(crop, size))


def test_resized_black_and_white_noise_matches_torch_within_one_level() -> None:
    """The largest contrast gives the largest rounding differences."""
    noise = (torch.rand(96, 128, 1, generator=torch.manual_seed(5)) > 0.5).byte().mul(255)
    jpeg = tensor(encode(noise.expand(-1, -1, 3).numpy(), "4:4:4", 100))
    for box in boxes_for(60, 3, 96, 128):
        crop = custom_op.decode_and_crop_jpeg(jpeg, *box.tolist())
        for size in (1, 3, 32, 64, 129):
            resized = decode_crop_resize_batch([jpeg], box[None], size).images[0]
            assert_within_a_level(resized, torch_resized(crop, size))


def test_crop_of_the_output_size_is_not_resampled() -> None:
    jpeg = tensor(encode(picture(HEIGHT, WIDTH)))
    actual = decode_crop_resize_batch([jpeg], torch.tensor([[3, 5, 64, 64]]), 64).images
    assert torch.equal(actual[0], custom_op.decode_and_crop_jpeg(jpeg, 3, 5, 64, 64))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_to_box_and_pixels(orientation: int, tmp_path: Path) -> None:
    data = with_exif_orientation(encode(picture(60, 90), "4:4:4", 95), orientation)
    (tmp_path / "image.jpg").write_bytes(data)
    upright = ImageOps.exif_transpose(Image.open(tmp_path / "image.jpg"))
    width, height = upright.size
    box = boxes_for(1, orientation, height, width)
    top, left, h, w = box[0].tolist()
    whole = torch.frombuffer(bytearray(upright.tobytes()), dtype=torch.uint8)
    crop = whole.view(height, width, 3).permute(2, 0, 1)[:, top : top + h, left : left + w]
    expected = torch_resized(crop, 32)
    for flip in (False, True):
        actual = decode_crop_resize_batch([tensor(data)], box, 32, flip=torch.tensor([flip])).images
        assert_within_a_level(actual[0], expected.flip(-1) if flip else expected)


@pytest.mark.parametrize("views", [None, 3])
@pytest.mark.parametrize("augmented", [False, True])
@pytest.mark.parametrize("layout", ["by pixel", "planar"])
def test_layout_does_not_change_the_values(
    jpegs: list[Tensor], layout: str, augmented: bool, views: int | None
) -> None:
    """Also that of a part of a larger tensor, whose other parts stay as they are."""
    shape = (len(jpegs), views) if views else (len(jpegs),)
    boxes = boxes_for(len(jpegs) * (views or 1), 1).view(*shape, 4)
    augment = None
    if augmented:
        augment = torch.zeros(*shape, 2, COLUMNS)
        augment[..., 0, :5] = torch.tensor([NUMBERS["rotate"], 20.0, 0, 9, 9])
        augment[..., 1, 0] = NUMBERS["equalize"]
    larger = torch.full((len(jpegs), (views or 0) + 1, 3, 37, 37), 7, dtype=torch.uint8)
    if layout == "by pixel":
        larger = larger.movedim(-3, -1).contiguous().movedim(-1, -3)
    out = larger[:, 1:] if views else larger[:, 0]
    straight = decode_crop_resize_batch(jpegs, boxes, 37, augment=augment).images
    written = decode_crop_resize_batch(jpegs, boxes, 37, augment=augment, out=out).images
    assert written is out and torch.equal(out, straight)
    assert not views or (larger[:, 0] == 7).all()
    flip = torch.ones(shape, dtype=torch.bool)
    decode_crop_resize_batch(jpegs, boxes, 37, flip=flip, out=out)
    assert torch.equal(out, decode_crop_resize_batch(jpegs, boxes, 37).images.flip(-1))


def test_lines_of_the_changelog_decode_a_batch_in_threads(jpegs: list[Tensor]) -> None:
    """What CHANGELOG.md shows to callers that passed `num_threads`."""
    (lines,) = re.findall(r"```python\n(.*?decode_crop_resize_batch.*?)```", CHANGELOG, re.S)
    assert len(lines.splitlines()) == 3
    many = jpegs * 6
    boxes, out = boxes_for(len(many), 6), torch.empty(len(many), 3, 224, 224, dtype=torch.uint8)
    for threads in (1, 2, 5):
        names = {"jpegs": many, "boxes": boxes, "out": out.zero_(), "threads": threads}
        exec(lines, {**vars(custom_op), "ThreadPoolExecutor": ThreadPoolExecutor, **names})
        assert torch.equal(out, decode_crop_resize_batch(many, boxes, 224).images)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_tuple_of_images_is_what_a_list_of_them_is(jpegs: list[Tensor], count: int) -> None:
    """As of `jpegs, labels = zip(*batch)`, also of two images."""
    boxes = boxes_for(count, 7)
    files = tuple(jpegs[:count])
    indexes = tuple(custom_op.index_jpeg(jpeg, max_share=1) for jpeg in files)
    batch = decode_crop_resize_batch(files, boxes, 30, indexes=indexes).images
    assert torch.equal(batch, decode_crop_resize_batch(jpegs[:count], boxes, 30).images)
    assert custom_op.jpeg_headers(files).tolist() == [[HEIGHT, WIDTH, 1]] * count


def files(draw: random.Random, count: int) -> tuple[list[Tensor], list[Tensor]]:
    """JPEGs of any sampling and coding, some with a side index and some with a damaged end."""
    jpegs, indexes = [], []
    for seed in range(count):
        kind = KINDS[draw.choice(list(KINDS))]
        photo = encode(picture(HEIGHT, WIDTH, seed), draw.choice(list(SAMPLINGS)), 90, **kind)
        jpeg = tensor(photo)
        indexes.append(custom_op.index_jpeg(jpeg, max_share=1))
        jpegs.append(jpeg[: len(jpeg) // 2] if draw.random() < 0.2 else jpeg)
    return jpegs, indexes


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 4))
def test_each_view_is_that_of_a_call_of_its_own(seed: int, count: int, views: int) -> None:
    jpegs, indexes = files(random.Random(seed), count)
    operations, _ = every_operation()[:, 0], torch.manual_seed(seed)
    each: dict[str, Any] = {
        "boxes": boxes_for(count * views, seed).view(count, views, 4),
        "flip": torch.rand(count, views) < 0.5,
        "augment": operations[torch.randint(len(operations), (count, views, 2))],
    }
    options: dict[str, Any] = {"size": 24, "indexes": indexes, "mask_errors": True}
    several, failed, *_ = decode_crop_resize_batch(jpegs, **each, **options)
    assert several.shape == (count, views, 3, 24, 24)
    singles = []
    for view in range(views):
        one = {name: value[:, view].contiguous() for name, value in each.items()}
        singles.append(decode_crop_resize_batch(jpegs, **one, **options))
    assert torch.equal(failed, torch.stack([alone.failed for alone in singles]).any(0))
    for view, alone in enumerate(singles):
        assert torch.equal(several[~failed, view], alone.images[~failed])
    assert not several[failed].any()


def test_a_view_after_a_damaged_one_is_exact() -> None:
    """Damage moves the reader to where it does not belong."""
    whole = tensor(encode(picture(HEIGHT, WIDTH), "4:2:0", 90))
    cut = whole[: len(whole) * 2 // 3].clone()
    damaged, good = [0, 0, HEIGHT, WIDTH], [8, 0, 16, WIDTH]
    boxes = torch.tensor([[damaged, good]])
    failed = decode_crop_resize_batch([cut], boxes, 16, mask_errors=True).failed
    assert failed.tolist() == [True]
    again = decode_crop_resize_batch([cut], boxes[:, [1, 1]].contiguous(), 16).images
    expected = decode_crop_resize_batch([whole], boxes[:, 1].contiguous(), 16).images
    assert torch.equal(again[:, 0], expected) and torch.equal(again[:, 1], expected)


def test_masked_batch_has_zeros_for_damaged_images_and_the_others_unchanged(
    jpegs: list[Tensor],
) -> None:
    boxes = boxes_for(len(jpegs), 9)
    good = decode_crop_resize_batch(jpegs, boxes, 16).images
    # Truncated in the middle: some rows are written before the error occurs.
    boxes[1] = torch.tensor([0, 0, HEIGHT, WIDTH])
    broken = [jpegs[0], jpegs[1][: len(jpegs[1]) // 2], *jpegs[2:]]
    out, failed, *_ = decode_crop_resize_batch(broken, boxes, 16, mask_errors=True)
    assert failed.tolist() == [i == 1 for i in range(len(jpegs))]
    assert out[1].eq(0).all()
    assert torch.equal(out[~failed], good[~failed])


def test_an_error_names_the_image_and_the_view(jpegs: list[Tensor]) -> None:
    boxes = boxes_for(9, 1).view(3, 3, 4)
    cut = [*jpegs[:2], jpegs[2][:200]]
    with pytest.raises(custom_op.JpegError, match=r"^image 2 of the batch: .*truncated"):
        decode_crop_resize_batch(cut, boxes[:, 0].contiguous(), 8)
    boxes[1, 2, 0] = HEIGHT
    with pytest.raises(custom_op.JpegError, match=r"^image 1 of the batch: view 2: crop box"):
        decode_crop_resize_batch(jpegs[:3], boxes, 8)
    with pytest.raises(custom_op.JpegError, match=r"^image 0 of the batch: not a JPEG"):
        decode_crop_resize_batch([torch.zeros(9, dtype=torch.uint8), *jpegs[:2]], boxes, 8)


ONE, TWO = torch.tensor([[0, 0, 8, 8]]), torch.tensor([[[0, 0, 8, 8]] * 2])
NO_BYTES = torch.empty(0, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("boxes", "changes", "error"),
    [
        (ONE, {"size": 0}, "size must be 1"),
        (ONE, {"jpegs": [torch.zeros(9)]}, "every JPEG must be a tensor of uint8"),
        (ONE, {"indexes": [NO_BYTES] * 2}, "one index for every image"),
        (torch.zeros(2, 4).long(), {}, r"boxes must have the shape \(1, 4\)"),
        (torch.zeros(1, 4), {}, "boxes must be a tensor of int64"),
        (ONE, {"flip": torch.zeros(2).bool()}, r"flip must have the shape \(1\); got \(2\)"),
        (ONE, {"out": torch.empty(1, 3, 8, 9).byte()}, "out must have the shape"),
        (ONE, {"out": torch.empty(1, 3, 8, 16).byte()[..., ::2]}, "contiguous or"),
        (ONE, {"out": torch.empty(1, 3, 8, 8).int()}, "out must be a tensor of uint8"),
        (torch.zeros(1, 0, 4).long(), {}, "boxes must have one view or more"),
        (torch.zeros(1, 2, 3).long(), {}, r"must have the shape \(1, 2, 4\)"),
        (TWO, {"flip": torch.zeros(1).bool()}, r"flip must have the shape \(1, 2\)"),
        (TWO, {"flip": torch.zeros(1, 3).bool()}, r"flip must have the shape \(1, 2\)"),
        (TWO, {"augment": torch.zeros(1, 2, COLUMNS)}, r"must have the shape \(1, 2, n, 8\)"),
        (TWO, {"augment": torch.zeros(1, 3, 1, COLUMNS)}, r"must have the shape \(1, 2, n, 8\)"),
        (TWO, {"augment": torch.full((1, 2, 1, COLUMNS), 99.0)}, "operation 0 of image 0, view 0"),
        (TWO, {"out": torch.empty(1, 3, 8, 8).byte()}, "out must have the shape"),
        (TWO, {"out": torch.empty(1, 1, 3, 8, 8).byte().expand(1, 2, 3, 8, 8)}, "contiguous"),
    ],
)
def test_invalid_argument_is_named_in_the_error(
    jpegs: list[Tensor], boxes: Tensor, changes: dict[str, Any], error: str
) -> None:
    arguments: dict[str, Any] = {"jpegs": jpegs[:1], "boxes": boxes, "size": 8, **changes}
    with pytest.raises(custom_op.JpegError, match=error):
        decode_crop_resize_batch(**arguments)


def test_empty_list_gives_an_empty_batch() -> None:
    boxes = torch.empty(0, 4, dtype=torch.int64)
    batch = decode_crop_resize_batch([], boxes, 8, make_indexes=True)
    assert batch.images.shape == (0, 3, 8, 8) and batch.new_indexes == []
    assert custom_op.jpeg_headers([]).shape == (0, 3)


def test_forked_child_decodes(jpegs: list[Tensor]) -> None:
    boxes = boxes_for(len(jpegs), 10)
    expected = decode_crop_resize_batch(jpegs, boxes, 24).images
    child = os.fork()
    if child == 0:
        try:
            same = torch.equal(decode_crop_resize_batch(jpegs, boxes, 24).images, expected)
            os._exit(0 if same else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
