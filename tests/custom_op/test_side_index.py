"""A side index changes where decoding starts, and no pixel."""

import itertools
import random
from collections import defaultdict
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

import custom_op
from tests.custom_op.jpegs import (
    KINDS,
    Pixels,
    assert_crops_equal,
    decoded,
    encode,
    photograph,
    picture,
    random_box,
    random_picture,
    tensor,
)
from tests.custom_op.test_crop import PAIRS, SPECIALIZED

NONE = torch.empty(0, dtype=torch.uint8)


def dense_index(data: Tensor) -> Tensor:
    """With all entries: the pictures of these tests are small."""
    index = custom_op.index_jpeg(data, max_share=1)
    assert len(index) > 0
    return index


def test_random_crops_with_an_index_equal_the_whole_decode() -> None:
    rng = random.Random(18)
    indexed = 0
    for _ in range(PAIRS // 100):
        quality = rng.choice((rng.randint(1, 100), 75, 100))
        data = tensor(encode(random_picture(rng), rng.choice((*SPECIALIZED, "4:1:1")), quality))
        index = custom_op.index_jpeg(data, max_share=rng.choice((0.02, 0.1, 1)))
        indexed += len(index) > 0
        assert_crops_equal(data, decoded(data), rng, 20, index)
    assert indexed > PAIRS // 300


def test_an_index_reads_only_bytes_near_the_crop() -> None:
    """Bytes before the crop are replaced, and nobody notices: only a few of them are compared."""
    data = tensor(encode(picture(400, 400), "4:2:0", 90))
    index = dense_index(data)
    expected = custom_op.decode_and_crop_jpeg(data, 300, 300, 50, 50)
    spoiled = data.clone()
    start, eighth = len(data) // 4, len(data) // 8
    spoiled[start + eighth // 4 : start + eighth // 2] = 0
    found = custom_op.decode_and_crop_jpeg(spoiled, 300, 300, 50, 50, index=index)
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(encode(picture(60, 90), **KINDS["progressive"]), id="progressive"),
        pytest.param(encode(picture(60, 90), "grey", progressive=1), id="grey progressive"),
        pytest.param(encode(picture(60, 90), restart_interval=2), id="restart markers"),
        pytest.param(encode(picture(200, 200))[:6000], id="damaged"),
        pytest.param(encode(picture(64, 64)), id="too small for an index of its share"),
    ],
)
def test_a_file_that_needs_or_can_have_no_index_gets_an_empty_one(data: bytes) -> None:
    assert len(custom_op.index_jpeg(tensor(data))) == 0


DATA = encode(picture(200, 200))
HALF = len(DATA) // 2
CHANGED = {
    "other file": encode(picture(200, 200, seed=9), quality=80),
    # A value of the first quantization table.
    "other tables": DATA[:30] + bytes([DATA[30] + 1]) + DATA[31:],
    # Same size, same header; the second half of the scan is from another place.
    "rotated scan": DATA[:HALF] + DATA[-102:-2] + DATA[HALF:-102] + DATA[-2:],
    "progressive": encode(picture(200, 200), progressive=1),
    "restart markers": encode(picture(200, 200), restart_interval=2),
}


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("data", CHANGED.values(), ids=CHANGED)
def test_a_changed_file_decodes_as_without_its_index_which_is_stale(
    data: bytes, views: int
) -> None:
    boxes = torch.tensor([random_box(random.Random(i), 200, 200) for i in range(50)])
    boxes = boxes.view(-1, views, 4)
    files, indexes = [tensor(data)] * len(boxes), [dense_index(tensor(DATA))] * len(boxes)
    decode = partial(custom_op.decode_crop_resize_batch, files, boxes, 16, mask_errors=True)
    plain, given = decode(), decode(indexes=indexes)
    assert torch.equal(given.images, plain.images) and torch.equal(given.failed, plain.failed)
    assert torch.equal(given.stale, ~given.failed) and not plain.stale.any()


def stale_indexes(files: list[Tensor], indexes: list[Tensor], boxes: Tensor) -> list[bool]:
    batch = custom_op.decode_crop_resize_batch(files, boxes, 16, indexes=indexes, mask_errors=True)
    stale: list[bool] = batch.stale.tolist()
    return stale


def test_only_an_index_that_does_not_fit_an_image_that_decodes_is_stale() -> None:
    data, index = tensor(DATA), dense_index(tensor(DATA))
    files = [data, data, data, torch.zeros(50, dtype=torch.uint8)]
    boxes = torch.tensor([[100, 100, 50, 50]]).repeat(len(files), 1)
    expected = [False, False, True, False]
    assert stale_indexes(files, [index, NONE, index[:-1], index], boxes) == expected


def changed_between(data: Tensor) -> Tensor:
    """The middle of the scan's data, except for what the fingerprint covers."""
    changed = data.clone()
    begin = bytes(data.numpy()).index(b"\xff\xda") + 14
    eighth = (len(data) - begin) // 8
    changed[begin + 4 * eighth + 32 : begin + 5 * eighth - 32] = 1
    return changed


def test_an_index_is_also_stale_where_only_the_data_at_its_entries_differs() -> None:
    data, index = tensor(DATA), dense_index(tensor(DATA))
    changed = changed_between(data)
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


def test_a_damaged_index_changes_no_pixel() -> None:
    rng = random.Random(3)
    data = tensor(encode(picture(100, 100), "4:2:2"))
    index, whole = dense_index(data), decoded(data)
    wrong = [index[:20], index[:-1], torch.cat([index, torch.zeros_like(index[:1])]), NONE, data]
    for _ in range(500):
        wrong.append(index.clone())
        for _ in range(rng.randint(1, 4)):
            wrong[-1][rng.randrange(len(index))] = rng.randrange(256)
    for damaged in wrong:
        assert_crops_equal(data, whole, rng, 1, damaged)


@pytest.mark.parametrize("sampling", [*SPECIALIZED, "4:1:1", "uneven"])
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


def test_an_index_made_while_crops_are_decoded_is_that_of_the_file() -> None:
    rng = random.Random(4)
    whole = {sampling: picture(rng.randint(120, 300), 400) for sampling in (*SPECIALIZED, "uneven")}
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
    index = custom_op.index_jpeg(data)
    marked = tensor(encode(picture(200, 200), "4:2:0", 90, restart_interval=2))
    damaged = torch.cat([data[:-3000], data[-1000:]])
    files = [data, data, other, marked, damaged, data[:2000], NONE]
    boxes = torch.tensor([[10, 10, 50, 50]]).repeat(len(files), 1)
    indexes = [NONE, index, index, NONE, NONE, NONE, NONE]
    made = custom_op.decode_crop_resize_batch(
        files, boxes, 8, indexes=indexes, mask_errors=True, make_indexes=True
    ).new_indexes
    assert torch.equal(made[0], index)
    assert torch.equal(made[2], custom_op.index_jpeg(other))
    assert [len(new) for new in made[1:2] + made[3:]] == [0] * 5
