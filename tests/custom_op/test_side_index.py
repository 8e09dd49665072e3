"""A side index changes where decoding starts, and no pixel."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import custom_op
from tests.custom_op.jpegs import encode, picture, tensor
from tests.custom_op.test_crop import decoded, random_box
from tests.custom_op.test_own_decoder import PAIRS, SAMPLINGS, random_picture


def crop(data: Tensor, box: tuple[int, int, int, int], index: Tensor | None = None) -> Tensor:
    return custom_op.decode_and_crop_jpeg(data, *box, index=index)


def test_random_crops_with_an_index_equal_the_whole_decode() -> None:
    rng = random.Random(18)
    indexed = 0
    for _ in range(PAIRS // 100):
        quality = rng.choice((rng.randint(1, 100), 75, 100))
        data = tensor(encode(random_picture(rng), rng.choice((*SAMPLINGS, "4:1:1")), quality))
        index = custom_op.index_jpeg(data, rng.choice((1, 2, 5, 10, 50)))
        indexed += len(index) > 0
        whole = decoded(data)
        for _ in range(20):
            top, left, height, width = box = random_box(rng, *whole.shape[1:])
            expected = whole[:, top : top + height, left : left + width]
            assert torch.equal(crop(data, box, index), expected)
    assert indexed == PAIRS // 100


def test_a_batch_takes_indexes_as_a_list_or_packed_and_empty_ones() -> None:
    rng = random.Random(1)
    files = [tensor(encode(picture(90, 70 + 30 * i, i), "4:2:0")) for i in range(3)]
    indexes = [custom_op.index_jpeg(files[0], 1), torch.empty(0, dtype=torch.uint8)]
    indexes.append(custom_op.index_jpeg(files[2], 3))
    boxes = torch.tensor([random_box(rng, *custom_op.jpeg_size(data)) for data in files])
    expected = custom_op.decode_crop_resize_batch(files, boxes, 32)
    lengths = torch.tensor([len(index) for index in indexes])
    packed = (torch.cat(indexes), lengths.cumsum(0) - lengths, lengths)
    for given in (indexes, packed):
        found = custom_op.decode_crop_resize_batch(files, boxes, 32, indexes=given)
        assert torch.equal(found, expected)
    with pytest.raises(custom_op.JpegError, match="one index for every image"):
        custom_op.decode_crop_resize_batch(files, boxes, 32, indexes=indexes[:2])


def test_an_index_reads_only_bytes_near_the_crop() -> None:
    """Bytes before the crop are replaced, and nobody notices."""
    data = tensor(encode(picture(400, 400), "4:2:0", 90))
    index = custom_op.index_jpeg(data, 5)
    expected = crop(data, (300, 300, 50, 50))
    spoiled = data.clone()
    spoiled[len(data) // 4 : len(data) // 2] = 0
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
    index = custom_op.index_jpeg(data, 3)
    changed = change(data)
    boxes = [random_box(random.Random(i), 200, 200) for i in range(50)]

    def outcome(box: tuple[int, int, int, int], index: Tensor | None) -> bytes | str:
        try:
            return crop(changed, box, index).numpy().tobytes()
        except custom_op.JpegError as error:
            return str(error)

    assert [outcome(box, index) for box in boxes] == [outcome(box, None) for box in boxes]


def stale_indexes(files: list[Tensor], indexes: list[Tensor], boxes: Tensor) -> list[bool]:
    stale = torch.ones(len(files), dtype=torch.bool)
    custom_op.decode_crop_resize_batch_masked(
        files, boxes, 16, indexes=indexes, stale_indexes=stale
    )
    return stale.tolist()


def test_a_batch_tells_whose_indexes_are_those_of_other_files() -> None:
    data = tensor(encode(picture(200, 200), "4:2:0"))
    index, none = custom_op.index_jpeg(data, 3), torch.empty(0, dtype=torch.uint8)
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


def test_an_index_that_fits_the_header_is_stale_where_the_data_differs() -> None:
    data = tensor(encode(picture(200, 200), "4:2:0"))
    index, changed = custom_op.index_jpeg(data, 3), rotated_scan(data)
    first, last = torch.tensor([[0, 0, 16, 16]]), torch.tensor([[180, 180, 20, 20]])
    assert stale_indexes([changed], [index], first) == [False]
    assert stale_indexes([changed], [index], last) == [True]
    assert stale_indexes([data], [index], last) == [False]


def test_stale_indexes_of_another_shape_are_refused() -> None:
    data = tensor(encode(picture(20, 20)))
    boxes = torch.tensor([[0, 0, 9, 9]])
    for wrong in (torch.zeros(2, dtype=torch.bool), torch.zeros(1)):
        with pytest.raises(custom_op.JpegError, match="stale_indexes must"):
            custom_op.decode_crop_resize_batch([data], boxes, 8, stale_indexes=wrong)


@pytest.mark.parametrize("interval", [1, 3, 10, 1000])
def test_an_index_is_told_from_that_of_another_file(interval: int) -> None:
    data = tensor(encode(picture(200, 200), "4:2:0"))
    index = custom_op.index_jpeg(data, interval)
    assert custom_op.is_index_of(data, index)
    wrong = index.clone()
    wrong[-1] ^= 1
    more = torch.zeros(1, dtype=torch.uint8)
    for other in (wrong, index[:-1], index[:5], index[:0], torch.cat([index, more]), data):
        assert not custom_op.is_index_of(data, other)
    for change in (other_file, other_tables, rotated_scan):
        assert not custom_op.is_index_of(change(data), index)


def test_a_truncated_or_longer_index_is_ignored() -> None:
    data = tensor(encode(picture(100, 100), "4:4:4"))
    index = custom_op.index_jpeg(data, 2)
    expected = crop(data, (40, 40, 50, 50))
    more = torch.zeros(1, dtype=torch.uint8)
    for wrong in (index[:20], index[:-1], torch.cat([index, more]), index[:0], data):
        assert torch.equal(crop(data, (40, 40, 50, 50), wrong), expected)


def test_random_damage_of_an_index_changes_no_pixel() -> None:
    rng = random.Random(3)
    data = tensor(encode(picture(100, 100), "4:2:2"))
    index, whole = custom_op.index_jpeg(data, 2), decoded(data)
    for _ in range(500):
        wrong = index.clone()
        for _ in range(rng.randint(1, 4)):
            wrong[rng.randrange(len(wrong))] = rng.randrange(256)
        top, left, height, width = box = random_box(rng, 100, 100)
        expected = whole[:, top : top + height, left : left + width]
        assert torch.equal(crop(data, box, wrong), expected)


@pytest.mark.parametrize("interval", [0, -1, 2**32])
def test_an_interval_out_of_range_is_named(interval: int) -> None:
    with pytest.raises(custom_op.JpegError, match=f"interval must be 1 to .*; got {interval}"):
        custom_op.index_jpeg(tensor(encode(picture(16, 16))), interval)


def test_an_index_of_the_default_interval_is_about_one_percent_of_a_photograph() -> None:
    data = tensor(encode(picture(533, 800), "4:2:0", 90))
    index = custom_op.index_jpeg(data)
    assert 100 < len(index) <= 0.02 * len(data)
