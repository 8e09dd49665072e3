"""Batch normalizations folded into convolutions: the same answers from a smaller program."""

from collections import Counter

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from entry_point.serving.program import fold_batch_norms


class Shared(nn.Module):
    """A convolution whose output is used before its normalization, too."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, images: Tensor) -> Tensor:
        found = self.convolution(images)
        return self.norm(found) + found


class NormFirst(nn.Sequential):
    """Nothing to fold into."""

    def __init__(self) -> None:
        super().__init__(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3))


def exported(model: nn.Module) -> GraphModule:
    """The program of a model whose normalizations have seen data."""
    torch.manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for name, value in module.state_dict().items():
                if name != "num_batches_tracked":
                    nn.init.uniform_(value, 0.1, 2)
    batch = torch.export.Dim("batch", min=1, max=64)
    images = torch.rand(2, 3, 9, 9)
    program = torch.export.export(model.eval(), (images,), dynamic_shapes=({0: batch},))
    return program.module()


def norms(program: GraphModule) -> int:
    return Counter(node.target for node in program.graph.nodes)[torch.ops.aten.batch_norm.default]


@pytest.mark.parametrize(
    ("model", "left"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU()), 0),
        (nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1, groups=3), nn.BatchNorm2d(6)), 0),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False)), 0),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.BatchNorm2d(4)), 0),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)), 1),
        (Shared(), 1),
        (NormFirst(), 1),
    ],
)
@torch.no_grad()
def test_the_answers_stay(model: nn.Module, left: int) -> None:
    program = exported(model)
    images = torch.rand(5, 3, 9, 9)
    expected = program(images)
    fold_batch_norms(program)
    assert norms(program) == left
    torch.testing.assert_close(program(images), expected, atol=1e-5, rtol=1e-4)
