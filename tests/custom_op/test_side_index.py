"""A side index changes where decoding starts, and no pixel."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import custom_op
from tests.custom_op.jpegs import Pixels, decoded, encode, photograph, picture, tensor
from tests.custom_op.test_crop import random_box
from tests.custom_op.test_own_decoder import PAIRS, SAMPLINGS, random_picture


def dense_index(data: Tensor) -> Tensor:
    """With all entries: the pictures of these tests are small."""
    index = custom_op.index_jpeg(data, max_share=1)
    assert len(index) > 0
    return index


def crop(data: Tensor, box: tuple[int, int, int, int], index: Tensor | None = None) -> Tensor:
    return custom_op.decode_and_crop_jpeg(data, *box, index=index)


def test_random_crops_with_an_index_equal_the_whole_decode() -> None:
    rng = random.Random(18)
    indexed = 0
    for _ in range(PAIRS // 100):
        quality = rng.choice((rng.randint(1, 100), 75, 100))
        data = tensor(encode(random_picture(rng), rng.choice((*SAMPLINGS, "4:1:1")), quality))
        index = custom_op.index_jpeg(data, max_share=rng.choice((0.02, 0.1, 1)))
        indexed += len(index) > 0
        whole = decoded(data)
        for _ in range(20):
            top, left, height, width = box = random_box(rng, *whole.shape[1:])
            expected = whole[:, top : top + height, left : left + width]
            assert torch.equal(crop(data, box, index), expected)
    assert indexed > PAIRS // 300


def test_a_batch_takes_indexes_and_empty_ones() -> None:
    rng = random.Random(1)
    files = [tensor(encode(picture(90, 70 + 30 * i, i), "4:2:0")) for i in range(3)]
    indexes = [dense_index(files[0]), torch.empty(0, dtype=torch.uint8)]
    indexes.append(dense_index(files[2]))
    boxes = torch.tensor([random_box(rng, *custom_op.jpeg_size(data)) for data in files])
    expected = custom_op.decode_crop_resize_batch(files, boxes, 32).images
    found = custom_op.decode_crop_resize_batch(files, boxes, 32, indexes=indexes).images
    assert torch.equal(found, expected)
    with pytest.raises(custom_op.JpegError, match="one index for every image"):
        custom_op.decode_crop_resize_batch(files, boxes, 32, indexes=indexes[:2])


def test_an_index_reads_only_bytes_near_the_crop() -> None:
    """Bytes before the crop are replaced, and nobody notices: only a few of them are compared."""
    data = tensor(encode(picture(400, 400), "4:2:0", 90))
    index = dense_index(data)
    expected = crop(data, (300, 300, 50, 50))
    spoiled = data.clone()
    start, eighth = len(data) // 4, len(data) // 8
    spoiled[start + eighth // 4 : start + eighth // 2] = 0
    assert torch.equal(crop(spoiled, (300, 300, 50, 50), index), expected)


@pytest.mark.parametrize("kind", ["progressive", "restart markers", "grey progressive"])
def test_a_file_that_needs_or_can_have_no_index_gets_an_empty_one(kind: str) -> None:
    options: Any = {"restart_interval": 2} if kind == "restart markers" else {"progressive": 1}
    sampling = "grey" if kind.startswith("grey") else "4:2:0"
    data = tensor(encode(picture(60, 90), sampling, **options))
    assert len(custom_op.index_jpeg(data)) == 0


def test_a_damaged_file_gets_an_empty_index() -> None:
    data = tensor(encode(picture(200, 200), "4:2:0"))
    assert len(custom_op.index_jpeg(data[: len(data) // 2])) == 0


def other_file(_: Tensor) -> Tensor:
    return tensor(encode(picture(200, 200, seed=9), "4:2:0", 80))


def other_tables(data: Tensor) -> Tensor:
    changed = data.clone()
    changed[30] += 1  # in the first quantization table
    return changed


def rotated_scan(data: Tensor) -> Tensor:
    """Same size, same header; the second half of the scan is from another place."""
    half = len(data) // 2
    changed = data.clone()
    changed[half:-2] = data[half:-2].roll(100)
    return changed


@pytest.mark.parametrize("change", [other_file, other_tables, rotated_scan])
def test_a_changed_file_decodes_as_without_an_index(change: Callable[[Tensor], Tensor]) -> None:
    data = tensor(encode(picture(200, 200), "4:2:0"))
    index = dense_index(data)
    changed = change(data)
    boxes = [random_box(random.Random(i), 200, 200) for i in range(50)]

    def outcome(box: tuple[int, int, int, int], index: Tensor | None) -> bytes | str:
        try:
            return crop(changed, box, index).numpy().tobytes()
        except custom_op.JpegError as error:
            return str(error)

    assert [outcome(box, index) for box in boxes] == [outcome(box, None) for box in boxes]


def stale_indexes(files: list[Tensor], indexes: list[Tensor], boxes: Tensor) -> list[bool]:
    batch = custom_op.decode_crop_resize_batch(files, boxes, 16, indexes=indexes, mask_errors=True)
    stale: list[bool] = batch.stale.tolist()
    return stale


def test_a_batch_tells_whose_indexes_are_those_of_other_files() -> None:
    data = tensor(encode(picture(200, 200), "4:2:0"))
    index, none = dense_index(data), torch.empty(0, dtype=torch.uint8)
    progressive = tensor(encode(picture(200, 200), "4:2:0", progressive=1))
    marked = tensor(encode(picture(200, 200), "4:2:0", restart_interval=2))
    changed = [other_file(data), other_tables(data), progressive, marked]
    damaged = torch.zeros(50, dtype=torch.uint8)
    files = [data, data, *changed, data, damaged]
    indexes = [index, none, index, index, index, index, index[:-1], index]
    boxes = torch.tensor([[100, 100, 50, 50]]).repeat(len(files), 1)
    expected = [False, False, True, True, True, True, True, False]
    assert stale_indexes(files, indexes, boxes) == expected
    several = boxes[:, None].repeat(1, 2, 1)
    assert stale_indexes(files, indexes, several) == expected


def changed_between(data: Tensor) -> Tensor:
    """The middle of the scan's data, except for what the fingerprint covers."""
    changed = data.clone()
    begin = bytes(data.numpy()).index(b"\xff\xda") + 14
    eighth = (len(data) - begin) // 8
    changed[begin + 4 * eighth + 32 : begin + 5 * eighth - 32] = 1
    return changed


