"""The registration of the operators with torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import custom_op
from custom_op.augment_ops import NUMBERS
from custom_op.build import SOURCES
from tests.custom_op.jpegs import encode, picture, tensor

MAX = custom_op.MAX_PIXELS


def sample_inputs() -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    data = tensor(encode(picture(40, 60), restart_interval=2))
    yield "decode_and_crop_jpeg", (data, 3, 5, 20, 30), {"index": None, "max_pixels": MAX}
    plain = tensor(encode(picture(40, 60)))
    index = custom_op.index_jpeg(plain, max_share=1)
    yield "index_jpeg", (plain,), {"max_share": 0.5, "max_pixels": MAX}
    yield "jpeg_headers", ([data, data[:9]],), {"mask_errors": True}
    progressive = tensor(encode(picture(40, 60), progressive=True))
    yield "to_baseline", (progressive,), {"max_pixels": MAX}
    options = {
        "indexes": [index],
        "flip": torch.tensor([[True, False, True]]),
        "augment": torch.tensor([[[[float(NUMBERS["invert"]), *[0.0] * 7]]] * 3]),
        "max_pixels": MAX,
        "mask_errors": False,
        "index_share": 0.5,
    }
    boxes, out = torch.tensor([[[1, 2, 30, 40]] * 3]), torch.zeros(1, 3, 3, 8, 8).byte()
    yield "decode_crop_resize_batch", ([plain], boxes, out), options


NAMES = [name for name, _, _ in sample_inputs()]


@pytest.mark.parametrize("name", NAMES)
def test_operator_passes_opcheck(name: str) -> None:
    custom_op.load()
    _, arguments, options = next(sample for sample in sample_inputs() if sample[0] == name)
    operator = getattr(torch.ops.custom_op, name).default
    torch.library.opcheck(operator, arguments, options)


def test_traced_crop_has_the_shape_and_strides_of_a_real_crop() -> None:
    data = tensor(encode(picture(40, 60)))
    real = custom_op.decode_and_crop_jpeg(data, 1, 2, 20, 30)
    with torch._subclasses.FakeTensorMode() as mode:
        fake = custom_op.decode_and_crop_jpeg(mode.from_tensor(data), 1, 2, 20, 30)
    assert fake.shape == real.shape and fake.stride() == real.stride()


def test_sources_use_only_calls_of_the_oldest_supported_torch() -> None:
    """Newer headers have more calls, which would fail to compile only on torch 2.11."""
    in_torch_2_11 = {"Tensor", "empty", "new_empty", "narrow", "transpose", "copy_", "from_blob"}
    sources = "".join(path.read_text() for path in SOURCES.rglob("*") if path.is_file())
    used = set(re.findall(r"torch::stable::(\w+)", sources))
    assert "empty" in used and used <= in_torch_2_11
