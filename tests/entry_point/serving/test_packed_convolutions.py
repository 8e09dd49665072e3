"""Convolutions with weights in the CPU's layout: the same answers, without the reordering."""

from collections import Counter

import pytest
import torch
from _pytest.mark.structures import ParameterSet
from torch import nn
from torchvision import models

from entry_point.serving.program import can_pack, fold_batch_norms, pack_convolutions
from tests.entry_point.serving.test_folded_norms import exported


def packable(dtype: torch.dtype) -> ParameterSet:
    reason = f"torch packs no weights for {dtype} on this processor"
    return pytest.param(dtype, marks=pytest.mark.skipif(not can_pack(dtype), reason=reason))


CONVOLUTION = torch.ops.aten.conv2d.default
MODELS = [
    nn.Conv2d(3, 16, 3, padding=1),
    nn.Conv2d(3, 8, (3, 1), stride=(2, 1), padding=(1, 0), bias=False),
    nn.Conv2d(3, 6, 3, groups=3, dilation=2),
    nn.Sequential(nn.Conv2d(3, 32, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, 2, 1, groups=32)),
]


@pytest.mark.parametrize("dtype", [packable(torch.float32), packable(torch.bfloat16)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("model", MODELS, ids=str)
@torch.inference_mode()
def test_the_answers_stay_at_any_batch_size(
    model: nn.Module, layout: torch.memory_format, dtype: torch.dtype
) -> None:
    with torch.inference_mode(False):
        program = exported(model.to(memory_format=layout))
    batches = [torch.rand(count, 3, 9, 9).to(memory_format=layout) for count in (1, 2, 7)]
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        expected = [program(batch) for batch in batches]
        pack_convolutions(program, dtype)
        assert not Counter(node.target for node in program.graph.nodes)[CONVOLUTION]
        for batch, answer in zip(batches, expected, strict=True):
            torch.testing.assert_close(program(batch), answer, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", [packable(torch.float32)])
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "convnext_tiny"])
@torch.inference_mode()
def test_a_whole_networks_answers_stay(name: str, dtype: torch.dtype) -> None:
    with torch.inference_mode(False):
        model = models.get_model(name, num_classes=10).to(memory_format=torch.channels_last)
        program = torch.export.export(model.eval(), (torch.rand(2, 3, 64, 64),)).module()
    fold_batch_norms(program)
    images = torch.rand(2, 3, 64, 64).to(memory_format=torch.channels_last)
    expected = program(images)
    pack_convolutions(program, dtype)
    torch.testing.assert_close(program(images), expected, atol=1e-5, rtol=1e-5)