def test_an_index_is_also_stale_where_only_the_data_at_its_entries_differs() -> None:
    data = tensor(encode(picture(200, 200), "4:2:0"))
    index, changed = dense_index(data), changed_between(data)
    first, below = torch.tensor([[0, 0, 16, 16]]), torch.tensor([[114, 0, 16, 16]])
    assert stale_indexes([changed], [index], first) == [False]
    assert stale_indexes([changed], [index], below) == [True]
    assert stale_indexes([data], [index], below) == [False]


def plain_page(rng: random.Random, side: int, photo: Pixels) -> Pixels:
    """Mostly one color: files of such pages differ in few bytes and often have the same size."""
    page = np.full((side, side, 3), rng.choice((0, 255, rng.randrange(256))), np.uint8)
    for _ in range(rng.randint(0, 3)):
        top, left = rng.randrange(side), rng.randrange(side)
        part = page[top : top + rng.randint(1, side // 2), left : left + rng.randint(1, side // 2)]
        shift = rng.randrange(200)
        detail = photo[shift:, shift:][: part.shape[0], : part.shape[1]]
        part[:] = detail if rng.randrange(2) else rng.randrange(256)
    return page


def test_no_index_passes_for_that_of_another_file_of_the_same_size_and_header() -> None:
    """Every index has all its entries, which are compared with less care than the fingerprint."""
    rng, photo = random.Random(7), photograph()
    alike: dict[tuple[int, bytes], list[Tensor]] = defaultdict(list)
    pages = (plain_page(rng, 64, photo) for _ in range(2000))
    files = {encode(page, rng.choice(("4:2:0", "4:4:4"))) for page in pages}
    for data in sorted(files):
        alike[len(data), data[: data.index(b"\xff\xda")]].append(tensor(data))
    pairs = [pair for group in alike.values() for pair in itertools.permutations(group, 2)]
    pairs = rng.sample(pairs, min(len(pairs), PAIRS // 4))
    assert len(pairs) > 2000
    indexes = {
        id(data): custom_op.index_jpeg(data, max_share=1)
        for group in alike.values()
        for data in group
    }
    pairs = [(old, new) for old, new in pairs if len(indexes[id(old)])]
    old = [indexes[id(data)] for data, _ in pairs]
    new = [data for _, data in pairs]
    boxes = torch.tensor([random_box(rng, 64, 64) for _ in pairs])
    assert all(stale_indexes(new, old, boxes))
    given = custom_op.decode_crop_resize_batch(new, boxes, 8, indexes=old).images
    assert torch.equal(given, custom_op.decode_crop_resize_batch(new, boxes, 8).images)


def test_a_truncated_or_longer_index_is_ignored() -> None:
    data = tensor(encode(picture(100, 100), "4:4:4"))
    index = dense_index(data)
    expected = crop(data, (40, 40, 50, 50))
    more = torch.zeros(1, dtype=torch.uint8)
    for wrong in (index[:20], index[:-1], torch.cat([index, more]), index[:0], data):
        assert torch.equal(crop(data, (40, 40, 50, 50), wrong), expected)


def test_random_damage_of_an_index_changes_no_pixel() -> None:
    rng = random.Random(3)
    data = tensor(encode(picture(100, 100), "4:2:2"))
    index, whole = dense_index(data), decoded(data)
    for _ in range(500):
        wrong = index.clone()
        for _ in range(rng.randint(1, 4)):
            wrong[rng.randrange(len(wrong))] = rng.randrange(256)
        top, left, height, width = box = random_box(rng, 100, 100)
        expected = whole[:, top : top + height, left : left + width]
        assert torch.equal(crop(data, box, wrong), expected)


@pytest.mark.parametrize("sampling", [*SAMPLINGS, "4:1:1", "uneven"])
def test_an_index_has_at_most_1_25_percent_of_any_file(sampling: str) -> None:
    shares = []
    for quality in (10, 70, 90, 100):
        for height, width in ((300, 451), (90, 2000)):
            data = tensor(encode(picture(height, width), sampling, quality))
            index = custom_op.index_jpeg(data)
            assert len(index) > 0 or len(data) < 8000
            shares.append(len(index) / len(data))
    assert max(shares) <= 0.0125
    assert sorted(shares)[len(shares) // 2] > 0.006


def test_a_file_too_small_for_an_index_of_its_share_gets_none() -> None:
    assert len(custom_op.index_jpeg(tensor(encode(picture(64, 64))))) == 0


def test_an_index_made_while_crops_are_decoded_is_that_of_the_file() -> None:
    rng = random.Random(4)
    whole = {sampling: picture(rng.randint(120, 300), 400) for sampling in (*SAMPLINGS, "uneven")}
    files = [tensor(encode(pixels, sampling, 90)) for sampling, pixels in whole.items()]
    expected = [custom_op.index_jpeg(data) for data in files]
    assert all(map(len, expected))
    for views in (1, 3):
        boxes = [
            [random_box(rng, *custom_op.jpeg_size(data)) for _ in range(views)] for data in files
        ]
        plain = custom_op.decode_crop_resize_batch(files, torch.tensor(boxes), 32)
        found = custom_op.decode_crop_resize_batch(
            files, torch.tensor(boxes), 32, make_indexes=True
        )
        assert torch.equal(found.images, plain.images) and plain.new_indexes == []
        for new, old in zip(found.new_indexes, expected, strict=True):
            assert torch.equal(new, old)


def test_new_indexes_are_made_of_files_without_one_that_fits() -> None:
    data, other = (tensor(encode(picture(200, 200, seed), "4:2:0", 90)) for seed in range(2))
    index, none = custom_op.index_jpeg(data), torch.empty(0, dtype=torch.uint8)
    marked = tensor(encode(picture(200, 200), "4:2:0", 90, restart_interval=2))
    damaged = torch.cat([data[:-3000], data[-1000:]])
    files = [data, data, other, marked, damaged, data[:2000], none]
    boxes = torch.tensor([[10, 10, 50, 50]]).repeat(len(files), 1)
    indexes = [none, index, index, none, none, none, none]
    made = custom_op.decode_crop_resize_batch(
        files, boxes, 8, indexes=indexes, mask_errors=True, make_indexes=True
    ).new_indexes
    assert torch.equal(made[0], index)
    assert torch.equal(made[2], custom_op.index_jpeg(other))
    assert [len(new) for new in made[1:2] + made[3:]] == [0] * 5


def test_a_batch_without_images_has_no_new_indexes() -> None:
    boxes = torch.empty((0, 4), dtype=torch.int64)
    assert custom_op.decode_crop_resize_batch([], boxes, 8, make_indexes=True).new_indexes == []
