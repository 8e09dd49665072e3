"""The registration of the operators with torch."""

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


SAMPLES = {name: (arguments, options) for name, arguments, options in sample_inputs()}


@pytest.mark.parametrize("name", SAMPLES)
def test_operator_passes_opcheck(name: str) -> None:
    custom_op.load()
    arguments, options = SAMPLES[name]
    torch.library.opcheck(getattr(torch.ops.custom_op, name).default, arguments, options)


def test_sources_use_only_calls_of_the_oldest_supported_torch() -> None:
    """Newer headers have more calls, which would fail to compile only on torch 2.11."""
    in_torch_2_11 = {"Tensor", "empty", "new_empty", "narrow", "transpose", "copy_", "from_blob"}
    sources = "".join(path.read_text() for path in SOURCES.rglob("*") if path.is_file())
    used = set(re.findall(r"torch::stable::(\w+)", sources))
    assert "empty" in used and used <= in_torch_2_11
