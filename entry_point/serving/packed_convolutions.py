"""Weights of convolutions in the layout that the CPU computes with.

oneDNN, which computes torch's convolutions, reorders each weight to blocks at every call, a quarter
of the time of a ResNet-18 on one image. Here that is done once, with the operators by which
torch.compile freezes a program. The answers have the same bits.
"""

from __future__ import annotations

import platform
from operator import attrgetter
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

_CONV = torch.ops.aten.conv2d.default
_DEFAULTS: tuple[Any, ...] = (None, 1, 0, 1, 1)
"""Of conv2d's arguments after the weight: bias, stride, padding, dilation, groups."""


def can_pack() -> bool:
    """Whether torch computes float32 convolutions with oneDNN's own kernels, those for x86."""
    return torch.backends.mkldnn.is_available() and platform.machine() in ("x86_64", "AMD64")


def pack_convolutions(program: GraphModule) -> None:
    """Pack the weights of all 2-D convolutions of fixed float32 weights."""
    for number, convolution in enumerate(
        program.graph.find_nodes(op="call_function", target=_CONV)
    ):
        weight = convolution.args[1]
        if isinstance(weight, Node) and weight.op == "get_attr":
            _pack(program, convolution, weight, f"_packed_{number}")
    program.graph.eliminate_dead_code()
    program.recompile()


def _pack(program: GraphModule, convolution: Node, weight: Node, name: str) -> None:
    values = cast(Tensor, attrgetter(str(weight.target))(program)).detach()
    if values.dtype != torch.float32:
        return
    image, _, *rest = cast(tuple[Any, ...], convolution.args)
    bias, stride, padding, dilation, groups = (*rest, *_DEFAULTS[len(rest) :])
    geometry = [_pair(value) for value in (padding, stride, dilation)]
    # Not at the top: builds of torch without oneDNN lack these operators.
    operator = torch.ops.mkldnn._convolution_pointwise.default
    packed = torch.ops.mkldnn._reorder_convolution_weight(values, *geometry, groups)
    program.register_buffer(name, packed, persistent=False)
    with program.graph.inserting_before(convolution):
        node = program.graph.get_attr(name)
        arguments = (image, node, bias, *geometry, groups, "none", [], "")
        convolution.replace_all_uses_with(program.graph.call_function(operator, arguments))
    program.graph.erase_node(convolution)


def _pair(value: Any) -> list[int]:
    """torch takes a number for both dimensions."""
    sizes = [value] if isinstance(value, int) else list(value)
    return sizes * 2 if len(sizes) == 1 else sizes
