"""The batch operator compared with torch: decode, crop, resize and flip."""

from __future__ import annotations

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
from tests.custom_op.jpegs import (
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


def torch_resized(jpeg: Tensor, box: Tensor, size: int) -> Tensor:
    crop = custom_op.decode_and_crop_jpeg(jpeg, *box.tolist())
    return F.interpolate(crop[None], (size, size), mode="bilinear", antialias=True)[0]


def assert_within_a_level(actual: Tensor, expected: Tensor) -> None:
    assert (actual.int() - expected.int()).abs().max() <= 1


@settings(max_examples=80)
@given(st.integers(0, 2**32), st.integers(1, 130), st.sampled_from(list(SAMPLINGS)))
def test_resizing_matches_torch_within_one_level(seed: int, size: int, sampling: str) -> None:
    jpeg = tensor(encode(picture(HEIGHT, WIDTH, seed % 7), sampling, 92))
    box = boxes_for(1, seed)
    assert_within_a_level(
        decode_crop_resize_batch([jpeg], box, size).images[0], torch_resized(jpeg, box[0], size)
    )


def test_resized_black_and_white_noise_matches_torch_within_one_level() -> None:
    """The largest contrast gives the largest rounding differences."""
    noise = (torch.rand(96, 128, 1, generator=torch.manual_seed(5)) > 0.5).byte().mul(255)
    jpeg = tensor(encode(noise.expand(-1, -1, 3).numpy(), "4:4:4", 100))
    boxes = boxes_for(60, 3, 96, 128)
    for box in boxes:
        for size in (1, 3, 32, 64, 129):
            actual = decode_crop_resize_batch([jpeg], box[None], size).images[0]
            assert_within_a_level(actual, torch_resized(jpeg, box, size))


def test_crop_of_the_output_size_is_not_resampled() -> None:
    jpeg = tensor(encode(picture(HEIGHT, WIDTH)))
    actual = decode_crop_resize_batch([jpeg], torch.tensor([[3, 5, 64, 64]]), 64).images
    assert torch.equal(actual[0], custom_op.decode_and_crop_jpeg(jpeg, 3, 5, 64, 64))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_layout_does_not_change_the_values(
    jpegs: list[Tensor], memory_format: torch.memory_format
) -> None:
    boxes = boxes_for(len(jpegs), 1)
    flip = torch.arange(len(jpegs)) % 2 == 0
    levels = decode_crop_resize_batch(jpegs, boxes, 37, flip=flip).images
    out = torch.empty((len(jpegs), 3, 37, 37), dtype=torch.uint8, memory_format=memory_format)
    assert decode_crop_resize_batch(jpegs, boxes, 37, flip=flip, out=out).images is out
    assert torch.equal(out, levels)


def test_flipping_mirrors_the_result(jpegs: list[Tensor]) -> None:
    boxes = boxes_for(len(jpegs), 4)
    straight = decode_crop_resize_batch(jpegs, boxes, 33).images
    flipped = decode_crop_resize_batch(
        jpegs, boxes, 33, flip=torch.ones(len(jpegs), dtype=torch.bool)
    ).images
    assert torch.equal(flipped, straight.flip(-1))


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
    files, indexes = tuple(jpegs[:count]), tuple(map(custom_op.index_jpeg, jpegs[:count]))
    batch = decode_crop_resize_batch(files, boxes, 30, indexes=indexes).images
    assert torch.equal(batch, decode_crop_resize_batch(jpegs[:count], boxes, 30).images)
    assert custom_op.jpeg_headers(files).tolist() == [[HEIGHT, WIDTH, 1]] * count


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_to_box_and_pixels(orientation: int, tmp_path: Any) -> None:
    data = with_exif_orientation(encode(picture(60, 90), "4:4:4", 95), orientation)
    (tmp_path / "image.jpg").write_bytes(data)
    upright = ImageOps.exif_transpose(Image.open(tmp_path / "image.jpg"))
    width, height = upright.size
    box = boxes_for(1, orientation, height, width)
    top, left, h, w = box[0].tolist()
    whole = torch.frombuffer(bytearray(upright.tobytes()), dtype=torch.uint8)
    crop = whole.view(height, width, 3).permute(2, 0, 1)[:, top : top + h, left : left + w]
    expected = F.interpolate(crop[None], (32, 32), mode="bilinear", antialias=True)
    for flip in (False, True):
        actual = decode_crop_resize_batch([tensor(data)], box, 32, flip=torch.tensor([flip])).images
        assert_within_a_level(actual, expected.flip(-1) if flip else expected)


def test_error_gives_the_position_of_the_image(jpegs: list[Tensor]) -> None:
    broken = [*jpegs[:3], jpegs[3][:200], *jpegs[4:]]
    with pytest.raises(custom_op.JpegError, match=r"image 3 of the batch: .*truncated"):
        decode_crop_resize_batch(broken, boxes_for(len(jpegs), 8), 16)


def test_masked_batch_has_zeros_for_damaged_images_and_the_others_unchanged(
    jpegs: list[Tensor],
) -> None:
    boxes = boxes_for(len(jpegs), 9)
    good = decode_crop_resize_batch(jpegs, boxes, 16).images
    # Truncated in the middle: some rows are written before the error occurs.
    whole = torch.tensor([0, 0, HEIGHT, WIDTH])
    boxes[1] = whole
    broken = [jpegs[0], jpegs[1][: len(jpegs[1]) // 2], *jpegs[2:]]
    out, failed, *_ = decode_crop_resize_batch(broken, boxes, 16, mask_errors=True)
    assert failed.tolist() == [i == 1 for i in range(len(jpegs))]
    assert out[1].eq(0).all()
    assert torch.equal(out[~failed], good[~failed])


def test_box_outside_the_image_is_reported_with_its_numbers(jpegs: list[Tensor]) -> None:
    for box in ([0, 0, HEIGHT + 1, 5], [-1, 0, 5, 5], [2**62, 0, 2**62, 1], [0, 0, 0, 5]):
        with pytest.raises(custom_op.JpegError, match=f"top={box[0]}, left={box[1]}"):
            decode_crop_resize_batch([jpegs[0]], torch.tensor([box]), 8)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"size": 0}, "size must be 1"),
        ({"boxes": torch.zeros(2, 4, dtype=torch.int64)}, r"boxes must have the shape \(1, 4\)"),
        ({"boxes": torch.zeros(1, 4)}, "boxes must be a tensor of int64"),
        ({"flip": torch.zeros(2, dtype=torch.bool)}, r"flip must have the shape \(1\); got \(2\)"),
        ({"out": torch.empty(1, 3, 8, 9, dtype=torch.uint8)}, "out must have the shape"),
        ({"out": torch.empty(1, 3, 8, 16, dtype=torch.uint8)[..., ::2]}, "contiguous or"),
        ({"out": torch.empty(1, 3, 8, 8, dtype=torch.int32)}, "out must be a tensor of uint8"),
    ],
)
def test_invalid_argument_is_named_in_the_error(
    jpegs: list[Tensor], changes: dict[str, Any], error: str
) -> None:
    arguments: dict[str, Any] = {"boxes": torch.tensor([[0, 0, 8, 8]]), "size": 8, **changes}
    with pytest.raises(custom_op.JpegError, match=error):
        decode_crop_resize_batch([jpegs[0]], **arguments)


def test_empty_list_gives_an_empty_batch() -> None:
    out = decode_crop_resize_batch([], torch.empty(0, 4, dtype=torch.int64), 8).images
    assert out.shape == (0, 3, 8, 8)


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
